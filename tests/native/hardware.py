"""The GPUs of ``rules/hardware``, read straight from their files."""

import os

import yaml

from kb.core.hardware import Gpu
from kb.core.units import BYTES_PER_UNIT

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "rules", "hardware")


def gpus() -> dict[str, Gpu]:
    rows = []
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            rows.append(yaml.safe_load(file))
    return {row["id"]: _gpu(row) for row in rows}


def _gpu(row: dict) -> Gpu:
    memory = row["memory_total"][0]
    major, minor = row["compute_capability"]["value"].split(".")
    return Gpu(
        id=row["id"],
        name=row["name"],
        aliases=tuple(row["aliases"]),
        memory_total=memory["value"] * BYTES_PER_UNIT[memory["unit"].upper()],
        compute_capability=(int(major), int(minor)),
        native_bf16=row["native_bf16"]["value"],
    )
