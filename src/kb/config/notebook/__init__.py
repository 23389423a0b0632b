"""Jupyter notebooks: their code cells as one Python text, each place of which is a place in the notebook file."""
