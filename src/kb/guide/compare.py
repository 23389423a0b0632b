"""One run in several ways, side by side: attention, method, several GPUs, post-training. What each takes, by the
memory model."""

from collections.abc import Mapping
from html import escape
from typing import Any

from kb.advice.attempts import WAYS
from kb.advice.estimator import Estimator, on_gpu
from kb.core.setup import Colocated, Method, PostTraining
from kb.core.units import GIB
from kb.guide.fits import SHOWN_WAYS, base_of
from kb.guide.library import Library
from kb.guide.markup import badge, held, wide_table
from kb.guide.memory_bars import term_bars
from kb.guide.site_words import say

STATES = (
    "parameters", "gradients", "gradients_held", "optimizer", "adapters", "buckets", "gathered_parameters",
    "reference_model",
)  # fmt: skip
# what is compared → the ways of it, as changes to the setup; their names are texts ``compare.<what>.<way>``
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


def _ways(what: str, constants: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
    """
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


def compare(
    library: Library, what: str, model: str, gpu: str, batch: int, length: int | None = None, drawn: bool = False
) -> str:
    """Training with a per-device ``batch`` in each way: states, activations and the rest, process memory, verdict.

    Args:
        what: ``attention``, ``checkpointing``, ``gpus``, ``method`` or ``post``.
        length: input tokens; None is the model's usual length.
        drawn: with a bar for each way above.

    Raises:
        ValueError: there is no such comparison.
    """
    ways = _ways(what, library.catalog.constants)
    library.entry("models", model)
    library.entry("hardware", gpu)
    language, catalog = library.language, library.catalog
    estimator = Estimator(catalog.models[model], on_gpu(catalog.gpus[gpu]), catalog.constants)
    base, precision = base_of(estimator.model, estimator)
    base = base._replace(do_eval=False, per_device_train_batch_size=batch)
    if length is not None:
        base = base._replace(max_source_length=length)
    rows, phases = [], []
    for name, changes in ways.items():
        report = estimator.predict(base._replace(**changes))
        phase = report.phase("train")
        assert phase is not None  # it trains
        states = sum(term.bytes for term in phase.terms if term.name in STATES)
        sizes = (phase.process_used_bytes, states, phase.peak_allocated_bytes - states)
        status = report.verdict.status
        verdict = escape(library.words.named("verdict", status))
        mark = f'<span class="kb-verdict kb-verdict--{escape(status)}">{verdict}</span>'
        named = say(language, f"way.{name}" if what == "method" else f"compare.{what}.{name}")
        phases.append((named, phase))
        rows.append((escape(named), mark, *(f"{size / GIB:.1f} GiB" for size in sizes)))
    head = [say(language, f"compare.{key}") for key in ("way", "verdict", "process", "states", "rest")]
    values = {"model": estimator.model.name, "gpu": catalog.gpus[gpu].name, "batch": batch, "precision": precision}
    title = say(language, "compare.title", length=base.max_source_length, **values)
    about = held(f'<p class="kb-caption">{escape(title)} {badge(library, "computed")}</p>')
    shown = f"{wide_table(title, [escape(cell) for cell in head], [('', rows)])}"
    if not drawn:
        return f"{about}\n\n{shown}"
    drawing, _ = term_bars(library, phases, estimator.limit_bytes, title)
    return f"{drawing}\n\n{about}\n\n{shown}"
