"""The macros that pages call. Each shows one thing of the rules, in the page's language; no page computes anything.

Read by mkdocs-macros from a path (``module_name`` in mkdocs.yml); CONTRIBUTING lists them.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from kb.guide.accuracy import accuracy_tables, engine_scores, followed_types, measured_rows, release_scores
from kb.guide.choose import choose_table, chooser, constant, error_band, note_figure, recommended
from kb.guide.export import data_files
from kb.guide.figures import compare, drawn, drawn_server, drawn_workers, over_time
from kb.guide.formulas import formula
from kb.guide.interactive import entry_form, error_search, own_numbers, playground
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
from kb.guide.original_guide import case_history, guide_said, noted_facts, run_times
from kb.guide.proof import accuracy_summary, proof_chart, proof_line
from kb.guide.reference import api_reference, command_reference, grammar_tables
from kb.guide.runbooks import checklist, commands_table, decision_tree, questions, targets, tradeoff
from kb.guide.tables import (
    dialect_table,
    entry_file,
    errata_table,
    gpu_table,
    model_table,
    remedy_table,
    rule_table,
    serving_defaults,
    serving_messages,
    serving_table,
    source_tables,
)
from kb.knowledge.locations import cache_folder
from kb.memory.answers import keep_in
from kb.session.cache import Predictions

# what pages call by these names; each takes the library first
SHOWN: dict[str, Callable[..., str]] = {
    show.__name__: show
    for show in (
        accuracy_summary, accuracy_tables, api_reference, badge, beam_counts, cache_sizes, case_history, checklist,
        choose_table, chooser, command_reference, commands_table, compare, constant, data_files, decision_tree,
        dialect_table, drawn, drawn_server, drawn_workers, effective_batches, engine_scores, entry_file, entry_form,
        errata_table, error_band, error_search, followed_types, formula, gpu_table, grammar_tables, guide_said,
        input_lengths, largest_batch, measured_rows, model_table, mt5_hypotheses, note_figure, noted_facts, over_time,
        own_numbers, playground, precision_bytes, precisions, proof_chart, proof_line, questions, recommended,
        release_scores, remedy_table, requests_held, rule_table, run_times, saving_options, serving_defaults,
        serving_lengths, serving_messages, serving_table, source_tables, targets, tradeoff, worker_counts,
    )
}  # fmt: skip
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
    """No ``partial``: mkdocs-macros writes out what each macro is, and that of one would be the whole library."""

    def macro(*arguments: Any, **options: Any) -> str:
        return show(library, *arguments, **options)

    return macro
