"""A server made ready from what a user names: its model, its release, its GPU, its options."""

import json
import os
from collections.abc import Mapping
from typing import Any

from kb.advice.serving_facts import LENGTHS, SHARES, TOKENS
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import Facts
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError, architecture_from_config
from kb.memory.serving.setup import (
    CACHE_TYPES,
    FLOATS,
    PACKED,
    Measured,
    ServedModel,
    ServingSetup,
    served_model,
    served_model_of_config,
)
from kb.session.models import config_file, named_model, read_config
from kb.session.seen import cached_config_of, folder_config

INDEX = "model.safetensors.index.json"
MAX_INDEX = 64 << 20  # bytes of a list of tensors
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ODD_NAMES = {"float": "float32", "half": "float16", "auto": None}


class Known(NamedTuple):
    """A model to serve with what its files say: the type and packing of its weights, and their bytes in all."""

    model: ServedModel
    dtype: str
    quantization: str | None
    checkpoint_bytes: int | None
    relative: bool = False  # of a row of another name: its size is the same, its positions may not be


def known_model(name: str | None, config_path: str | None, catalog: Catalog) -> Known:
    """The model of a name, or of a ``config.json``, whether or not its training is predicted.

    Raises:
        UserError: there is none of the name, or its config cannot be used.
    """
    path = config_path or (name and (folder_config(name) or cached_config_of(name))) or None
    if path is None:
        assert name is not None
        row = named_model(name, catalog)
        model = _of_architecture(row.name, row.architecture, row.max_length)
        relative = name.casefold() not in (row.name.casefold(), row.id.casefold())
        return Known(model, _DTYPES[row.weights_dtype or "bf16"], None, None, relative)
    data = read_config(path)
    shown = name or path
    try:
        positions = data.get("max_position_embeddings")
        architecture = architecture_from_config(data)
        model = _of_architecture(shown, architecture, positions if isinstance(positions, int) else None)
    except UnsupportedArchitectureError:
        try:
            model = served_model_of_config(shown, data)
        except UnsupportedArchitectureError as error:
            raise UserError("serving.bad_config", path=config_file(path), reason=str(error)) from None
    dtype = str(data.get("dtype") or data.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    packing, known = _packing(data.get("quantization_config"))
    size = _checkpoint_bytes(config_file(path))
    if not known and size is None:
        model = model._replace(weights=None)
    return Known(model, dtype if dtype in FLOATS else "bfloat16", packing, size)


def _of_architecture(name: str, architecture: Any, positions: int | None) -> ServedModel:
    try:
        return served_model(name, architecture, positions)
    except UnsupportedArchitectureError:
        raise UserError("serving.no_decoder", name=name, type=architecture.model_type) from None


def _packing(config: object) -> tuple[str | None, bool]:
    """How a checkpoint is packed, and whether its bytes follow from that."""
    if not isinstance(config, Mapping):
        return None, True
    method = str(config.get("quant_method", "")).casefold()
    if method in ("awq", "gptq"):
        return (method, True) if config.get("bits", config.get("w_bit")) == 4 else (None, False)
    if method == "fp8":
        return "fp8", True
    if method == "bitsandbytes":
        return ("bitsandbytes", True) if config.get("load_in_4bit") else (None, False)
    return None, False


def _checkpoint_bytes(config: str) -> int | None:
    """Bytes of all tensors, as the list beside the config says them."""
    path = os.path.join(os.path.dirname(config), INDEX)
    try:
        data = json.loads(read_at_most(path, MAX_INDEX))
        size = data["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return int(size) if isinstance(size, int | float) and size > 0 else None


def release_of(engine: Mapping[str, Any], named: str | None) -> tuple[tuple[int, ...], bool]:
    """The release meant, and whether the named one is known: later than the newest looked at is not.

    Raises:
        UserError: the text is no version.
    """
    newest = parse_version(engine["newest"])
    if named is None:
        return newest, True
    try:
        release = parse_version(named.removeprefix("v"))
    except ValueError:
        raise UserError("serving.bad_version", value=named[:100], newest=engine["newest"]) from None
    return (newest, False) if release > newest or len(release) > 4 else (release, True)


def checked(setup: ServingSetup, model: ServedModel) -> ServingSetup:
    """The setup, where the server could start with it.

    Raises:
        UserError: a share outside 0 to 1, a length beyond the model, ranks that do not divide its heads or layers, a
            type that is not known.
    """
    if setup.utilization is not None and not 0 < setup.utilization <= 1:
        raise UserError("serving.bad_share", value=setup.utilization)
    length, refuses = setup.max_model_len, setup.engine in ("vllm", "sglang", "tgi")
    if length and model.positions and length > model.positions and refuses:
        raise UserError("serving.too_long", length=length, model=model.name, most=model.positions)
    if model.heads % setup.tensor_parallel:
        raise UserError("serving.heads", ranks=setup.tensor_parallel, heads=model.heads, model=model.name)
    if model.layers < setup.pipeline_parallel:
        raise UserError("serving.layers", stages=setup.pipeline_parallel, layers=model.layers, model=model.name)
    if setup.kv_cache_dtype not in ("auto", *CACHE_TYPES):
        known = ", ".join(("auto", *CACHE_TYPES))
        raise UserError("serving.bad_choice", option="--kv-cache-dtype", value=setup.kv_cache_dtype[:50], known=known)
    if setup.quantization is not None and setup.quantization not in PACKED:
        known = ", ".join(PACKED)
        raise UserError("serving.bad_choice", option="--quantization", value=setup.quantization[:50], known=known)
    return setup


def with_checkpoint(setup: ServingSetup, size: int | None) -> ServingSetup:
    """The setup with the checkpoint's own bytes, shared out over the ranks, where nobody measured the weights."""
    if size is None or setup.measured.weights is not None:
        return setup
    each = size // (setup.tensor_parallel * setup.pipeline_parallel)
    return setup._replace(measured=Measured(**{**setup.measured._asdict(), "weights": each}))


class SaidOptions(NamedTuple):
    """What a file or a command says of its server, by the names of ``kb estimate``'s options; ``unknown`` are options
    that it sets to something which is not known, such as a variable.
    """

    engine: str
    values: Mapping[str, Any]
    unknown: tuple[str, ...]


def options_said(unit: Unit, facts: Facts) -> SaidOptions:
    """The options that a unit of a server's format sets; of those that it leaves out the engine decides."""
    engine = str(facts.get("serving.engine"))
    lengths = LENGTHS[engine]
    cache = "serving.cache_type_k" if engine == "llama.cpp" else "serving.kv_cache_dtype"
    names = {
        "model": "model.name",
        "gpu_memory_utilization": SHARES.get(engine, ""),
        "max_model_len": lengths,
        "max_num_batched_tokens": TOKENS.get(engine, ""),
        "kv_cache_dtype": cache,
        "kv_cache_memory": "serving.kv_cache_memory_bytes",
        "cpu_offload": "serving.cpu_offload_gb",
        **{name: f"serving.{name}" for name in (
            "max_num_seqs", "tensor_parallel_size", "pipeline_parallel_size", "quantization", "block_size",
            "enforce_eager",
        )},
    }  # fmt: skip
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for option, name in names.items():
        if not name or unit.setting(name) is None:
            continue
        value = facts.get(name)
        if is_unknown(value) or value is None:
            unknown.append(option)
        else:
            found[option] = value
    release = facts.get("serving.release")
    if isinstance(release, tuple):
        found["engine_version"] = ".".join(map(str, release))
    for option, unit_of in (("kv_cache_memory", ""), ("cpu_offload", " GiB")):
        if option in found:
            found[option] = f"{found[option]}{unit_of or ' B'}"
    found["python_llm"] = unit.path.endswith((".py", ".ipynb"))
    return SaidOptions(engine, found, tuple(unknown))
