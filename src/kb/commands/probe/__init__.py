"""``kb.probe``: what a run really takes, measured: one process a trial, so that running out of memory loses nothing."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb import __version__
from kb.commands.options import RUN, Options, flag_of
from kb.commands.probe.request import OF_COMMAND, ProbeRequest, request_of
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.report.json_parts import to_json
from kb.report.probe_report import matrix_json, matrix_text, probe_object, probe_text, progress
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.knowledge import open_knowledge
from kb.session.project import find_project, folder_of

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Probed

KINDS = ("smoke", "ramp", "max-batch", "host", "serve")
JOURNAL = "kb-probe.jsonl"
PLACES = {name: f"{{{name}}}" for name in ("batch", "steps", "workers")}  # in the words of a help text


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Probe; 0 where what was asked ran, 1 where a smoke run did not, 2 where no batch runs at all."""
    # what runs trials needs psutil, an extra; who asks for the parser alone has perhaps none
    from kb.commands.probe.campaign import check_recordable, probe, record
    from kb.torch_runs.probe.running import LocalRunner  # needs psutil too

    messages = cli.load_words_or_none(language)
    own, words_of_run = _parted(arguments)
    options = build_parser(messages).parse_intermixed_args(own)
    if os.name == "nt" and (options.kind == "serve" or options.ray is None):
        raise UserError("probe.not_on_windows")
    if options.kind == "serve":
        from kb.commands.probe.serve import command as serve  # a server's budget is nothing that a trial needs

        return serve(options, words_of_run, messages, language)
    request = request_of(options, words_of_run)
    if options.ray is not None:
        return _on_ray(options, request, messages, language)
    catalog, words = open_knowledge(options, find_project(folder_of(request.question.config)), language, messages)
    request = request._replace(rules=options.rules)
    if options.record is not None:
        check_recordable(options.record, request)
    try:
        probed = probe(
            request,
            catalog,
            load_guide(options.rules),
            runner=LocalRunner(),
            tell=lambda *one: print(progress(one, words), file=sys.stderr, flush=True),
            journal_path=None if options.no_journal else options.journal,
            resume=options.resume,
        )
    except KeyboardInterrupt:
        if not options.no_journal and os.path.isfile(options.journal):
            print(words("probe.interrupted", path=options.journal), file=sys.stderr, flush=True)
        raise
    except UserError as fault:  # the reason is a sentence of its own
        if reason := fault.values.pop("reason_key", None):
            fault.values["reason"] = words(reason)
        raise
    if options.format == "json":
        cli.put(to_json(probe_object(probed, __version__, catalog.version)))
    else:
        cli.put(probe_text(probed, words, choose_style(sys.stdout, options.color)))
    if options.record is not None:
        record(options.record, probed, " ".join(["kb", "probe", *arguments]))
    return _code(probed, language, words)


def _on_ray(options: argparse.Namespace, request: ProbeRequest, messages: cli.Words, language: str) -> int:
    """The matrix of ``--gpus``, ``--models`` and ``--batches``; 0 where all ran, 2 where no trial came to an end."""
    from kb.commands.probe.matrix import read_axes, run_matrix  # needs psutil, an extra

    if options.record is not None:
        raise UserError("probe.ray_not_with", option="--record")
    catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    matrix = run_matrix(
        request,
        catalog,
        read_axes(options.cluster_gpus, options.models, options.batches),
        address=options.ray,
        tell=lambda *one: say(f"{one[1].gpu}, {one[1].model}: {progress(one, words)}"),
        tell_lost=lambda trial, nodes: say(words("probe.node_lost", gpu=trial.gpu, nodes=", ".join(nodes) or "?")),
        journal_path=None if options.no_journal else options.journal,
        resume=options.resume,
    )

    style = choose_style(sys.stdout, options.color)
    as_json = options.format == "json"
    cli.put(matrix_json(matrix, __version__, catalog.version) if as_json else matrix_text(matrix, words, style))
    if all(cell.outcome.fits for cell in matrix.cells):
        return cli.CLEAN
    return cli.UNUSABLE if all(cell.outcome.status == "lost" for cell in matrix.cells) else cli.FINDINGS


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
    made = Options(words, "probe", **PLACES)
    parser, say, seconds = made.parser, made.say, cli.number(words, whole=False)
    parser.add_argument("kind", choices=KINDS, metavar="|".join(KINDS), help=say("kind"))
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=say("config"))
    made.add(parser, "section", "dialect")
    run = made.group("run")
    made.add(run, "model", "model_config")
    run.add_argument("--phases", metavar="A,B", help=say("phases"))
    made.add(run, *RUN, "effective_batch")
    command = made.group("command")
    for name in OF_COMMAND:
        command.add_argument(flag_of(name), metavar="WORDS", help=say(name))
    trials = made.group("trials")
    trials.add_argument("--backend", choices=("cuda", "cpu", "fake"), help=say("backend"))
    trials.add_argument("--device", metavar="N", help=say("device"))
    trials.add_argument("--force", action="store_true", help=say("force"))
    trials.add_argument("--steps", type=cli.number(words), metavar="N", help=say("steps"))
    trials.add_argument("--most", type=cli.number(words), metavar="N", help=say("most"))
    trials.add_argument("--workers", metavar="A,B", help=say("workers"))
    trials.add_argument("--time-limit", type=seconds, default=600, metavar="SECONDS", help=say("time_limit"))
    trials.add_argument("--memory-limit", metavar="SIZE", help=say("memory_limit"))
    trials.add_argument("--fake-limit", metavar="SIZE", help=say("fake_limit"))
    trials.add_argument("--fake-script", metavar="FILE", help=say("fake_script"))
    made.add(trials, "gpu")
    cluster = made.group("cluster")
    cluster.add_argument("--ray", metavar="ADDRESS", help=say("ray"))
    cluster.add_argument("--gpus", dest="cluster_gpus", metavar="A,B", help=say("gpus"))
    cluster.add_argument("--models", metavar="A,B", help=say("models"))
    cluster.add_argument("--batches", metavar="A,B", help=say("batches"))
    output = made.group("output")
    output.add_argument("--journal", default=JOURNAL, metavar="FILE", help=say("journal"))
    output.add_argument("--no-journal", action="store_true", help=say("no_journal"))
    output.add_argument("--resume", action="store_true", help=say("resume"))
    output.add_argument("--record", metavar="FILE", help=say("record"))
    made.output(group=output)
    return parser
