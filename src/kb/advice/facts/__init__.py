"""The vocabulary's facts, for one unit on one machine, and how each of them is known."""
