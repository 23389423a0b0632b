"""``kb.estimate``: the memory of one run, by closed form or, with ``--simulate``, by the real model on fake tensors."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from kb import __version__
from kb.advice.flags import ATTENTIONS, METHODS, PRECISIONS, TASKS, Flags, optimizer_named
from kb.commands import estimate_serving
from kb.core.text import UserError
from kb.core.units import read_size
from kb.knowledge import load_catalog
from kb.report.words import Words
from kb.session import cli

LARGEST_NUMBER = 1_000_000
NUMBERS = ("batch", "seq_in", "seq_out", "accumulation", "lora_rank", "eval_batch", "beams", "gen_length")
WITHOUT_FORM = ("model_config.unknown_type", "model_config.unsupported", "model_config.differ")
OF_SIMULATION = (
    "sampling",
    "static_cache",
    "expandable_segments",
    "plot",
    "snapshot",
    "timeline",
    "time_limit",
    "memory_limit",
    "trust_remote_code",
)


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Estimate; 0 where the run fits or may, 1 where it is said to run out of memory."""
    from kb.advice.estimate import runs_out, with_varied_lengths
    from kb.session.estimating import estimate_file, estimate_flags
    from kb.session.simulating import with_model_files

    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_intermixed_args(arguments)
    if options.engine is not None:
        catalog = load_catalog(options.rules)
        return estimate_serving.command(options, catalog, Words(language, messages, catalog.facts))
    estimate_serving.refuse_without_engine(options)
    flags = _flags(options)
    catalog = load_catalog(options.rules)
    words = Words(language, messages, catalog.facts)
    checker = _checker(options, catalog)
    faults: Sequence[UserError] = ()
    if options.config is None:
        found = [estimate_flags(flags, checker, open_model=options.simulate)]
    else:
        found, faults = estimate_file(options.config, options.section, flags, checker, open_model=options.simulate)
    found = [with_model_files(one, options.model_config) for one in found]
    if options.simulate:
        found = _simulated(options, found, catalog, words)
    if options.varied_lengths:
        found = [with_varied_lengths(one) for one in found]
    _report(options, found, words, catalog)
    for fault in faults:
        print(f"kb: {cli.worded(fault, language)}", file=sys.stderr)
    return cli.FINDINGS if runs_out(found) else cli.CLEAN


def _simulated(options: argparse.Namespace, found: Sequence[Any], catalog: Any, words: Words) -> list[Any]:
    """Each run with the simulator's answer; a fault of the files asked for beside it is heard first."""
    from kb.session.simulating import Wish, numbered, simulated, write_pictures

    memory = None if options.memory_limit is None else read_size("--memory-limit", options.memory_limit)
    wish = Wish(
        seconds=options.time_limit,
        memory_bytes=memory,
        trusted=options.trust_remote_code,
        sampling=options.sampling,
        static_cache=options.static_cache,
        expandable_segments=options.expandable_segments,
    )
    snapshots = [options.snapshot and numbered(options.snapshot, number) for number in range(1, len(found) + 1)]
    done = [
        simulated(one, catalog, options.rules, wish._replace(snapshot=snapshot))
        for one, snapshot in zip(found, snapshots, strict=True)
    ]
    write_pictures(done, options.plot, options.timeline, words)
    return done


