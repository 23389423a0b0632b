"""Measured runs as a file of ``rules/measurements``: a row exists only if it was measured."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.torch_runs.probe.trial import Outcome, Trial

Row = dict[str, Any]
PLAIN = (str, int, float, bool)


def campaign_yaml(
    identity: str,
    rows: Sequence[Row],
    *,
    title: Mapping[str, str],
    about: Mapping[str, str],
    date: str,
    command: str,
    machine: Mapping[str, Any],
    stack: Mapping[str, str],
    models: Mapping[str, Mapping[str, Any]],
    source: str,
    writer: str,
) -> str:
    """The file as rules/schema/measurement.json wants it, a row to a line.

    Args:
        models: architectures in config.json's names, by the name that the rows use.
        writer: what wrote the file, for the line that says so.
    """
    lines = [
        "# yaml-language-server: $schema=../schema/measurement.json",
        f"# Written by {writer}: run it again rather than edit this.",
        f"id: {identity}",
        "version: 1",
        'since: "0.1.0"',
        "title:",
        *(f"  {language}: {_text(text)}" for language, text in title.items()),
        "about:",
        *(f"  {language}: {_text(text)}" for language, text in about.items()),
        "kind: gpu",
        f'date: "{date}"',
        f"command: {_text(command)}",
        f"machine: {flow(machine)}",
        f"stack: {flow(stack)}",
        "status: measured",
        f"source: {source}",
        "models:",
    ]
    for name in sorted(models):
        lines += [f"  {name}:", f"    architecture: {flow(models[name])}"]
    return "\n".join([*lines, "rows:", *(f"  - {flow(row)}" for row in rows), f"sources: [{source}]", ""])


def rows_of(pair: tuple[Trial, Outcome], model: str) -> list[Row]:
    """A trial's rows, one for each phase that it passed, and one for the phase in which GPU memory ran out."""
    trial, outcome = pair
    setup = setup_from(trial.setup)
    found = []
    for phase in trial.phases:
        row = {"model": model, "task": phase, **_settings(setup, phase)}
        if phase in outcome.phases:
            sizes = {name: dict(outcome.phases[name]) for name in _parts(phase) if name in outcome.phases}
            beside: Row = {"trainable": outcome.trainable} if outcome.trainable is not None and phase == "train" else {}
            if phase == "train" and outcome.step_seconds:
                beside["step_seconds"] = outcome.step_seconds
            found.append({**row, **beside, "phases": sizes})
        elif outcome.status == "oom" and outcome.resource == "gpu" and outcome.phase == phase:
            found.append({**row, "outcome": "oom"})
    return found


def architecture_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json's plain values: dimensions and switches."""
    return {name: value for name, value in config.items() if isinstance(value, PLAIN)}


def flow(data: Mapping[str, Any]) -> str:
    """Strings in quotes, so that no version becomes a number; JSON is YAML."""
    return "{" + ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in data.items()) + "}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _parts(phase: str) -> tuple[str, ...]:
    return ("load", "forward", "backward", "step", "train") if phase == "train" else ("load", phase)


def _settings(setup: TrainingSetup, phase: str) -> Row:
    """The run in the names of rules/schema/measurement.json; generation has beams, and its new tokens as target."""
    autocast = "fp16" if setup.fp16 else "bf16" if setup.bf16 else None
    row: Row = {
        "method": setup.method,
        "precision": autocast or ("fp32" if setup.weights == "fp32" else f"pure-{setup.weights}"),
        "attention": setup.attn_implementation,
        "gradient_checkpointing": setup.gradient_checkpointing,
        "optimizer": setup.optim,
        "batch": setup.per_device_train_batch_size if phase == "train" else setup.per_device_eval_batch_size,
        "source_length": setup.max_source_length,
        "target_length": setup.generation_max_length if phase == "generate" else setup.max_target_length,
    }
    if setup.gradient_checkpointing:
        row["use_reentrant"] = setup.use_reentrant
    if phase == "generate" and setup.generation_num_beams > 1:
        row["beams"] = setup.generation_num_beams
    if setup.method != "full":
        row |= {"lora_rank": setup.lora_r, "lora_dropout": setup.lora_dropout}
        if setup.lora_target_modules:
            row["lora_targets"] = list(setup.lora_target_modules)
    if setup.method == "qlora":
        row["double_quant"] = setup.bnb_4bit_use_double_quant
    return row
