"""A diagnosis in words and as JSON."""