def _checker(options: argparse.Namespace, catalog: Any) -> Any:
    """The machine and the model, made ready."""
    from kb.session.prepare import Wanted, file_checker
    from kb.session.project import find_project

    start = os.getcwd()
    if options.config not in (None, "-"):
        start = os.path.dirname(os.path.abspath(options.config))
    wanted = Wanted(
        gpu=options.gpu,
        gpus=options.gpus,
        host_memory=options.host_memory,
        dialect=options.dialect,
        model_config=options.model_config,
    )
    project = find_project(start)
    try:
        return file_checker(catalog, project, wanted)
    except UserError as fault:
        # what has no closed form may yet be built and traced
        if not options.simulate or fault.key not in WITHOUT_FORM:
            raise
        return file_checker(catalog, project, wanted._replace(model_config=None))


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.estimate.{key}")

    def number(group: Any, name: str, unit: str = "N") -> None:
        group.add_argument(f"--{name}", type=int, metavar=unit, help=say(name.replace("-", "_")))

    parser = cli.Parser(words=words, prog="kb estimate", description=say("about"), epilog=say("examples"))
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=say("config"))
    parser.add_argument("--section", metavar="NAME", help=say("section"))
    parser.add_argument("--dialect", metavar="ID", help=cli.said(words, "cli.check.dialect"))
    run = parser.add_argument_group(say("group_run"))
    run.add_argument("--model", metavar="ID", help=say("model"))
    run.add_argument("--model-config", metavar="FILE", help=say("model_config"))
    run.add_argument("--task", choices=TASKS, help=say("task"))
    run.add_argument("--method", choices=METHODS, help=say("method"))
    run.add_argument("--precision", choices=PRECISIONS, help=say("precision"))
    run.add_argument("--optimizer", metavar="NAME", help=say("optimizer"))
    number(run, "batch")
    number(run, "seq-in", "TOKENS")
    number(run, "seq-out", "TOKENS")
    number(run, "accumulation")
    run.add_argument("--varied-lengths", action="store_true", help=say("varied_lengths"))
    run.add_argument("--gradient-checkpointing", action="store_true", help=say("gradient_checkpointing"))
    run.add_argument("--reentrant", action="store_true", help=say("reentrant"))
    run.add_argument("--attention", choices=tuple(ATTENTIONS), help=say("attention"))
    number(run, "lora-rank")
    run.add_argument("--lora-targets", metavar="A,B", help=say("lora_targets"))
    run.add_argument("--double-quant", action="store_true", help=say("double_quant"))
    number(run, "eval-batch")
    number(run, "beams")
    number(run, "gen-length", "TOKENS")
    machine = parser.add_argument_group(say("group_machine"))
    machine.add_argument("--gpu", metavar="ID", help=say("gpu"))
    number(machine, "gpus")
    machine.add_argument("--zero", type=int, choices=range(4), metavar="0…3", help=say("zero"))
    machine.add_argument("--fsdp", action="store_true", help=say("fsdp"))
    machine.add_argument("--host-memory", metavar="SIZE", help=say("host_memory"))
    estimate_serving.add_options(parser, words)
    simulation = parser.add_argument_group(say("group_simulation"))
    simulation.add_argument("--simulate", action="store_true", help=say("simulate"))
    for name in ("sampling", "static_cache", "expandable_segments"):
        simulation.add_argument(_option(name), action="store_true", help=say(name))
    simulation.add_argument("--plot", metavar="FILE", help=say("plot"))
    simulation.add_argument("--snapshot", metavar="FILE", help=say("snapshot"))
    simulation.add_argument("--timeline", metavar="FILE", help=say("timeline"))
    simulation.add_argument("--time-limit", type=float, metavar="SECONDS", help=say("time_limit"))
    simulation.add_argument("--memory-limit", metavar="SIZE", help=say("memory_limit"))
    simulation.add_argument("--trust-remote-code", action="store_true", help=say("trust_remote_code"))
    output = parser.add_argument_group(say("group_output"))
    output.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    output.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    output.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=say("color"))
    output.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))
    return parser


def _flags(options: argparse.Namespace) -> Flags:
    """What the arguments say of the run.

    Raises:
        UserError: arguments that cannot be meant, or not together.
    """
    _refuse(options)
    targets = tuple(name.strip() for name in (options.lora_targets or "").split(",") if name.strip())
    return Flags(
        model=options.model,
        task=options.task,
        method=options.method,
        precision=options.precision,
        optimizer=optimizer_named(options.optimizer),
        batch=options.batch,
        source_length=options.seq_in,
        target_length=options.seq_out,
        accumulation=options.accumulation,
        gradient_checkpointing=options.gradient_checkpointing,
        reentrant=options.reentrant,
        attention=options.attention,
        lora_rank=options.lora_rank,
        lora_targets=targets or None,
        double_quant=options.double_quant,
        eval_batch=options.eval_batch,
        beams=options.beams,
        generation_length=options.gen_length,
        zero_stage=options.zero,
        fsdp=options.fsdp,
    )


def _refuse(options: argparse.Namespace) -> None:
    for name in NUMBERS:
        value = getattr(options, name)
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            raise UserError("recommend.bad_number", option=_option(name), value=str(value), most=LARGEST_NUMBER)
    if options.config is None and not (options.model or options.model_config):
        raise UserError("estimate.no_model")
    if options.config is None and options.section is not None:
        raise UserError("estimate.only_with_config", option="--section")
    for name in OF_SIMULATION:
        if getattr(options, name) not in (None, False) and not options.simulate:
            raise UserError("estimate.only_with_simulate", option=_option(name))
    if options.time_limit is not None and not 0 < options.time_limit <= LARGEST_NUMBER:
        value = f"{options.time_limit:g}"
        raise UserError("recommend.bad_number", option="--time-limit", value=value, most=LARGEST_NUMBER)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _report(options: argparse.Namespace, found: Sequence[Any], words: Words, catalog: Any) -> None:
    if options.format == "json":
        from kb.report.estimate.json_report import estimate_json

        cli.put(estimate_json(found, words, __version__, catalog.version))
        return
    from kb.report.estimate.text import estimate_text
    from kb.report.terminal import choose_style

    cli.put(estimate_text(found, catalog.constants, words, choose_style(sys.stdout, options.color)))
