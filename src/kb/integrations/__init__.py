"""Where kb is called from other programs: Python, a Trainer, an editor, a browser, git."""
