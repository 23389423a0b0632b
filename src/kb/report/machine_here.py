"""What detection has to say, for commands that need the GPU itself: none that is named in its place helps them."""

_NAMES_ANOTHER = ("no_driver", "no_driver_in_container", "memory_not_reported", "gpus_hidden")


def here(note: str) -> str:
    """The key under ``machine.`` that does not advise ``--gpu``."""
    return f"{note}_here" if note in _NAMES_ANOTHER else note
