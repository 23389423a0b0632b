"""Calls in Python files read as configs: by their syntax tree, never executed."""
