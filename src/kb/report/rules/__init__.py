"""A rule in full, and a change of the rules."""
