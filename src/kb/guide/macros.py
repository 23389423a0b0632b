"""The macros that pages call. Each shows one thing of the rules, in the page's language; no page computes anything.

Read by mkdocs-macros from a path (``module_name`` in mkdocs.yml); CONTRIBUTING lists them.
"""

from collections.abc import Callable
from typing import Any

from kb.guide.accuracy import accuracy_tables, measured_rows
from kb.guide.api_reference import api_reference
from kb.guide.cases import case_history, run_times
from kb.guide.choose import choose_table, chooser, constant, note_figure, recommended
from kb.guide.command_reference import command_reference
from kb.guide.compare import compare
from kb.guide.export import data_files
from kb.guide.formulas import formula
from kb.guide.library import Library, load_library
from kb.guide.playground import playground
from kb.guide.runbooks import checklist, commands_table, questions, targets
from kb.guide.serving_tables import serving_defaults, serving_messages, serving_table
from kb.guide.tables import (
    decision_tree,
    dialect_table,
    errata_table,
    gpu_table,
    model_table,
    remedy_table,
    rule_table,
    tradeoff,
)

# name on a page → what shows it; each takes the library first
SHOWN: dict[str, Callable[..., str]] = {
    "accuracy_tables": accuracy_tables,
    "api_reference": api_reference,
    "case_history": case_history,
    "checklist": checklist,
    "choose_table": choose_table,
    "chooser": chooser,
    "command_reference": command_reference,
    "commands_table": commands_table,
    "compare": compare,
    "constant": constant,
    "data_files": data_files,
    "decision_tree": decision_tree,
    "dialect_table": dialect_table,
    "errata_table": errata_table,
    "formula": formula,
    "gpu_table": gpu_table,
    "measured_rows": measured_rows,
    "model_table": model_table,
    "note_figure": note_figure,
    "playground": playground,
    "questions": questions,
    "recommended": recommended,
    "remedy_table": remedy_table,
    "rule_table": rule_table,
    "run_times": run_times,
    "serving_defaults": serving_defaults,
    "serving_messages": serving_messages,
    "serving_table": serving_table,
    "targets": targets,
    "tradeoff": tradeoff,
}


def define_env(env: Any) -> None:
    """Give mkdocs-macros every macro of :data:`SHOWN`, bound to the language of the build."""
    library = load_library(env.conf["extra"]["lang"])
    for name, show in SHOWN.items():
        env.macro(_bound(show, library), name)


def _bound(show: Callable[..., str], library: Library) -> Callable[..., str]:
    def macro(*arguments: Any, **options: Any) -> str:
        return show(library, *arguments, **options)

    return macro
