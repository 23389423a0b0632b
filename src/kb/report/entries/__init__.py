"""Entries of the knowledge in full, with where each datum is from."""
