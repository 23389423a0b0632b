"""``kb estimate --engine``: what an inference server holds on a GPU, and whether it starts."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.facts.serving_facts import LENGTHS, SHARES, TOKENS, TYPES, features_used, prefill_of_tgi, stored_packing
from kb.advice.facts.unit_facts import SERVERS
from kb.advice.question import NamedMachine
from kb.advice.run.named_model import packed_by_name
from kb.commands.options import RUN, flag_of, size_of
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import Facts
from kb.core.hardware import Gpu
from kb.core.record import NamedTuple
from kb.core.release import parse_version
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.memory import UnsupportedArchitectureError, architecture_from_config
from kb.memory.serving.answer import changes, load, serve, smallest, unsure
from kb.memory.serving.budget import NO_CHUNKS_BELOW
from kb.memory.serving.setup import (
    CACHE_TYPES,
    ENGINES,
    FLOATS,
    PACKED,
    Measured,
    ServedModel,
    ServingSetup,
    as_packed,
    packing_of,
    served_model,
    served_model_of_config,
)
from kb.report.serving_report import Answer, serving_json, serving_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli
from kb.session.around import named_machine
from kb.session.file import FileChecker
from kb.session.lookups import cached_config_of, folder_config
from kb.session.models import config_file, named_model, read_config
from kb.session.project import find_project

INDEX = "model.safetensors.index.json"
MAX_INDEX = 64 << 20  # bytes of a list of tensors
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MOST = 100_000_000  # of any whole number here
WHOLE = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size",
    "block_size", "requests", "input", "output",
)  # fmt: skip
SIZES = ("gpu_memory", "weights", "non_torch", "activations", "graphs", "kv_cache_memory", "cpu_offload")
OTHERS = (
    "engine_version", "gpu_memory_utilization", "dtype", "kv_cache_dtype", "quantization", "enforce_eager",
    "python_llm",
)  # fmt: skip
# Flags of what holds memory of a GPU that is not counted: slots for adapters, and a draft, which some methods lack.
BESIDE = ("enable_lora", "lora_paths", "speculative_model", "speculative_config", "speculative_draft_model_path")
CAPS = ("max_total_tokens", "num_gpu_blocks_override")  # of SGLang, of vLLM
DRAFTLESS = ("ngram", "ngram_gpu", "suffix")
OF_TRAINING = ("config", "section", "dialect", "task", *RUN, "zero_stage", "fsdp", "simulate")


def add_options(parser: Any, words: cli.Words) -> None:
    """The options of a server, in a group of their own."""
    group = parser.add_argument_group(cli.said(words, "cli.serving.group"))

    def add(name: str, **how: Any) -> None:
        group.add_argument(flag_of(name), help=cli.said(words, f"cli.serving.{name}"), **how)

    add("engine", choices=ENGINES)
    add("engine_version", metavar="VERSION")
    add("gpu_memory_utilization", type=cli.number(words, whole=False), metavar="SHARE")
    for name in WHOLE[:5]:
        add(name, type=cli.number(words), metavar="N")
    add("dtype", metavar="TYPE")
    add("kv_cache_dtype", metavar="TYPE")
    add("quantization", metavar="NAME")
    add("block_size", type=cli.number(words), metavar="TOKENS")
    add("enforce_eager", action="store_true")
    add("python_llm", action="store_true")
    for name in ("requests", "input", "output"):
        add(name, type=cli.number(words), metavar="N" if name == "requests" else "TOKENS")
    for name in SIZES:
        add(name, metavar="SIZE")


def refuse_without_engine(options: argparse.Namespace) -> None:
    """Raises: UserError: an option of a server, and no engine."""
    for name in (*WHOLE, *SIZES, *OTHERS):
        if getattr(options, name) not in (None, False):
            raise UserError("serving.only_with_engine", option=flag_of(name))


def command(options: argparse.Namespace, catalog: Catalog, words: Words) -> int:
    """Estimate a server; 0 where it starts and holds what is asked, 1 where it does not."""
    _refuse(options)
    answer = answer_of(options, catalog)
    _put(options, [answer], catalog, words)
    return cli.FINDINGS if fails(answer) else cli.CLEAN


def of_sections(
    sections: Sequence[UnitResult], options: argparse.Namespace, checker: FileChecker, words: Words
) -> int | None:
    """Estimate each server that is started, as :func:`command`, telling why others are not; None where there is none.

    Raises:
        UserError: no server names a model that is known, or JSON is asked for of several.
    """
    units = [result.unit for result in sections if result.unit.dialect in SERVERS]
    if not units:
        return None
    if len(units) > 1 and options.format == "json":
        raise UserError("serving.several", path=options.config, n=len(units))
    answers, faults = list[Answer](), list[UserError]()
    for unit in units:
        try:
            answers.append(_of_unit(unit, options, checker))
        except UserError as fault:
            if len(units) > 1:
                fault.values.setdefault("within", f"{options.config} [{unit.section or unit.span.line}]")
            faults.append(fault)
    if not answers:
        raise faults[0]
    _put(options, answers, checker.catalog, words)
    for why in faults:
        print(f"kb: {cli.worded(why, words.language)}", file=sys.stderr)
    return cli.FINDINGS if any(map(fails, answers)) else cli.CLEAN


def _of_unit(unit: Unit, options: argparse.Namespace, checker: FileChecker) -> Answer:
    """The estimate of one server.

    Raises:
        UserError: as of :func:`answer_of`.
    """
    facts = checker.facts(unit)
    said = options_said(unit, facts)
    merged = argparse.Namespace(**vars(options))
    merged.config = merged.section = None
    merged.engine, merged.called, merged.uses = said.engine, said.called, said.uses
    vars(merged).update({name: said.values[name] for name in said.values if getattr(options, name) in (None, False)})
    _refuse(merged)
    seen = facts.get("serving.gpus_given") if merged.tensor_parallel_size is None else None
    merged.gpus = min(seen or options.gpus, options.gpus) if options.gpus and isinstance(seen, int) else options.gpus
    answer = answer_of(merged, checker.catalog)
    drafts = said.uses.isdisjoint(DRAFTLESS)
    told = {
        "serving.note_unknown": [name for name in said.unknown if getattr(options, name) in (None, False)],
        "serving.note_capped": [name for name in CAPS if said.engine != "tgi" and _is_given(name, unit)],
        "serving.note_beside": [name for name in BESIDE if _is_given(name, unit) and (drafts or "spec" not in name)],
    }
    notes = [(key, {"options": ", ".join(map(flag_of, names))}) for key, names in told.items() if names]
    return answer._replace(notes=[*answer.notes, *notes])


def _is_given(name: str, unit: Unit) -> bool:
    """Whether a flag or key is written, and not to switch it off."""
    return any(unit.keys[key].value is not False for key in (name, name.replace("_", "-")) if key in unit.keys)


def fails(answer: Answer) -> bool:
    """Whether the server does not start, or does not hold the requests asked for."""
    asked = answer.load
    return answer.served.starts is False or (answer.counted and asked is not None and asked.holds is False)


def _put(options: argparse.Namespace, answers: Sequence[Answer], catalog: Catalog, words: Words) -> None:
    if options.format == "json":
        cli.put(serving_json(answers[0], words, __version__, catalog.version))
    else:
        style = choose_style(sys.stdout, options.color)
        cli.put("\n".join(serving_text(answer, words, style) for answer in answers))


def answer_of(options: argparse.Namespace, catalog: Catalog) -> Answer:
    """The estimate of the server that the options describe.

    Raises:
        UserError: no GPU is known, or an option cannot be what it says.
    """
    engine = catalog.serving()[options.engine]
    setup, model, notes = _setup(options, catalog, engine)
    served = serve(model, setup, engine, catalog.constants)
    if served.setup.max_model_len is not None:
        notes = [note for note in notes if note[0] != "serving.note_relative"]
    open_ = any(key in ("serving.note_packed", "serving.note_pictures") for key, _ in notes)
    if served.budget is not None and (open_ or (model.longest is None and model.rotary)):
        served = served._replace(budget=unsure(served.budget))

    asked = None
    if options.input or options.output:
        asked = load(served, options.requests or 1, (options.input or 0) + (options.output or 0))
    ratio = catalog.constants["usable_memory_ratio"]
    gpus = [(gpu.id, gpu.visible_bytes(ratio)) for gpu in catalog.gpus.values()]
    return Answer(
        engine=engine,
        served=served,
        gpu=options.gpu or setup.gpu_id or None,
        changes=changes(served, engine, catalog.constants) if served.budget is not None else [],
        smallest=smallest(model, setup, engine, catalog.constants, gpus) if served.concurrency is not None else None,
        load=asked,
        counted=options.requests is not None,
        notes=notes,
    )


def _refuse(options: argparse.Namespace) -> None:
    for name in OF_TRAINING:
        if getattr(options, name) not in (None, False):
            raise UserError("serving.not_with_engine", option="CONFIG" if name == "config" else flag_of(name))
    if not (options.model or options.model_config):
        raise UserError("serving.no_model")
    for name in WHOLE:
        value = getattr(options, name)
        if value is not None and not 1 <= value <= MOST:
            raise UserError("recommend.bad_number", option=flag_of(name), value=str(value), most=MOST)
    if options.requests is not None and not (options.input or options.output):
        raise UserError("serving.requests_without_length")


def _setup(
    options: argparse.Namespace, catalog: Catalog, engine: Mapping[str, Any]
) -> tuple[ServingSetup, Any, list[tuple[str, dict[str, Any]]]]:
    """The server, its model, and what has to be said of how they were found."""
    known = known_model(options.model, options.model_config, options.engine, catalog)
    release, found = release_of(engine, options.engine_version)
    notes: list[tuple[str, dict[str, Any]]] = []
    if not found:
        notes.append(("serving.note_newest", {"version": options.engine_version, "newest": engine["newest"]}))
    if known.by_name and options.quantization is None:
        notes.append(("serving.note_packed", {"name": known.model.name, "packing": known.quantization}))
    if known.relative:
        notes.append(("serving.note_relative", {"name": options.model, "relative": known.model.name}))
    size, most = size_of(options, "gpu_memory"), 0
    machine = named_machine(catalog, find_project(os.getcwd()), NamedMachine(options.gpu, options.gpus))
    gpu = machine.smallest_gpu
    if size is None:
        if gpu is None:
            raise UserError("serving.no_gpu")
        size, most = (gpu.visible_bytes(catalog.constants["usable_memory_ratio"], best=best) for best in (False, True))
    ranks = options.tensor_parallel_size
    stages = options.pipeline_parallel_size or 1
    if ranks is None:
        ranks = max((options.gpus or 1) // stages, 1)
        if ranks > 1:
            notes.append(("serving.note_ranks", {"ranks": ranks}))
    elif options.gpus is not None and ranks * stages > options.gpus:
        raise UserError("serving.too_many_ranks", ranks=ranks * stages, gpus=options.gpus)
    packing = options.quantization
    setup = ServingSetup(
        engine=options.engine,
        release=release,
        gpu_bytes=size,
        gpu_most=most,
        gpu_id=gpu.gpu.id if gpu is not None and gpu.gpu is not None else "",
        dtype=TYPES.get(options.dtype or "auto", options.dtype) or known.type_of(options.engine),
        quantization=packing_of(options.engine, packing, known.quantization) if packing else known.quantization,
        tensor_parallel=ranks,
        pipeline_parallel=stages,
        utilization=options.gpu_memory_utilization,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_cache_dtype=options.kv_cache_dtype or "auto",
        kv_cache_bytes=size_of(options, "kv_cache_memory"),
        block_size=options.block_size,
        uses=getattr(options, "uses", frozenset()) | ({"eager"} if options.enforce_eager else set()),
        offload_bytes=size_of(options, "cpu_offload") or 0,
        called="python" if options.python_llm else getattr(options, "called", "server"),
        measured=Measured(*(size_of(options, name) for name in SIZES[1:5])),
    )
    if options.engine == "llama.cpp" and setup.kv_cache_dtype == "auto":
        setup = setup._replace(kv_cache_dtype="f16")
    checked(setup, known.model)
    notes += _not_counted(setup, known, gpu.gpu if gpu is not None else None)
    return with_checkpoint(setup, known.checkpoint_bytes), known.model, notes


def _not_counted(setup: ServingSetup, known: "Known", gpu: Gpu | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """What has to be said of memory that the figures do not hold."""
    if gpu is not None and gpu.of_host:
        yield "serving.note_of_host", {}
    if known.sees and setup.engine == "vllm":
        yield "serving.note_pictures", {}
    if setup.engine == "tgi" and setup.max_num_batched_tokens is None and setup.release >= (3,):
        yield "serving.note_prefill", {}
    several = setup.tensor_parallel * setup.pipeline_parallel > 1
    if several and setup.engine in ("vllm", "sglang", "tgi") and setup.measured.non_torch is None:
        yield "serving.note_exchange", {}


class Known(NamedTuple):
    """A model to serve with what its files say: the type and packing of its weights, and their bytes in all."""

    model: ServedModel
    dtype: str
    quantization: str | None
    checkpoint_bytes: int | None
    relative: bool = False  # of a row of another name: its size is the same, its positions may not be
    by_name: bool = False  # only the name says how it is packed
    sees: bool = False  # pictures, whose tower the profiling runs too

    def type_of(self, engine: str) -> str:
        """The type in which an engine loads it by itself."""
        return self.dtype if self.dtype != "float32" or engine == "transformers" else "float16"


def known_model(name: str | None, config_path: str | None, engine: str, catalog: Catalog) -> Known:
    """The model of a name, or of a ``config.json``, whether or not its training is predicted.

    Raises:
        UserError: there is none of the name, or its config cannot be used.
    """
    path = config_path or (name and (folder_config(name) or cached_config_of(name))) or None
    if path is None:
        assert name is not None
        stored, known = stored_packing(name, engine)
        base, packing = (name, stored) if stored else packed_by_name(name, catalog.called)
        row = named_model(base, catalog)
        model = _of_architecture(row.name, row.architecture, row.max_length)
        dtype, sees = _DTYPES[row.weights_dtype or "bf16"], row.architecture.vision is not None
        relative = base.casefold() not in (row.name.casefold(), row.id.casefold())
        model = model._replace(weights=model.weights if known else None, of_relative=relative)
        model = as_packed(model, packing or row.packed, sees=sees)
        return Known(model, dtype, packing or row.packed, None, relative, packing is not None, sees)
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
    sees = "vision_config" in data
    if not known and size is None:
        model = model._replace(weights=None)
    model = as_packed(model, packing, sees=sees)
    return Known(model, dtype if dtype in FLOATS else "bfloat16", packing, size, sees=sees)


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
    if method in ("fp8", "mxfp4"):
        return method, True
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
        UserError: a share outside 0 to 1, a length beyond the model or one that decides and is not known, ranks that do
            not divide its heads or layers, a type that is not known.
    """
    if setup.utilization is not None and not 0 < setup.utilization <= 1:
        raise UserError("serving.bad_share", value=setup.utilization)
    length, refuses = setup.max_model_len, setup.engine in ("vllm", "sglang", "tgi") and "long" not in setup.uses
    if length and model.longest and length > model.longest and refuses:
        raise UserError("serving.too_long", length=length, model=model.name, most=model.longest)
    if setup.engine == "vllm" and setup.release < NO_CHUNKS_BELOW and not (length or model.longest):
        raise UserError("serving.length_decides")
    if model.heads % setup.tensor_parallel:
        raise UserError("serving.heads", ranks=setup.tensor_parallel, heads=model.heads, model=model.name)
    if model.layers < setup.pipeline_parallel:
        raise UserError("serving.layers", stages=setup.pipeline_parallel, layers=model.layers, model=model.name)
    for option, value, known in (
        ("--dtype", setup.dtype, ("auto", *FLOATS)),
        ("--kv-cache-dtype", setup.kv_cache_dtype, ("auto", *CACHE_TYPES)),
        ("--quantization", setup.quantization, PACKED),
    ):
        if value is not None and value not in known:
            raise UserError("serving.bad_choice", option=option, value=value[:50], known=", ".join(known))
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
    called: str  # what starts it: the server itself, or a class in Python
    uses: frozenset[str]  # of its features those that no option here says


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
            "max_num_seqs", "tensor_parallel_size", "pipeline_parallel_size", "quantization", "block_size", "dtype",
            "enforce_eager",
        )},
    }  # fmt: skip
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for option, name in names.items():
        if not name:
            continue
        if unit.setting(name) is None:
            unknown += [option] if unit.hidden and name.startswith(unit.hidden) else []
            continue
        value = facts.get(name)
        if is_unknown(value) or value is None:
            unknown.append(option)
        else:
            found[option] = value
    if engine in ("vllm", "sglang") and "tensor_parallel_size" not in unknown:
        found.setdefault("tensor_parallel_size", 1)  # their own default, however many GPUs there are
    release = facts.get("serving.release")
    if isinstance(release, tuple):
        found["engine_version"] = ".".join(map(str, release))
    elif engine != "transformers":
        unknown.append("engine_version")
    if "max_num_batched_tokens" not in unknown and (prefill := prefill_of_tgi(facts.get, release)):
        found.setdefault("max_num_batched_tokens", prefill)
    for option, unit_of in (("kv_cache_memory", ""), ("cpu_offload", " GiB")):
        if option in found:
            found[option] = f"{found[option]}{unit_of or ' B'}"
    return SaidOptions(
        engine, found, tuple(unknown), str(facts.get("serving.called") or "server"), features_used(facts.get)
    )
