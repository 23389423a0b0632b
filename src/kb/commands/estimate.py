"""``kb.estimate``: a run's memory, by the memory engine or, with ``--simulate``, by the real model on fake tensors."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from kb import __version__
from kb.advice.estimate import runs_out, with_savings, with_timeline, with_varied_lengths
from kb.advice.question import Question
from kb.advice.run.question_settings import optimizer_named
from kb.commands import estimate_serving
from kb.commands.options import LARGEST_NUMBER, RUN, Options, flag_of, question_of, size_of
from kb.core.text import UserError
from kb.report.estimate_report import estimate_json, estimate_text
from kb.report.terminal import choose_style
from kb.session import cli
from kb.session.estimating import Wish, estimate_flags, estimate_sections, sections_of, simulated, with_model_files
from kb.session.knowledge import open_knowledge
from kb.session.plot_file import numbered, write_pictures
from kb.session.prepare import file_checker
from kb.session.project import Project, find_project, folder_of

WITHOUT_FORM = ("model_config.unknown_type", "model_config.unsupported", "model_config.differ")
OF_SIMULATION = (
    "sampling",
    "static_cache",
    "expandable_segments",
    "snapshot",
    "time_limit",
    "memory_limit",
    "trust_remote_code",
)


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Estimate; 0 where the run fits or may, 1 where it is said to run out of memory."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_intermixed_args(arguments)
    if options.engine is not None:
        catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)
        return estimate_serving.command(options, catalog, words)
    if options.config is None:
        estimate_serving.refuse_without_engine(options)
    question = question_of(options, optimizer_named)
    _refuse(options, question)
    memory = size_of(options, "memory_limit")
    project = find_project(folder_of(question.config))
    catalog, words = open_knowledge(options, project, language, messages)
    checker = _checker(options, question, project, catalog)
    faults: Sequence[UserError] = ()
    if options.config is None:
        found = [estimate_flags(question.run, checker, open_model=options.simulate)]
    else:
        sections = sections_of(options.config, options.section, checker)
        code = estimate_serving.of_sections(sections, options, checker, words)
        if code is not None:
            return code
        estimate_serving.refuse_without_engine(options)
        found, faults = estimate_sections(sections, options.config, question.run, checker, open_model=options.simulate)
    found = [with_model_files(one, options.model_config) for one in found]
    if options.simulate:
        found = _simulated(options, found, catalog, memory)
    elif options.plot is not None or options.timeline is not None:
        found = [with_timeline(one, catalog) for one in found]
    write_pictures(found, options.plot, options.timeline, words)
    if options.varied_lengths:
        found = [with_varied_lengths(one) for one in found]
    if options.what_if:
        found = [with_savings(one, catalog) for one in found]
    if options.format == "json":
        cli.put(estimate_json(found, words, __version__, catalog.version))
    else:
        cli.put(estimate_text(found, catalog.constants, words, choose_style(sys.stdout, options.color)))
    for fault in faults:
        print(f"kb: {cli.worded(fault, language)}", file=sys.stderr)
    return cli.FINDINGS if runs_out(found) else cli.CLEAN


def _simulated(options: argparse.Namespace, found: Sequence[Any], catalog: Any, memory: int | None) -> list[Any]:
    """Each run with the simulator's answer; a fault of the files asked for beside it is heard first."""
    for one in found:
        if one.setup.post is not None:
            raise UserError("estimate.not_simulated", kind=one.setup.post.kind.upper())
        if one.setup.fused_loss or one.setup.unsloth or one.setup.offloads_checkpoints:
            raise UserError("estimate.kernels_not_simulated")
    wish = Wish(
        seconds=options.time_limit,
        memory_bytes=memory,
        trusted=options.trust_remote_code,
        sampling=options.sampling,
        static_cache=options.static_cache,
        expandable_segments=options.expandable_segments,
    )
    snapshots = [options.snapshot and numbered(options.snapshot, number) for number in range(1, len(found) + 1)]
    return [
        simulated(one, catalog, options.rules, wish._replace(snapshot=snapshot))
        for one, snapshot in zip(found, snapshots, strict=True)
    ]


def _checker(options: argparse.Namespace, question: Question, project: Project, catalog: Any) -> Any:
    """The machine and the model, made ready."""
    try:
        return file_checker(catalog, project, question)
    except UserError as fault:
        # what is not known may yet be built and traced
        if not options.simulate or fault.key not in WITHOUT_FORM:
            raise
        return file_checker(catalog, project, question._replace(model_config=None))


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "estimate")
    parser, say, seconds = made.parser, made.say, cli.number(words, whole=False)
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=say("config"))
    made.add(parser, "section", "dialect")
    run = made.group("run")
    made.add(run, "model", "model_config", "task", *RUN)
    run.add_argument("--varied-lengths", action="store_true", help=say("varied_lengths"))
    run.add_argument("--what-if", action="store_true", help=say("what_if"))
    run.add_argument("--plot", metavar="FILE", help=say("plot"))
    run.add_argument("--timeline", metavar="FILE", help=say("timeline"))
    made.add(made.group("machine"), "gpu", "gpus", "zero_stage", "fsdp", "host_memory")
    estimate_serving.add_options(parser, words)
    simulation = made.group("simulation")
    simulation.add_argument("--simulate", action="store_true", help=say("simulate"))
    for name in ("sampling", "static_cache", "expandable_segments"):
        simulation.add_argument(flag_of(name), action="store_true", help=say(name))
    simulation.add_argument("--snapshot", metavar="FILE", help=say("snapshot"))
    simulation.add_argument("--time-limit", type=seconds, metavar="SECONDS", help=say("time_limit"))
    simulation.add_argument("--memory-limit", metavar="SIZE", help=say("memory_limit"))
    simulation.add_argument("--trust-remote-code", action="store_true", help=say("trust_remote_code"))
    made.output()
    return parser


def _refuse(options: argparse.Namespace, question: Question) -> None:
    """Raises: UserError: arguments that cannot be meant together."""
    if question.config is None and not (question.run.model or question.model_config):
        raise UserError("estimate.no_model")
    if options.config is None and options.section is not None:
        raise UserError("estimate.only_with_config", option="--section")
    for name in OF_SIMULATION:
        if getattr(options, name) not in (None, False) and not options.simulate:
            raise UserError("estimate.only_with_simulate", option=flag_of(name))
    if options.time_limit is not None and not 0 < options.time_limit <= LARGEST_NUMBER:
        value = f"{options.time_limit:g}"
        raise UserError("recommend.bad_number", option="--time-limit", value=value, most=LARGEST_NUMBER)
