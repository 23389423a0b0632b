"""Which format a config is in, and which of its keys means which setting."""
