"""Run times in words and as JSON."""
