"""Weights & Biases sweep files: the combinations of settings that a search may run."""
