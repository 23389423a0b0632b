"""The colour of each term of a prediction in the drawings of pages, as the number of a class of the guide's style."""

# A term has one colour in every drawing, the playground's too (kb-dom.mjs); those of one colour hardly meet in one run.
HUES = {
    "parameters": 0,
    "optimizer": 1,
    "gradients": 2,
    "gradients_held": 2,
    "activations_decoder": 3,
    "activations_encoder": 4,
    "reference_model": 4,
    "logits": 5,
    "loss": 6,
    "vllm": 6,
    "buckets": 6,
    "activations_head": 7,
    "adapters": 7,
    "vllm_weights": 7,
    "kv_cache_self": 10,
    "gathered": 10,
    "autocast_copies": 10,
    "gathered_parameters": 10,
    "kv_cache_cross": 11,
    "temporaries": 11,
    "quantization": 11,
}
SMALL, UNUSED = 8, 9  # colours of all other terms, and of what no term holds
