"""The GPUs of ``rules/hardware``, read straight from their files."""

from functools import cache
from pathlib import Path

from kb.core.hardware import Gpu
from kb.core.units import BYTES_PER_UNIT
from yaml_file import read_yaml

FOLDER = Path(__file__).parents[2] / "rules" / "hardware"


@cache
def gpus() -> dict[str, Gpu]:
    rows = [read_yaml(path) for path in sorted(FOLDER.iterdir())]
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
