"""Commands that were measured (bench/gpu/trl_runs.py) beside what kb says of their files: reader and engine in one.

A row's command, config and releases are written to a folder as a project has them, and kb reads that.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from accuracy_rows import ROOT, Row

from kb.advice.question import Question
from kb.config.text.parsing import LOADER
from kb.core.catalog import Catalog
from kb.memory.engine.predict import record_runs
from kb.session.estimating import estimate_sections, sections_of
from kb.session.prepare import file_checker
from kb.session.project import find_project


def measured_commands(catalog: Catalog) -> Iterator[tuple[Row, dict[str, int]]]:
    """Each row with kb's figures: the highest of all phases, as the row's are."""
    for path in sorted((ROOT / "rules" / "measurements").glob("*.yaml")):
        document = yaml.load(path.read_text("utf-8"), LOADER)
        if document["kind"] == "gpu" and "config" in document["rows"][0]:
            for number, row in enumerate(document["rows"]):
                yield _compared(document, number, row, catalog)


def _compared(
    document: Mapping[str, Any], number: int, row: Mapping[str, Any], catalog: Catalog
) -> tuple[Row, dict[str, int]]:
    gpu = catalog.gpus[document["machine"]["gpu"]]
    with tempfile.TemporaryDirectory() as folder:
        config = document["models"][row["model"]]["architecture"]
        setup, architecture = _as_read(Path(folder), row, config, document, catalog)
    recordings = record_runs(setup._replace(padded=False), architecture, gpu.compute_capability)
    peaks = [peak for recording in recordings for name, peak in recording.phases.items() if name != "save"]
    truth = {name.removesuffix("_bytes"): size for name, size in row["phases"]["train"].items()}
    found = {"allocated": max(each.allocated for each in peaks), "reserved": max(each.reserved for each in peaks)}
    return Row(
        campaign=f"{document['id']}, {_kind(row['run'])}",
        id=f"{document['id']}-{number}",
        model=row["model"],
        config=config,
        setup=setup,
        phase="train",
        truth=truth,
        gpu=gpu,
        memory_bytes=gpu.memory_total,
    ), found


def _kind(run: str) -> str:
    """What a command trains: of ``trl dpo --config …`` and ``torchrun --nproc_per_node 1 -m trl.scripts.sft …``."""
    words = run.split()
    return words[1] if words[0] == "trl" else next(word for word in words if "." in word).rpartition(".")[2]


def _as_read(
    folder: Path, row: Mapping[str, Any], config: Mapping[str, Any], document: Mapping[str, Any], catalog: Catalog
) -> tuple[Any, Any]:
    """The run and the model that kb finds in the folder."""
    model = folder / row["config"]["model_name_or_path"]
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(row["config"]), "utf-8")
    (folder / "run.sh").write_text(f"{row['run']}\n", "utf-8")
    pins = [f"{name}=={version}" for name, version in document["stack"].items() if name != "python"]
    (folder / "requirements.txt").write_text("\n".join(pins) + "\n", "utf-8")
    facts = {}
    if "answer_tokens" in row:  # no option says how long a prompt is: that is the data's to say
        facts = {"trl.max_prompt_length": row["tokens"] - row["answer_tokens"]}
    (folder / "kb.toml").write_text("[facts]\n" + "".join(f'"{name}" = {value}\n' for name, value in facts.items()))
    path = str(folder / "run.sh")
    question = Question.of(config=path, gpu=document["machine"]["gpu"])
    checker = file_checker(catalog, find_project(str(folder)), question)
    (found,), _ = estimate_sections(sections_of(path, None, checker), path, question.run, checker)
    assert found.model is not None
    return found.setup, found.model.architecture
