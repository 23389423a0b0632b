"""kb: know before you run. GPU and host memory of Hugging Face style configs, checked against rules that are data."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take it for true; nothing is imported before the path is set right, below
if TYPE_CHECKING:
    from typing import Any, NoReturn

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


_SWITCHES = frozenset("bBdEiIOPqsSuvx")  # Python's options of one letter that take no value


def _leave_out_this_folder() -> None:
    """Take the folder that ``python -m`` puts first on the path from it, where it is kb that is looked for.

    A project that is checked may hold an ``inspect.py`` or a ``json.py`` of its own. It would stand in for Python's,
    and run, though kb promises to run nothing of a project.
    """
    for at, each in enumerate(sys.orig_argv):
        before, said, module = each.partition("m")  # -m, with or without a space, or at the end of a group: -Im
        if said and before[:1] == "-" and _SWITCHES.issuperset(before[1:]):
            named = module or sys.orig_argv[at + 1]
            if named.partition(".")[0] == "kb" and sys.path and sys.path[0] == _here():
                del sys.path[0]
            return


def _here() -> str | None:
    import os

    try:
        return str(os.getcwd())
    except OSError:  # the folder is gone
        return None


if sys.argv[:1] == ["-m"]:  # so it is only while `python -m kb.NAME` looks for kb; cli.run hears Ctrl-C from there on
    _leave_out_this_folder()
    # what `signal` wraps in names of its own, which takes a hundredth of a short check
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, leave_quietly)
