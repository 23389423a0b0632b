"""``kb.runtime``: how long a run takes, which stage holds it up, and what another batch buys in the whole."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.runtime import (
    Minutes,
    Pipeline,
    Stage,
    TrainingTime,
    compare,
    differing_claims,
    known_batches,
    pipeline_of,
    run_time,
    runtime_row,
    training_of,
    with_samples,
)
from kb.advice.speed_log import pace, read_speed
from kb.commands.options import Options
from kb.config.files import is_device
from kb.config.log import pieces
from kb.core.text import Text, UserError, nearest
from kb.knowledge import load_guide
from kb.report.json_parts import head, to_json
from kb.report.runtime_report import (
    list_object,
    list_text,
    log_object,
    log_text,
    overview_text,
    run_object,
    run_text,
    training_object,
    training_text,
)
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.knowledge import open_knowledge
from kb.session.project import find_project

_STAGE = re.compile(r"([\w.-]{1,60})(?:@(\d{1,9}))?=(\d{1,9}(?:\.\d{1,6})?)(?:\.\.(\d{1,9}(?:\.\d{1,6})?))?")


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Answer with the times that were asked for; 1 where a log's steps have become slow."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)
    guide = load_guide(options.rules)
    rows = guide.get("runtimes", {})
    errata = guide.get("errata", {}).get("errata", ())
    if options.log:
        return _log(options, words, catalog.version)
    if options.sec_per_step is not None or options.steps_per_minute is not None or options.steps is not None:
        return _training(options, words, catalog.version)
    if options.name is None and not options.stage:
        _write(options, catalog.version, list_object(rows), list_text(rows, words, _style()))
        return cli.CLEAN
    row = runtime_row(rows, options.name) if options.name else None
    if row is not None and "stages" not in row:
        return _noted_training(options, row, errata, words, catalog.version)
    pipeline = pipeline_of(row, options.pipeline, errata) if row else Pipeline("", Text("", ""), (), (), None, ())
    return _pipeline(options, pipeline, words, catalog.version)


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "runtime")
    parser, say = made.parser, made.say
    count = cli.number(words, low=1, high=10**12 - 1)
    above_zero = cli.number(words, whole=False, low=1e-9, high=1e9)
    parser.add_argument("name", nargs="?", metavar="NAME", help=say("name"))
    stages = made.group("stages")
    stages.add_argument("--batch", type=count, metavar="N", help=say("batch"))
    stages.add_argument("--baseline", type=count, metavar="N", help=say("baseline"))
    stages.add_argument("--pipeline", metavar="ID", help=say("pipeline"))
    stages.add_argument("--stage", action="append", default=[], metavar="NAME[@BATCH]=MIN..MAX", help=say("stage"))
    stages.add_argument("--n-samples", type=count, metavar="N", help=say("n_samples"))
    training = made.group("training")
    training.add_argument("--steps", type=count, metavar="N", help=say("steps"))
    training.add_argument("--sec-per-step", type=above_zero, metavar="S", help=say("sec_per_step"))
    training.add_argument("--steps-per-minute", type=above_zero, metavar="N", help=say("steps_per_minute"))
    log = made.group("log")
    log.add_argument("--log", metavar="FILE|-", help=say("log"))
    log.add_argument("--baseline-sec-per-step", type=above_zero, metavar="S", help=say("baseline_sec_per_step"))
    made.output(color=False)
    return parser


def _write(options: argparse.Namespace, rules: str, data: Mapping[str, Any], text: str) -> None:
    if options.format == "json":
        text = to_json({**head(__version__, rules), **data})
    cli.put(text)


def _style() -> Any:
    return choose_style(sys.stdout)


def _pipeline(options: argparse.Namespace, pipeline: Pipeline, words: Words, rules: str) -> int:
    known = pipeline.stages
    stages = _with_stages(known, options.stage, options.batch)
    if options.n_samples is not None:
        stages = with_samples(stages, options.n_samples)
    pipeline = pipeline._replace(stages=stages)
    if options.batch is None:
        batches = known_batches(stages) or (1,)
        runs = [run_time(stages, batch) for batch in batches]
        _write(options, rules, run_object(pipeline, runs, None, ()), overview_text(pipeline, runs, words, _style()))
        return cli.CLEAN
    run = run_time(stages, options.batch)
    baseline = options.baseline or pipeline.baseline
    comparison = None
    if baseline is not None and baseline != options.batch:
        comparison = compare(run_time(stages, baseline), run)
    # what the user changed is no longer what the note spoke of
    claims = differing_claims(pipeline, comparison) if comparison and stages == known else []
    runs = [comparison.baseline, run] if comparison else [run]
    text = run_text(pipeline, run, comparison, claims, words, _style())
    _write(options, rules, run_object(pipeline, runs, comparison, claims), text)
    return cli.CLEAN


def _with_stages(stages: Sequence[Stage], given: Sequence[str], batch: int | None) -> tuple[Stage, ...]:
    """The stages with the times given as ``NAME[@BATCH]=MIN..MAX``; without stages to begin with, those given."""
    made = {stage.name: stage for stage in stages}
    known = set(made)
    for text in given:
        name, at, time = _stage_time(text)
        if known and name not in known:
            raise UserError("runtime.unknown_stage", name=name, known=", ".join(nearest(name, made) or made))
        stage = made.get(name, Stage(name, Text(name, name)))
        if at is None and (stage.fixed is not None or batch is None or not stage.by_batch):
            made[name] = stage._replace(fixed=time, by_batch={})
        else:
            made[name] = stage._replace(fixed=None, by_batch={**stage.by_batch, at or batch or 0: time})
    return tuple(made.values())


def _stage_time(text: str) -> tuple[str, int | None, Minutes]:
    match = _STAGE.fullmatch(text)
    if match is None:
        raise UserError("runtime.bad_stage", text=text)
    low = float(match[3])
    high = float(match[4]) if match[4] else low
    if high < low:
        raise UserError("runtime.bad_stage", text=text)
    return match[1], int(match[2]) if match[2] else None, Minutes(low, high)


def _training(options: argparse.Namespace, words: Words, rules: str) -> int:
    if (options.sec_per_step is None) == (options.steps_per_minute is None):
        raise UserError("runtime.one_speed")
    if options.name is not None or options.stage:
        raise UserError("runtime.one_at_a_time")
    seconds = options.sec_per_step if options.sec_per_step is not None else 60 / options.steps_per_minute
    time = TrainingTime(seconds_per_step=seconds, steps=options.steps, batch=options.batch)

    _write(options, rules, training_object(time, None), training_text(time, words, _style()))
    return cli.CLEAN


def _noted_training(
    options: argparse.Namespace, row: Mapping[str, Any], errata: Sequence[Mapping[str, Any]], words: Words, rules: str
) -> int:
    noted = training_of(row, errata)
    if options.batch is not None:
        noted = noted._replace(time=noted.time._replace(batch=options.batch))
    _write(options, rules, training_object(noted.time, noted), training_text(noted.time, words, _style(), noted))
    return cli.CLEAN


def _log(options: argparse.Namespace, words: Words, rules: str) -> int:
    if options.name is not None or options.stage:
        raise UserError("runtime.one_at_a_time")

    if options.log == "-":
        log = read_speed(pieces(sys.stdin.buffer))
    else:
        if is_device(options.log):
            raise UserError("config.not-a-file", path=options.log)
        try:
            with open(options.log, "rb") as stream:
                log = read_speed(pieces(stream))
        except OSError as error:
            raise UserError("runtime.log_unreadable", path=options.log, reason=error.strerror or str(error)) from None
    if not log.bars:
        raise UserError("runtime.no_speed", path=options.log, lines=log.lines)
    # a baseline that was given is one of the training steps, which the longest bar shows
    paces = [pace(bar, options.baseline_sec_per_step if at == 0 else None) for at, bar in enumerate(log.bars)]
    text = log_text(options.log, log, paces, options.batch, words, _style())
    _write(options, rules, log_object(options.log, log, paces, options.batch), text)
    return cli.FINDINGS if paces[0] and paces[0].alert else cli.CLEAN
