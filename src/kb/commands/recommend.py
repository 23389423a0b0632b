"""``kb.recommend``: the config to start from on a GPU, beside what the field notes say."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kb import __version__
from kb.advice.answer import DECISION, Answer, answer, answer_easier
from kb.advice.estimator import Estimator
from kb.core.catalog import Catalog
from kb.core.model import Model
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.memory import UnsupportedArchitectureError
from kb.report.recommend.formats import FORMATS
from kb.report.recommend.text import config_file
from kb.report.values import short_name
from kb.report.words import Words
from kb.session import cli
from kb.session.prepare import Wanted, file_checker
from kb.session.project import find_project

LARGEST_NUMBER = 1_000_000
NUMBERS = ("gpus", "effective_batch", "seq_in", "seq_out", "eval_batch", "beams", "gen_length", "folds", "processes")


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Recommend; 0 where the config holds all that was asked, 1 where something of it cannot be had."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    _check_numbers(options)
    catalog = load_catalog(options.rules)
    guide = load_guide(options.rules)
    model = _model(options, catalog)
    wanted = Wanted(gpu=options.gpu, gpus=options.gpus, host_memory=options.host_memory, cpus=options.cpus)
    machine = file_checker(catalog, find_project(os.getcwd()), wanted).machine
    if not machine.gpus:
        raise UserError("recommend.no_gpu")
    _check_lengths(options, model)
    if options.written_as is not None and options.task != "train":
        raise UserError("recommend.as_inference", format=options.written_as)
    given = _given(options.set, guide.get("decisions", {}).get(DECISION, {}).get("variables", {}))
    ask = partial(
        answer,
        options.task,
        estimator=Estimator(model, machine, catalog.constants),
        catalog=catalog,
        guide=guide,
        world=len(machine.gpus) if options.gpus is None else options.gpus,
        folds=options.folds or 1,
        processes=options.processes or 1,
        given=given,
    )
    words = Words(language, messages, catalog.facts)
    try:
        result = ask(_asked(options))
        if options.written_as is not None:
            easier = answer_easier(_asked(options), result, ask)
            return _write(options, easier, words, result)
    except UnsupportedArchitectureError as error:
        raise UserError("recommend.unsupported", model=model.name, reason=str(error)) from None
    if options.format == "json":
        from kb.report.recommend.json_report import recommend_json

        cli.put(recommend_json(result, words, __version__, catalog.version))
    else:
        from kb.report.recommend.text import recommend_text
        from kb.report.terminal import choose_style

        cli.put(recommend_text(result, words, choose_style(sys.stdout, options.color)))
    splits = result.training.splits if result.training else None
    held = result.setup is not None and (splits is None or bool(splits.exact))
    return cli.CLEAN if held else cli.FINDINGS


def _write(options: argparse.Namespace, easier: Answer, words: Words, first: Answer) -> int:
    """Print the config alone; 1 where nothing fits, said on standard error."""
    assert first.training is not None  # of a training run
    asked_length = first.training.attempts[0].setup.max_source_length
    shortened = easier.setup is not None and easier.setup.max_source_length != asked_length
    text = config_file(easier, options.written_as, words, asked_length=asked_length if shortened else None)
    if text is None:
        model, gpu = first.estimator.model.name, first.estimator.gpu
        name = short_name(gpu.gpu) if gpu is not None and gpu.gpu else options.gpu
        print(
            f"kb: {words('recommend.nothing_to_write', method=options.method, model=model, gpu=name)}", file=sys.stderr
        )
        return cli.FINDINGS
    cli.put(text)
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.recommend.{key}")

    parser = cli.Parser(words=words, prog="kb recommend", description=say("about"), epilog=say("examples"))
    parser.add_argument("--model", metavar="ID", help=say("model"))
    parser.add_argument("--model-config", metavar="FILE", help=say("model_config"))
    parser.add_argument("--task", choices=("train", "inference"), default="train", help=say("task"))
    machine = parser.add_argument_group(say("group_machine"))
    machine.add_argument("--gpu", metavar="ID", help=say("gpu"))
    machine.add_argument("--gpus", type=int, metavar="N", help=say("gpus"))
    machine.add_argument("--host-memory", metavar="SIZE", help=say("host_memory"))
    machine.add_argument("--cpus", metavar="N", help=say("cpus"))
    run = parser.add_argument_group(say("group_run"))
    run.add_argument("--method", choices=("auto", "full", "lora", "qlora"), default="auto", help=say("method"))
    run.add_argument("--effective-batch", type=int, metavar="N", help=say("effective_batch"))
    run.add_argument("--seq-in", type=int, metavar="TOKENS", help=say("seq_in"))
    run.add_argument("--seq-out", type=int, metavar="TOKENS", help=say("seq_out"))
    run.add_argument("--eval-batch", type=int, metavar="N", help=say("eval_batch"))
    run.add_argument("--beams", type=int, metavar="N", help=say("beams"))
    run.add_argument("--gen-length", type=int, metavar="TOKENS", help=say("gen_length"))
    run.add_argument("--folds", type=int, metavar="N", help=say("folds"))
    run.add_argument("--processes", type=int, metavar="N", help=say("processes"))
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=say("set"))
    output = parser.add_argument_group(say("group_output"))
    output.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    output.add_argument("--as", dest="written_as", choices=FORMATS, metavar="FORMAT", help=say("as"))
    output.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    output.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=say("color"))
    output.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))
    return parser


def _asked(options: argparse.Namespace) -> Any:
    from kb.advice.recommend import Asked

    return Asked(
        method=options.method,
        effective_batch=options.effective_batch,
        source_length=options.seq_in,
        target_length=options.seq_out,
        eval_batch=options.eval_batch,
        beams=options.beams,
        generation_length=options.gen_length,
    )


def _check_numbers(options: argparse.Namespace) -> None:
    for name in NUMBERS:
        value = getattr(options, name)
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            option = f"--{name.replace('_', '-')}"
            raise UserError("recommend.bad_number", option=option, value=str(value), most=LARGEST_NUMBER)


def _check_lengths(options: argparse.Namespace, model: Model) -> None:
    """Learned positions end somewhere: a longer input is an index error, not a matter of memory."""
    from kb.advice.usual import longest_input

    most = longest_input(model)
    for name in ("seq_in", "seq_out", "gen_length"):
        value = getattr(options, name)
        if most is not None and value is not None and value > most:
            option = f"--{name.replace('_', '-')}"
            raise UserError("recommend.too_long", option=option, value=str(value), model=model.name, most=str(most))


def _model(options: argparse.Namespace, catalog: Catalog) -> Model:
    if options.model_config:
        from kb.session.models import read_model_config

        return read_model_config(options.model_config)
    if not options.model:
        raise UserError("recommend.no_model")
    from kb.session.models import named_model

    return named_model(options.model, catalog)


def _given(texts: Sequence[str], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Answers for the decision tree: ``solar_api=true``, ``max_new_tokens=120``."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in variables:
            raise UserError("recommend.bad_set", text=text[:100], known=", ".join(variables))
        given[name] = _value(value.strip(), variables[name], text)
    return given


def _value(text: str, variable: Mapping[str, Any], whole: str) -> Any:
    kind = variable["type"]
    if kind == "bool":
        if text.lower() in ("true", "yes", "1"):
            return True
        if text.lower() in ("false", "no", "0"):
            return False
    elif kind == "text":
        return text
    else:
        try:
            number = int(text) if kind == "integer" else float(text)
        except ValueError:
            number = None
        if number is not None and variable.get("low", number) <= number <= variable.get("high", number):
            return number
    raise UserError("recommend.bad_set_value", text=whole[:100], kind=kind)
