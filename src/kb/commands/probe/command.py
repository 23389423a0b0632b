"""``kb.probe``: what a run really takes, measured: one process a trial, so that running out of memory loses nothing."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kb import __version__
from kb.advice.flags import ATTENTIONS, METHODS, PRECISIONS
from kb.commands.probe.asked import Asked, asked_of
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.report.words import Words
from kb.session import cli

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Probed

KINDS = ("smoke", "ramp", "max-batch", "host")
JOURNAL = "kb-probe.jsonl"
PLACES = {name: f"{{{name}}}" for name in ("batch", "steps", "workers")}  # in the words of a help text


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Probe; 0 where what was asked ran, 1 where a smoke run did not, 2 where no batch runs at all."""
    from kb.commands.probe.campaign import probe
    from kb.report.probe.progress import progress

    messages = cli.load_words_or_none(language)
    own, words_of_run = _parted(arguments)
    options = build_parser(messages).parse_intermixed_args(own)
    asked = asked_of(options, words_of_run)
    if options.ray is not None:
        return _on_ray(options, asked, messages, language)
    if os.name == "nt":
        raise UserError("probe.not_on_windows")
    catalog = load_catalog(options.rules)
    words = Words(language, messages, catalog.facts)
    if options.record is not None:
        _check_record(options.record, asked)
    try:
        probed = probe(
            asked,
            catalog,
            load_guide(options.rules),
            runner=runner_of(options),
            tell=lambda *one: print(progress(one, words), file=sys.stderr, flush=True),
            journal_path=None if options.no_journal else options.journal,
            resume=options.resume,
        )
    except KeyboardInterrupt:
        _interrupted(options, words)
        raise
    except UserError as fault:  # the reason is a sentence of its own
        if reason := fault.values.pop("reason_key", None):
            fault.values["reason"] = words(reason)
        raise
    _report(options, probed, words, catalog.version)
    if options.record is not None:
        from kb.commands.probe.record import record

        record(options.record, probed, " ".join(["kb", "probe", *arguments]))
    return _code(probed, language, words)


def _on_ray(options: argparse.Namespace, asked: Asked, messages: cli.Words, language: str) -> int:
    """The matrix of ``--gpus``, ``--models`` and ``--batches``; 0 where all ran, 2 where no trial came to an end."""
    from kb.commands.probe.matrix import read_axes, run_matrix
    from kb.report.probe.progress import progress

    if options.record is not None:
        raise UserError("probe.ray_not_with", option="--record")
    catalog = load_catalog(options.rules)
    words = Words(language, messages, catalog.facts)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    matrix = run_matrix(
        asked,
        catalog,
        read_axes(options.gpus, options.models, options.batches),
        address=options.ray,
        tell=lambda *one: say(f"{one[1].gpu}, {one[1].model}: {progress(one, words)}"),
        tell_lost=lambda trial, nodes: say(words("probe.node_lost", gpu=trial.gpu, nodes=", ".join(nodes) or "?")),
        journal_path=None if options.no_journal else options.journal,
        resume=options.resume,
    )
    from kb.report.probe.matrix import matrix_json, matrix_text
    from kb.report.terminal import choose_style

    style = choose_style(sys.stdout, options.color)
    as_json = options.format == "json"
    cli.put(matrix_json(matrix, __version__, catalog.version) if as_json else matrix_text(matrix, words, style))
    if all(cell.outcome.fits for cell in matrix.cells):
        return cli.CLEAN
    return cli.UNUSABLE if all(cell.outcome.status == "lost" for cell in matrix.cells) else cli.FINDINGS


def _interrupted(options: argparse.Namespace, words: Words) -> None:
    if not options.no_journal and os.path.isfile(options.journal):
        print(words("probe.interrupted", path=options.journal), file=sys.stderr, flush=True)


def runner_of(options: argparse.Namespace) -> Any:
    """Who runs the trials."""
    from kb.torch_runs.probe.running import LocalRunner

    return LocalRunner()


def _code(probed: "Probed", language: str, words: Words) -> int:
    if probed.ran:
        return cli.CLEAN
    if probed.kind == "smoke":
        return cli.FINDINGS
    outcome = probed.pairs[-1][1]
    smallest = min(trial.batch for trial, _ in probed.pairs)
    key = "probe.nothing_ran" if outcome.status not in ("ok", "oom") or probed.kind == "host" else "probe.none_fits"
    fault = UserError(key, name=probed.name, batch=smallest, reason=outcome.reason or outcome.status)
    print(f"kb: {cli.worded(fault, language)}", file=sys.stderr)
    return cli.UNUSABLE


