"""The formats that continuous integration reads."""
