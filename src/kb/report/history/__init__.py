"""A config's versions as a matrix, as JSON and as a plot."""
