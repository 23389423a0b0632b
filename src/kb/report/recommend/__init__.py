"""A recommendation in words, as JSON and as a config to paste."""
