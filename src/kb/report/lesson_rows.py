"""The rows of the chapters' tables: of a page's example, and of the model and GPU that its reader chose.

A cell is its parts, each a text and its mark (``b``, ``small``, a verdict's status, or none), so that a page that is
built and a script show the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.attempts import WAYS
from kb.advice.estimator import Estimator, on_gpu
from kb.advice.models import unknown_model
from kb.advice.recommend import base_of
from kb.core.catalog import Catalog
from kb.core.memory_report import Phase
from kb.core.record import NamedTuple
from kb.core.setup import Colocated, Method, PostTraining, TrainingSetup
from kb.core.units import GIB
from kb.machine.arguments import find_gpu
from kb.report.values import short_name
from kb.report.words import Words

Cell = tuple[tuple[str, str], ...]
# the one that takes most comes first
SHOWN_WAYS = ("full", "full_checkpointing", "lora", "qlora", "qlora_checkpointing")
STATES = (
    "parameters", "gradients", "gradients_held", "optimizer", "adapters", "buckets", "gathered_parameters",
    "reference_model",
)  # fmt: skip
# what is compared → the ways of it, as changes to the setup
KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "attention": {
        "eager": {"attn_implementation": "eager"},
        "sdpa": {"attn_implementation": "sdpa"},
    },
    "gpus": {
        "one": {},
        "ddp": {"world_size": 4},
        "zero2": {"world_size": 4, "zero_stage": 2},
        "zero3": {"world_size": 4, "zero_stage": 3},
        "fsdp": {"world_size": 4, "fsdp": True},
        "zero3_offload": {"world_size": 4, "zero_stage": 3, "offload_optimizer": True},
    },
    "checkpointing": {
        "full": {},
        "full_on": {"gradient_checkpointing": True},
        "lora": {"method": "lora"},
        "lora_on": {"method": "lora", "gradient_checkpointing": True},
    },
}


class Case(NamedTuple):
    """Who predicts, and full training at the lengths that are asked for, without evaluation."""

    estimator: Estimator
    setup: TrainingSetup

    def named(self) -> dict[str, Any]:
        """What a title says of it."""
        gpu, setup = self.estimator.gpu, self.setup
        return {
            "model": self.estimator.model.name,
            "gpu": short_name(gpu.gpu) if gpu and gpu.gpu else "",
            "length": setup.max_source_length,
            "target": setup.max_target_length,
            "precision": "bf16" if setup.bf16 else "fp16" if setup.fp16 else "fp32",
        }


def case_of(catalog: Catalog, model: str, gpu: str, source: int | None = None, target: int | None = None) -> Case:
    """A model on a GPU, by their ids; lengths in tokens, else the model's usual ones.

    Raises:
        UserError: no such model or GPU.
    """
    if model not in catalog.models:
        raise unknown_model(model, catalog)
    estimator = Estimator(catalog.models[model], on_gpu(find_gpu(gpu, catalog.gpus)), catalog.constants)
    setup = base_of(estimator.model, estimator)[0]._replace(do_eval=False)
    setup = setup if source is None else setup._replace(max_source_length=source)
    return Case(estimator, setup if target is None else setup._replace(max_target_length=target))


def effective_rows(case: Case, words: Words, effective: int, batches: Sequence[int]) -> list[list[Cell]]:
    """Ways to one effective batch: per device, accumulation, the product, memory, verdict."""
    rows = []
    for batch in batches:
        phase = _phase(case.estimator, case.setup._replace(per_device_train_batch_size=batch), "train")
        steps = effective // batch
        product = ((str(batch * steps), "b"),)
        rows.append([_plain(batch), _plain(steps), product, band(phase), verdict(words, phase.status)])
    return rows


def beam_rows(case: Case, words: Words, batch: int, counts: Sequence[int]) -> list[list[Cell]]:
    """Generating with a batch, by the number of beams: sequences, memory, verdict, the largest batch."""
    length = case.setup.max_target_length
    base = case.setup._replace(do_train=False, do_predict=True, inference_batch_size=batch, inference_max_length=length)
    rows = []
    for beams in counts:
        setup = base._replace(inference_num_beams=beams)
        phase = _phase(case.estimator, setup, "generate")
        most = _plain(case.estimator.largest(setup, "inference_batch_size") or "–")
        rows.append([_plain(beams), _plain(batch * beams), band(phase), verdict(words, phase.status), most])
    return rows


def length_rows(case: Case, way: str, lengths: Sequence[int]) -> list[Cell]:
    """The largest batch that trains in a way, by input length, and what a batch of 1 takes; without the GPU's name."""
    cells: list[Cell] = []
    for length in lengths:
        setup = case.setup._replace(**WAYS[way], max_source_length=length, per_device_train_batch_size=1)
        most = case.estimator.largest(setup, "per_device_train_batch_size")
        least = _phase(case.estimator, setup, "train").process_used_bytes / GIB
        cells.append(((str(most or "–"), "b"), (f" ({least:.1f} GiB)", "small")))
    return cells


