"""What a person types: a module or a folder for each command. Options in, exit code out."""

from importlib import import_module
from types import ModuleType

COMMANDS = (
    "check", "estimate", "recommend", "plan", "diagnose", "probe", "monitor", "runtime", "history",
    "lengths", "rules", "site", "lsp", "doctor", "completion", "manual",
)  # fmt: skip


def command(name: str) -> ModuleType:
    """The module of a command: it has ``main`` and ``build_parser``."""
    return import_module(f"kb.commands.{name}")
