"""What to say about a setup: its facts, from the config, the machine and the prediction. Pure."""
