"""Which run a unit describes: its setup, the model that it names, the lengths of its rows, and what it leaves open."""
