"""A fix as the smallest change of the text, read again before it is written."""
