"""A watched run for a reader: the reading of now, warnings, the summary of the whole."""
