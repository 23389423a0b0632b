"""kb: know before you run. GPU and host memory of Hugging Face style configs, checked against rules that are data."""

import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from kb.core.finding import Finding as Finding
    from kb.core.hardware import Machine as Machine
    from kb.core.memory_report import MemoryReport as MemoryReport
    from kb.core.model import Model as Model
    from kb.core.result import CheckResult as CheckResult
    from kb.core.setup import TrainingSetup as TrainingSetup
    from kb.core.text import UserError as UserError
    from kb.integrations.api import findings as findings
    from kb.integrations.api import lint as lint
    from kb.integrations.api import machine_of as machine_of
    from kb.integrations.api import message as message
    from kb.integrations.api import predict as predict
    from kb.integrations.api import recommend as recommend
    from kb.integrations.many import predict_many as predict_many
    from kb.integrations.many import replace as replace

__version__ = "0.1.0"
PROJECT = "gpu-memory-kb"  # by which a module called kb is known to be this one

# The Python API; imported when first asked for, so that `import kb` costs nothing.
_FUNCTIONS = ("lint", "predict", "recommend", "machine_of", "message", "findings")
_OF_MANY = ("predict_many", "replace")
_CLASSES = ("CheckResult", "Finding", "Machine", "MemoryReport", "Model", "TrainingSetup", "UserError")


def __getattr__(name: str) -> Any:
    if name not in (*_FUNCTIONS, *_OF_MANY, *_CLASSES):
        raise AttributeError(f"module 'kb' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kb.integrations.{'many' if name in _OF_MANY else 'api'}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS, *_OF_MANY, *_CLASSES])


def leave_quietly(*_: object) -> NoReturn:
    """Ctrl-C while a command is still importing: nothing is begun, and nobody wants a traceback."""
    import os

    os._exit(130)


if sys.argv[:1] == ["-m"]:  # so it is only while `python -m kb.NAME` looks for kb; kb.cli hears Ctrl-C from there on
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave_quietly)
