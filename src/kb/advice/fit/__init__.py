"""What fits on a machine, and the ways there: predictions, attempts, plans, the config to start from."""
