"""An estimate in words, as JSON and as a plot."""
