"""What ``kb.probe`` found: as text, as JSON, and a line for each trial while it goes."""