def ways_of(what: str, constants: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
    """What is compared, as changes to a setup.

    Raises:
        ValueError: there is no such comparison.
    """
    if what == "method":
        return {way: WAYS[way] for way in SHOWN_WAYS}
    if what == "post":
        return _post_training(constants)
    if what not in KINDS:
        raise ValueError(f"nothing to compare by {what!r}; there are: method, post, {', '.join(KINDS)}")
    return KINDS[what]


def _post_training(constants: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
    """Full runs and LoRA as TRL has them from the release that makes no whole logits; ORPO makes them still."""
    answers = PostTraining("grpo", completion=int(constants["trl_completion_length"]))
    ways: Mapping[str, tuple[Method, PostTraining]] = {
        "sft": ("full", PostTraining("sft")),
        "orpo": ("full", PostTraining("orpo", head="rows")),
        "dpo": ("full", PostTraining("dpo", reference="model")),
        "dpo_ahead": ("full", PostTraining("dpo")),
        "dpo_lora": ("lora", PostTraining("dpo", reference="adapter_off")),
        "grpo_lora": ("lora", answers),
        "grpo_beside": ("lora", answers._replace(colocated=Colocated(constants["trl_vllm_share"]))),
    }
    return {
        name: {"gradient_checkpointing": True, "method": method, "post": post} for name, (method, post) in ways.items()
    }


def way_rows(case: Case, words: Words, what: str, batch: int) -> list[tuple[str, Phase, list[Cell]]]:
    """Each way's name, its training, and its cells: verdict, process, states, activations and the rest."""
    rows = []
    for name, changes in ways_of(what, case.estimator.constants).items():
        report = case.estimator.predict(case.setup._replace(per_device_train_batch_size=batch, **changes))
        phase = report.phase("train")
        assert phase is not None  # it trains
        states = sum(term.bytes for term in phase.terms if term.name in STATES)
        sizes = (phase.process_used_bytes, states, phase.peak_allocated_bytes - states)
        cells = [verdict(words, report.verdict.status), *(_plain(f"{size / GIB:.1f} GiB") for size in sizes)]
        rows.append((name, phase, cells))
    return rows


def band(phase: Phase) -> Cell:
    """What the process uses, with its error band."""
    low, used, high = (size / GIB for size in (phase.low_bytes, phase.process_used_bytes, phase.high_bytes))
    return ((f"{used:.1f}", "b"), (f" ({low:.1f}–{high:.1f}) GiB", ""))


def verdict(words: Words, status: str) -> Cell:
    """A verdict, marked with its status."""
    return ((words.named("verdict", status), status),)


def _plain(value: object) -> Cell:
    return ((str(value), ""),)


def _phase(estimator: Estimator, setup: TrainingSetup, name: str) -> Phase:
    phase = estimator.predict(setup).phase(name)
    assert phase is not None  # the setup has it
    return phase
