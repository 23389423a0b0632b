"""Command lines and shell scripts read as settings; nothing is run."""
