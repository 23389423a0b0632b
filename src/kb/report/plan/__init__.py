"""A plan in words and as JSON."""
