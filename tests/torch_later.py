"""torch, and what imports it, where a module's tests run: each worker of pytest that only collects them saves seconds.

A module writes those imports below ``if TYPE_CHECKING:``, as for a type checker, and ``imported = imported_where_run(
globals(), require_simulator)`` after them.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def imported_where_run(module: dict[str, Any], required: Callable[[], None]) -> Any:
    """A fixture that imports what a test module has below ``if TYPE_CHECKING:`` before the first of its tests.

    Args:
        required: skips, or fails under CI, where torch or what else is needed is missing.
    """

    @pytest.fixture(scope="module", autouse=True)
    def imported() -> None:
        required()
        path = module["__file__"]
        tree = ast.parse(Path(path).read_text("utf-8"))
        below = [part for part in tree.body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"]
        for part in below:
            exec(compile(ast.Module(part.body, []), path, "exec"), module)

    return imported
