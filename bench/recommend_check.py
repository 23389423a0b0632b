"""``kb recommend`` held against ``kb check``: what check says of the configs that recommend writes.

    PYTHONPATH=src python bench/recommend_check.py [CONFIGS] [SEED]

Draws a model, a GPU, a method, a task and a format at random, again and again, and checks what is written for them on
the same machine. Prints each finding, note and verdict other than "fits", with where it came up; exits with 1 if any.
"""

import collections
import random
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

from kb.advice.fit.estimator import Estimator
from kb.advice.fit.recommend_answer import Answer, answer, answer_easier
from kb.advice.question import METHODS, Question
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.memory import UnsupportedArchitectureError
from kb.report.recommend.formats import FORMATS, LOADS
from kb.report.recommend.text import config_file, config_yaml
from kb.report.words import Words
from kb.session import cli
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

CATALOG, GUIDE = load_catalog(), load_guide()
WORDS = Words("en", cli.load_words_or_none("en"), CATALOG.facts)
RELEASES = {"transformers": "5.23.0"}
# What is true of the method that was asked for, on this model.
# The older of two names, which every release before transformers 6 takes: what is written is for any of them.
TAKEN_BY_EVERY_RELEASE = ("gradient-checkpointing-renamed",)
OF_THE_METHOD = {("t5-quantization-keeps-wo-unquantized", "qlora")}


class Case(NamedTuple):
    """One combination. ``said`` are the rules that fired, the note, and a verdict other than that it fits."""

    model: str
    gpu: str
    method: str
    task: str
    format: str
    text: str
    result: UnitResult
    said: tuple[str, ...]


def cases(seed: int, catalog: Catalog = CATALOG) -> Iterator[Case | None]:
    """Combinations without end; None for one that has no config: nothing fits, or the format does not train it."""
    draw = random.Random(seed)
    models, gpus, methods = sorted(catalog.models), sorted(catalog.gpus), ("auto", *METHODS[:3])
    while True:
        task: Literal["train", "inference"] = draw.choice(("train", "train", "train", "inference"))
        form = draw.choice(FORMATS) if task == "train" else "team"
        yield case(draw.choice(models), draw.choice(gpus), draw.choice(methods), task, form, catalog)


def case(
    model: str,
    gpu: str,
    method: str,
    task: Literal["train", "inference"],
    form: str,
    catalog: Catalog = CATALOG,
) -> Case | None:
    question = Question.of(
        gpu=gpu, host_memory="200GB", cpus="16", versions=RELEASES, method=method if task == "train" else None,
        loads=LOADS.get(form, "usual") if task == "train" else "usual",
    )  # fmt: skip
    checker = file_checker(catalog, Project(), question)
    estimator = Estimator(catalog.models[model], checker.machine, catalog.constants)

    def ask(other: Question) -> Answer:
        return answer(task, other, estimator, catalog, GUIDE)

    try:
        found = answer_easier(question, ask(question), ask)
        text = config_file(found, form, WORDS, renamed=True) if task == "train" else config_yaml(found, WORDS)
    except (UserError, UnsupportedArchitectureError):  # images of no known size
        return None
    if text is None:
        return None
    name = {"command": "run.sh", "python": "run.py"}.get(form, "run.yaml")
    (file,) = run([Input(name, raw=text.encode())], checker).files
    (result,) = file.results
    said = [
        each.rule
        for each in result.findings
        if (each.rule, method) not in OF_THE_METHOD and each.rule not in TAKEN_BY_EVERY_RELEASE
    ]
    said += [str(result.note)] if result.note else []
    if result.prediction is None or result.prediction.verdict.status != "fits":
        said.append(f"verdict {result.prediction and result.prediction.verdict.status}")
    return Case(model, gpu, method, task, form, text, result, tuple(said))


def main() -> int:
    wanted, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 500, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    written, none = 0, 0
    said: dict[str, list[Case]] = collections.defaultdict(list)
    for each in cases(seed):
        if each is None:
            none += 1
            continue
        written += 1
        for what in each.said:
            said[what].append(each)
        if written >= wanted:
            break
    dirty = len({each[:5] for found in said.values() for each in found})
    print(f"{written} configs ({none} combinations have none), of {dirty} something is said")
    for what, found in sorted(said.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):4} {what}: {', '.join('/'.join(one[:5]) for one in found[:3])}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
