"""The macros that pages call. Each shows one thing of the rules, in the page's language; no page computes anything.

Read by mkdocs-macros from a path (``module_name`` in mkdocs.yml); CONTRIBUTING lists them.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from kb.guide.accuracy import accuracy_tables, engine_scores, measured_rows
from kb.guide.api_reference import api_reference
from kb.guide.cases import case_history, run_times
from kb.guide.choose import choose_table, chooser, constant, note_figure, recommended
from kb.guide.command_reference import command_reference
from kb.guide.compare import compare
from kb.guide.decision_trees import decision_tree
from kb.guide.entry_form import entry_form
from kb.guide.error_search import error_search
from kb.guide.export import data_files
from kb.guide.figures import drawn, drawn_server, drawn_workers, over_time, own_numbers
from kb.guide.formulas import formula
from kb.guide.grammar_page import grammar_tables
from kb.guide.lessons import (
    beam_counts,
    cache_sizes,
    effective_batches,
    input_lengths,
    largest_batch,
    mt5_hypotheses,
    precision_bytes,
    precisions,
    requests_held,
    saving_options,
    serving_lengths,
    worker_counts,
)
from kb.guide.library import Library, load_library
from kb.guide.markup import badge
from kb.guide.noted_facts import guide_said, noted_facts
from kb.guide.playground import playground
from kb.guide.proof import accuracy_summary, proof_chart, proof_line
from kb.guide.release_scores import release_scores
from kb.guide.runbooks import checklist, commands_table, questions, targets
from kb.guide.serving_tables import serving_defaults, serving_messages, serving_table
from kb.guide.source_tables import source_tables
from kb.guide.tables import (
    dialect_table,
    entry_file,
    errata_table,
    gpu_table,
    model_table,
    remedy_table,
    rule_table,
    tradeoff,
)
from kb.knowledge.locations import cache_folder
from kb.memory.answers import keep_in
from kb.session.cache import Predictions

# name on a page → what shows it; each takes the library first
SHOWN: dict[str, Callable[..., str]] = {
    "accuracy_summary": accuracy_summary,
    "accuracy_tables": accuracy_tables,
    "api_reference": api_reference,
    "beam_counts": beam_counts,
    "cache_sizes": cache_sizes,
    "case_history": case_history,
    "badge": badge,
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
    "drawn": drawn,
    "drawn_server": drawn_server,
    "drawn_workers": drawn_workers,
    "effective_batches": effective_batches,
    "engine_scores": engine_scores,
    "entry_file": entry_file,
    "errata_table": errata_table,
    "entry_form": entry_form,
    "error_search": error_search,
    "formula": formula,
    "gpu_table": gpu_table,
    "grammar_tables": grammar_tables,
    "guide_said": guide_said,
    "input_lengths": input_lengths,
    "largest_batch": largest_batch,
    "measured_rows": measured_rows,
    "model_table": model_table,
    "mt5_hypotheses": mt5_hypotheses,
    "note_figure": note_figure,
    "noted_facts": noted_facts,
    "over_time": over_time,
    "own_numbers": own_numbers,
    "playground": playground,
    "precision_bytes": precision_bytes,
    "precisions": precisions,
    "proof_chart": proof_chart,
    "proof_line": proof_line,
    "questions": questions,
    "recommended": recommended,
    "release_scores": release_scores,
    "remedy_table": remedy_table,
    "requests_held": requests_held,
    "rule_table": rule_table,
    "run_times": run_times,
    "saving_options": saving_options,
    "serving_defaults": serving_defaults,
    "serving_lengths": serving_lengths,
    "serving_messages": serving_messages,
    "serving_table": serving_table,
    "source_tables": source_tables,
    "targets": targets,
    "tradeoff": tradeoff,
    "worker_counts": worker_counts,
}


KEEPING = ("choose_table",)  # given the folder where a build keeps what takes long to compute


def define_env(env: Any) -> None:
    """Give mkdocs-macros every macro of :data:`SHOWN`, bound to the language of the build."""
    keep_in(Predictions(cache_folder()))  # both languages show the same
    library = load_library(env.conf["extra"]["lang"])
    folder = os.path.join(os.path.dirname(env.conf["config_file_path"]), "build")
    preview = bool(env.conf["extra"]["preview"])
    for name, show in SHOWN.items():
        own = partial(show, folder=folder, preview=preview) if name in KEEPING else show
        env.macro(_bound(own, library), name)


def _bound(show: Callable[..., str], library: Library) -> Callable[..., str]:
    def macro(*arguments: Any, **options: Any) -> str:
        return show(library, *arguments, **options)

    return macro
