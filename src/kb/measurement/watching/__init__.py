"""Watching a run: readings, recordings and replays of them, the watched command. Who reads what is handed in."""
