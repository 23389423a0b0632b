"""What fits where: the largest batches of every model on every GPU, computed once for both languages and for data/."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from kb.advice.attempts import WAYS, targets_for
from kb.advice.precision import precision_for
from kb.advice.recommend import Asked, alone_at_inference, base_setup
from kb.advice.room import Room, on_gpu
from kb.core.catalog import Catalog
from kb.core.hardware import Gpu
from kb.core.model import Model
from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog
from kb.memory import UnsupportedArchitectureError

# the one that takes most comes first
SHOWN_WAYS = ("full", "full_checkpointing", "lora", "qlora", "qlora_checkpointing")
LENGTHS = (128, 256, 512, 1024, 2048)  # tokens of input, of the heat maps


class Row(NamedTuple):
    """One model on one GPU: the largest batches that fit with their whole error band; 0 where not even 1 does.

    ``train`` is by way (``full``, ``lora``, …); ``evaluation`` is beside the optimizer of full training;
    ``inference`` is generating, or the forward pass, alone. Lengths in tokens. ``peak_bytes`` is what full training
    uses at batch 1.
    """

    model: str
    gpu: str
    precision: str
    source_length: int
    target_length: int
    train: Mapping[str, int]
    evaluation: int
    inference: int
    peak_bytes: int


def fit_of(model: Model, gpu: Gpu, constants: Mapping[str, float]) -> Row | None:
    """None where the model's family has no closed form."""
    room = Room(model, on_gpu(gpu), constants)
    try:
        base, precision = base_of(model, room)
        train = {
            way: room.largest(base._replace(**WAYS[way], do_eval=False), "per_device_train_batch_size")
            for way in SHOWN_WAYS
        }
        alone = room.predict(base._replace(do_eval=False, per_device_train_batch_size=1)).phase("train")
        assert alone is not None  # it trains
        return Row(
            model=model.id,
            gpu=gpu.id,
            precision=precision,
            source_length=base.max_source_length,
            target_length=base.max_target_length,
            train=train,
            evaluation=room.largest(base, "per_device_eval_batch_size"),
            inference=room.largest(alone_at_inference(base), "inference_batch_size"),
            peak_bytes=alone.process_used_bytes,
        )
    except UnsupportedArchitectureError:
        return None


def base_of(model: Model, room: Room) -> tuple[TrainingSetup, str]:
    """Full training at the usual lengths in the precision for the GPU, and that precision."""
    setup = precision_for(room.gpu, model.architecture).of(base_setup(Asked(), room))
    setup = setup._replace(lora_target_modules=targets_for(model.architecture))
    return setup, "bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32"


def heat_map(
    model: Model, gpu: Gpu, constants: Mapping[str, float], batches: tuple[int, ...], way: str = "full"
) -> list[list[str]]:
    """The verdict of training in a way for each length (rows, ``LENGTHS``) and batch (columns)."""
    room = Room(model, on_gpu(gpu), constants)
    base, _ = base_of(model, room)
    base = base._replace(**WAYS[way])
    longest = model.max_length or model.architecture.max_positions
    rows = []
    for length in LENGTHS:
        if longest is not None and length > longest and model.architecture.max_positions:
            rows.append(["beyond"] * len(batches))
            continue
        row: list[str] = []
        for batch in batches:
            setup = base._replace(max_source_length=length, per_device_train_batch_size=batch, do_eval=False)
            # what runs out of memory does so with every larger batch
            row.append("oom" if row[-1:] == ["oom"] else room.predict(setup).verdict.status)
        rows.append(row)
    return rows


def all_fits(cache_folder: str) -> list[Row]:
    """Every row, from the cache where rules and memory model are the same as when it was made."""
    path = os.path.join(cache_folder, f"fits-{_mark()}.json")
    try:
        with open(path, encoding="utf-8") as stream:
            return [Row(*row) for row in json.load(stream)]
    except (OSError, ValueError):
        rows = _computed(load_catalog())
        os.makedirs(cache_folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(rows, stream)
        return rows


def _computed(catalog: Catalog) -> list[Row]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor() as pool:
        found = pool.map(_rows_of, catalog.models.keys(), chunksize=4)
        return [row for rows in found for row in rows]


def _rows_of(name: str) -> list[Row]:
    catalog = load_catalog()
    model = catalog.models[name]
    rows = (fit_of(model, gpu, catalog.constants) for gpu in catalog.gpus.values())
    return [row for row in rows if row is not None]


def _mark() -> str:
    """A hash of everything that the rows depend on: the catalogue, and the code of the floors that compute."""
    seen = hashlib.sha256(repr(load_catalog()).encode())
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [os.path.join(package, floor) for floor in ("advice", "core", "memory")]
    code = [os.path.join(folder, name) for folder in folders for name in os.listdir(folder) if name.endswith(".py")]
    for path in [*sorted(code), os.path.abspath(__file__)]:
        with open(path, "rb") as stream:
            seen.update(stream.read())
    return seen.hexdigest()[:16]