def _parted(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """kb's own arguments, and the command after ``--``; a command alone is tried in a smoke run."""
    given = list(arguments)
    if "--" not in given:
        return given, ()
    at = given.index("--")
    own, command_words = given[:at], tuple(given[at + 1 :])
    if not command_words:
        raise UserError("probe.no_command")
    return own if any(kind in own for kind in KINDS) else ["smoke", *own], command_words


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.probe.{key}", **PLACES)

    def also(key: str) -> str:
        return cli.said(words, f"cli.estimate.{key}")

    def number(group: Any, name: str, text: str, unit: str = "N") -> None:
        group.add_argument(f"--{name}", type=int, metavar=unit, help=text)

    parser = cli.Parser(words=words, prog="kb probe", description=say("about"), epilog=say("examples"))
    parser.add_argument("kind", choices=KINDS, metavar="|".join(KINDS), help=say("kind"))
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=say("config"))
    parser.add_argument("--section", metavar="NAME", help=also("section"))
    parser.add_argument("--dialect", metavar="ID", help=cli.said(words, "cli.check.dialect"))
    run = parser.add_argument_group(say("group_run"))
    run.add_argument("--model", metavar="ID", help=say("model"))
    run.add_argument("--model-config", metavar="FILE", help=also("model_config"))
    run.add_argument("--phases", metavar="A,B", help=say("phases"))
    run.add_argument("--method", choices=METHODS, help=also("method"))
    run.add_argument("--precision", choices=PRECISIONS, help=also("precision"))
    run.add_argument("--optimizer", metavar="NAME", help=also("optimizer"))
    number(run, "batch", say("batch"))
    number(run, "seq-in", also("seq_in"), "TOKENS")
    number(run, "seq-out", also("seq_out"), "TOKENS")
    number(run, "accumulation", also("accumulation"))
    run.add_argument("--gradient-checkpointing", action="store_true", help=also("gradient_checkpointing"))
    run.add_argument("--reentrant", action="store_true", help=also("reentrant"))
    run.add_argument("--attention", choices=tuple(ATTENTIONS), help=also("attention"))
    number(run, "lora-rank", also("lora_rank"))
    run.add_argument("--lora-targets", metavar="A,B", help=also("lora_targets"))
    run.add_argument("--double-quant", action="store_true", help=also("double_quant"))
    number(run, "eval-batch", say("eval_batch"))
    number(run, "beams", also("beams"))
    number(run, "gen-length", say("gen_length"), "TOKENS")
    number(run, "effective-batch", say("effective_batch"))
    _add_command(parser.add_argument_group(say("group_command")), say)
    trials = parser.add_argument_group(say("group_trials"))
    trials.add_argument("--backend", choices=("cuda", "cpu", "fake"), help=say("backend"))
    trials.add_argument("--device", metavar="N", help=say("device"))
    trials.add_argument("--force", action="store_true", help=say("force"))
    number(trials, "steps", say("steps"))
    number(trials, "most", say("most"))
    trials.add_argument("--workers", metavar="A,B", help=say("workers"))
    trials.add_argument("--time-limit", type=float, default=600, metavar="SECONDS", help=say("time_limit"))
    trials.add_argument("--memory-limit", metavar="SIZE", help=say("memory_limit"))
    trials.add_argument("--fake-limit", metavar="SIZE", help=say("fake_limit"))
    trials.add_argument("--fake-script", metavar="FILE", help=say("fake_script"))
    trials.add_argument("--gpu", metavar="ID", help=say("gpu"))
    _add_cluster(parser.add_argument_group(say("group_cluster")), say)
    _add_output(parser.add_argument_group(say("group_output")), words, say)
    return parser


def _add_command(group: Any, say: Any) -> None:
    group.add_argument("--batch-flag", metavar="WORDS", help=say("batch_flag"))
    group.add_argument("--steps-flag", metavar="WORDS", help=say("steps_flag"))
    group.add_argument("--workers-flag", metavar="WORDS", help=say("workers_flag"))


def _add_cluster(group: Any, say: Any) -> None:
    group.add_argument("--ray", metavar="ADDRESS", help=say("ray"))
    group.add_argument("--gpus", metavar="A,B", help=say("gpus"))
    group.add_argument("--models", metavar="A,B", help=say("models"))
    group.add_argument("--batches", metavar="A,B", help=say("batches"))


def _add_output(group: Any, words: cli.Words, say: Any) -> None:
    group.add_argument("--journal", default=JOURNAL, metavar="FILE", help=say("journal"))
    group.add_argument("--no-journal", action="store_true", help=say("no_journal"))
    group.add_argument("--resume", action="store_true", help=say("resume"))
    group.add_argument("--record", metavar="FILE", help=say("record"))
    group.add_argument("--format", choices=("text", "json"), default="text", help=cli.said(words, "cli.plan.format"))
    group.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                       help=cli.said(words, "cli.plan.color"))  # fmt: skip
    group.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))


def _check_record(path: str, asked: Asked) -> None:
    from kb.commands.probe.record import check_recordable

    check_recordable(path, asked)


def _report(options: argparse.Namespace, probed: "Probed", words: Words, rules_version: str) -> None:
    if options.format == "json":
        from kb.report.probe.json_report import probe_json

        cli.put(probe_json(probed, __version__, rules_version))
        return
    from kb.report.probe.text import probe_text
    from kb.report.terminal import choose_style

    cli.put(probe_text(probed, words, choose_style(sys.stdout, options.color)))
