"""The memory model of inference servers: weights by rank, KV cache, what profiling and graphs take. Pure."""
