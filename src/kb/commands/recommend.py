"""``kb.recommend``: the config to start from on a GPU, beside what the original guide says."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kb import __version__
from kb.advice.fit.attempts import TRAINERS
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.recommend_answer import DECISION, Answer, answer, answer_easier
from kb.advice.question import Question, RunSettings
from kb.advice.run.no_prediction import unpredictable
from kb.advice.run.row_lengths import longest_input
from kb.commands.options import MACHINE, Options, check_numbers, question_of
from kb.core.catalog import Catalog
from kb.core.model import Model
from kb.core.release import parse_version
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.memory import UnsupportedArchitectureError
from kb.report.recommend.formats import FORMATS, LOADS, RENAMED_SINCE, check_trained_from
from kb.report.recommend.text import config_file, recommend_json, recommend_text
from kb.report.terminal import choose_style
from kb.report.values import short_name
from kb.report.words import Words
from kb.session import cli
from kb.session.around import named_machine, releases_here
from kb.session.knowledge import open_knowledge
from kb.session.models import named_model, read_model_config
from kb.session.project import find_project

TASKS = ("train", "inference")


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Recommend; 0 where the config holds all that was asked, 1 where something of it cannot be had."""
    messages = cli.load_words_or_none(language)
    options = build_parser(messages).parse_args(arguments)
    question = question_of(options)
    project = find_project(os.getcwd())
    question = question._replace(versions=releases_here(project, ("transformers",)))
    check_numbers({"--folds": options.folds, "--processes": options.processes})
    catalog, words = open_knowledge(options, project, language, messages)
    guide = load_guide(options.rules)
    model = _model(question, catalog)
    machine = named_machine(catalog, project, question.machine)
    if not machine.gpus:
        raise UserError("recommend.no_gpu")
    _check_lengths(question.run, model)
    trainer = options.use if options.use in TRAINERS else None
    if options.written_as is not None and options.use == "inference":
        raise UserError("recommend.as_inference", format=options.written_as)
    if trainer is not None and options.written_as not in (None, "trl"):
        raise UserError("recommend.as_trainer", format=options.written_as, task=trainer)
    if trainer is None and options.written_as is not None:  # before the memory engine is asked, for seconds
        check_trained_from(options.written_as, model.architecture, model.name)
    given = _given(options.set, guide.get("decisions", {}).get(DECISION, {}).get("variables", {}))
    ask = partial(
        answer,
        "train" if trainer else options.use,
        estimator=Estimator(model, machine, catalog.constants),
        catalog=catalog,
        guide=guide,
        world=question.machine.gpus or len(machine.gpus),
        folds=options.folds or 1,
        processes=options.processes or 1,
        given=given,
    )
    try:
        loads = LOADS.get("trl" if trainer else options.written_as, "usual")
        question = question._replace(loads=loads, trainer=trainer, evaluate=trainer is None)
        result = ask(question)
        if options.written_as is not None:
            return _write(options, question, answer_easier(question, result, ask), words, result)
    except UnsupportedArchitectureError as error:
        raise unpredictable(error, model.name) from None
    if options.format == "json":
        cli.put(recommend_json(result, words, __version__, catalog.version))
    else:
        cli.put(recommend_text(result, words, choose_style(sys.stdout, options.color)))
    splits = result.training.splits if result.training else None
    held = result.setup is not None and (splits is None or bool(splits.exact))
    return cli.CLEAN if held else cli.FINDINGS


def _write(options: argparse.Namespace, question: Question, easier: Answer, words: Words, first: Answer) -> int:
    """Print the config alone; 1 where nothing fits, said on standard error."""
    assert first.training is not None  # of a training run
    asked_length = first.training.attempts[0].setup.max_source_length
    shortened = easier.setup is not None and easier.setup.max_source_length != asked_length
    transformers = question.versions.get("transformers")
    renamed = transformers is not None and parse_version(transformers) >= RENAMED_SINCE
    shorter = asked_length if shortened else None
    text = config_file(easier, options.written_as, words, asked_length=shorter, renamed=renamed)
    if text is None:
        model, gpu = first.estimator.model.name, first.estimator.gpu
        name = short_name(gpu.gpu) if gpu is not None and gpu.gpu else question.machine.gpu
        method = question.run.method or "auto"
        print(f"kb: {words('recommend.nothing_to_write', method=method, model=model, gpu=name)}", file=sys.stderr)
        return cli.FINDINGS
    cli.put(text)
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "recommend")
    parser, say = made.parser, made.say
    made.add(parser, "model", "model_config")
    parser.add_argument("--task", dest="use", choices=(*TASKS, *TRAINERS), default="train", help=say("task"))
    made.add(made.group("machine"), *MACHINE)
    run = made.group("run")
    made.add(run, "method", choices=("auto", "full", "lora", "qlora"))
    made.add(run, "effective_batch", "source_length", "target_length", "eval_batch", "beams", "generation_length")
    run.add_argument("--folds", type=cli.number(words), metavar="N", help=say("folds"))
    run.add_argument("--processes", type=cli.number(words), metavar="N", help=say("processes"))
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=say("set"))
    output = made.group("output")
    made.output(output)
    output.add_argument("--as", dest="written_as", choices=FORMATS, metavar="FORMAT", help=say("as"))
    return parser


def _check_lengths(run: RunSettings, model: Model) -> None:
    """Learned positions end somewhere: a longer input is an index error, not a matter of memory."""
    most = model.architecture.max_positions if model.architecture.hears else longest_input(model)
    lengths = {"--seq-in": run.source_length, "--seq-out": run.target_length, "--gen-length": run.generation_length}
    for option, value in lengths.items():
        if most is not None and value is not None and value > most:
            raise UserError("recommend.too_long", option=option, value=str(value), model=model.name, most=str(most))


def _model(question: Question, catalog: Catalog) -> Model:
    if question.model_config:
        return read_model_config(question.model_config)
    if not question.run.model:
        raise UserError("recommend.no_model")

    return named_model(question.run.model, catalog)


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
