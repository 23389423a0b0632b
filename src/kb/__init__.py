"""kb: know before you run. GPU and host memory of Hugging Face style configs, checked against rules that are data."""

import sys
from typing import NoReturn

__version__ = "0.1.0"


def leave_quietly(*_: object) -> NoReturn:
    """Ctrl-C while a command is still importing: nothing is begun, and nobody wants a traceback."""
    import os

    os._exit(130)


if sys.argv[:1] == ["-m"]:  # so it is only while `python -m kb.NAME` looks for kb; kb.cli hears Ctrl-C from there on
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_quietly)
