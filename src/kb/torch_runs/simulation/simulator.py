"""A whole run on the fake GPU, phase by phase, in the order and with the allocator that the real one has; and what its
caller is told of it: peaks with their ledgers, top tensors, timeline.

Evaluation after training finds the optimizer's states and the cache that training left; inference of its own starts
with nothing but the model. Import only in the simulator's process.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.allocator import OutOfMemory
from kb.torch_runs.models import base_of, hears, kept_head
from kb.torch_runs.releases import versions
from kb.torch_runs.simulation.inference import Decoding, Evaluation, evaluate, generate
from kb.torch_runs.simulation.job import BeyondPositionsError, Job
from kb.torch_runs.simulation.known import SHAPED, Known, route_evenly, tell_global_tokens, tell_whole_tiles
from kb.torch_runs.simulation.loading import build_model
from kb.torch_runs.simulation.session import open_session
from kb.torch_runs.simulation.timeline import (
    Block,
    Event,
    PhasePeak,
    alive_at,
    end_of,
    largest,
    peaks_of,
    timeline_of,
    write_snapshot,
)
from kb.torch_runs.simulation.torch_modules import torch
from kb.torch_runs.simulation.training import as_accelerate, batch_of, loss_of, save, train

ENDED = "ended"
BITS_AND_BYTES = ("paged", "lion", "ademamix", "rmsprop", "adamw_8bit", "adamw_bnb")  # optimizers that are its own


class Passed(NamedTuple):
    """Bytes that pass through host memory: what a checkpoint saves, and the predictions that evaluation moves there."""

    saved: int = 0
    gathered: int = 0


class Run(NamedTuple):
    """What one process of the run did, up to its end and not to what Python then clears away.

    ``sole_stack`` and ``vocabulary`` are the model's, for the ledger.
    """

    events: Sequence[Event]
    roles: dict[int, str]
    passed: Passed
    sole_stack: str | None
    vocabulary: int
    kept_head: str | None  # the module that was not quantized because PEFT trains it


def runs_of(job: Job, limit_bytes: int | None = None) -> list[Run]:
    """The processes that a setup asks for: training with its evaluation, and inference.

    Raises:
        OutOfMemory: past ``limit_bytes``, where given.
        SimulationError: the model cannot be built, or is too short for the lengths.
    """
    setup = job.setup
    runs = []
    if setup.do_train or setup.do_eval or not setup.do_predict:
        runs.append(_run(job, limit_bytes, inference=False))
    if setup.do_predict:
        runs.append(_run(job, limit_bytes, inference=True))
    return runs


def training_run(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], lengths: Sequence[int]
) -> Sequence[Event]:
    """What training alone does, with batches of these padded lengths in turn (in tokens)."""
    with open_session(capability=capability, bits_and_bytes=_needs_bits_and_bytes(setup)) as tracer:
        tracer.phase = "load"
        model: Any = build_model(config, setup, tracer)
        tracer.padded = setup.padded and not hears(model)
        tell_global_tokens(model, tracer)
        route_evenly(model, tracer)
        if setup.autocast:
            as_accelerate(model, "float16" if setup.fp16 else "bfloat16", widens=setup.outputs_widened)
        optimizer = train(model, setup, tracer, lengths=lengths)
        tracer.phase = ENDED
        del optimizer
        return tuple(event for event in tracer.events if event.phase != ENDED)


def _run(job: Job, limit_bytes: int | None, *, inference: bool) -> Run:
    setup = job.setup
    with open_session(
        capability=job.compute_capability,
        limit_bytes=limit_bytes,
        expandable_segments=job.expandable_segments,
        bits_and_bytes=_needs_bits_and_bytes(setup),
    ) as tracer:
        tracer.phase = "load"
        model: Any = build_model(job.config, setup, tracer, code_folder=job.code_folder)
        tracer.padded = setup.padded and not hears(model)
        if setup.images is not None and setup.images.number:
            tracer.known, tracer.shaped = Known(), SHAPED
            tell_whole_tiles(model, tracer)
        tell_global_tokens(model, tracer)
        route_evenly(model, tracer)
        _check_positions(model, setup)
        passed = _infer(job, model, tracer) if inference else _train_and_evaluate(job, model, tracer)
        generative = base_of(model).can_generate()
        sole = None if model.config.is_encoder_decoder else ("decoder" if generative else "encoder")
        ended = next((number for number, event in enumerate(tracer.events) if event.phase == ENDED), len(tracer.events))
        head = kept_head(model, setup)
        return Run(tracer.events[:ended], tracer.roles, passed, sole, model.config.get_text_config().vocab_size, head)


def _needs_bits_and_bytes(setup: TrainingSetup) -> bool:
    return setup.method != "full" or setup.packs or setup.optim.startswith(BITS_AND_BYTES)


def _infer(job: Job, model: Any, tracer: Any) -> Passed:
    setup = job.setup
    model.eval()
    rows = setup.inference_batch_size or setup.per_device_eval_batch_size
    _generate(model, batch_of(model, setup, rows, tracer.known), inference_decoding(job), tracer)
    tracer.phase = ENDED
    return Passed()


def _train_and_evaluate(job: Job, model: Any, tracer: Any) -> Passed:
    setup = job.setup
    if setup.autocast:
        as_accelerate(model, "float16" if setup.fp16 else "bfloat16", widens=setup.outputs_widened)
    optimizer = train(model, setup, tracer) if setup.do_train else None
    gathered = 0
    if setup.do_eval:
        model.eval()
        gathered = _evaluate(job, model, tracer)
    saved = 0
    if setup.do_train:
        tracer.phase = "save"
        saved = save(model, optimizer)
    tracer.phase = ENDED
    return Passed(saved, gathered)


def _evaluate(job: Job, model: Any, tracer: Any) -> int:
    """Evaluation, with generation before each step's forward pass where the setup asks for it."""
    setup = job.setup
    generates = setup.predict_with_generate and base_of(model).can_generate()
    rows = setup.per_device_eval_batch_size
    samples = setup.eval_samples or rows * (setup.eval_accumulation_steps or 1)
    keeps = not (generates or setup.prediction_loss_only)
    steps = -(-samples // rows) if keeps else min(-(-samples // rows), 2)
    decoding = Decoding(setup.generation_max_length, setup.generation_num_beams, job.sampling, job.static_cache)

    def generate_first(inputs: dict[str, Any]) -> None:
        _generate(model, inputs, decoding, tracer)
        tracer.phase = "evaluate"

    tracer.phase = "evaluate"
    kept = evaluate(
        model,
        lambda: batch_of(model, setup, rows, tracer.known),
        Evaluation(steps, setup.eval_accumulation_steps, keeps),
        tracer,
        generate_first if generates else None,
        compute_loss=lambda model, inputs: loss_of(model, setup, inputs),
    )
    return kept * -(-samples // rows) if setup.eval_samples else 0


def _generate(model: Any, inputs: dict[str, Any], decoding: Decoding, tracer: Any) -> None:
    tracer.phase = "generate"
    generate(model, inputs, decoding, tracer)


def inference_decoding(job: Job) -> Decoding:
    """How inference of its own generates."""
    setup = job.setup
    return Decoding(setup.inference_max_length, setup.inference_num_beams, job.sampling, job.static_cache)


def _check_positions(model: Any, setup: TrainingSetup) -> None:
    """Fake tensors look nothing up, so a table of positions that is too short would not be noticed.

    Raises:
        BeyondPositionsError: more tokens than learned positions.
    """
    encoded = model.config.is_encoder_decoder
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or ("position" not in name and not name.endswith("wpe")):
            continue
        if "relative" in name or "token" in name or "vision" in name:  # of a picture there are as many as patches
            continue
        offset = getattr(module, "offset", 0) or (module.padding_idx + 1 if module.padding_idx is not None else 0)
        decodes = encoded and "decoder" in name
        if not decodes and hears(base_of(model)):
            continue  # its input is as long as the table
        length = setup.max_target_length if decodes else setup.max_source_length
        if length > module.num_embeddings - offset:
            raise BeyondPositionsError(length=length, positions=module.num_embeddings - offset)


LIBRARIES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")


def outcome_of(job: Job) -> dict[str, Any]:
    """Run the job, and once more inside the GPU's memory where the first run reserved more than that.

    PyTorch gives cached blocks back before it fails, so a run whose reserved memory is too much may still fit; then the
    second run's figures are the answer.
    """
    start = time.monotonic()
    runs = runs_of(job)
    phases = _phases(runs, saves=job.setup.do_train)
    ran_out = False
    limit = job.allocator_limit_bytes
    if limit is not None and max(phase["reserved_bytes"] for phase in phases.values()) > limit:
        try:
            runs = runs_of(job, limit)
            phases = _phases(runs, saves=job.setup.do_train)
        except OutOfMemory:
            ran_out = True
    if job.snapshot_path:
        write_snapshot(runs[0].events, job.snapshot_path)
    return {
        "phases": phases,
        "ran_out": ran_out,
        "timeline": timeline_of(runs[0].events, _terms(runs[0])),
        "saved_bytes": max(run.passed.saved for run in runs),
        "gathered_bytes": max(run.passed.gathered for run in runs),
        "kept_head": runs[0].kept_head,
        "software": versions(LIBRARIES),
        "seconds": time.monotonic() - start,
    }


def _phases(runs: Sequence[Run], *, saves: bool) -> dict[str, Any]:
    """Every phase by name; where two processes have the same, the one that takes more."""
    phases: dict[str, Any] = {}
    for run in runs:
        for name, peak in peaks_of(run.events).items():
            if name not in phases or peak.allocated_bytes > phases[name]["allocated_bytes"]:
                phases[name] = _phase(run, name, peak)
    if saves and "save" not in phases:  # it allocated nothing: what is there is its peak
        phases["save"] = _phase(runs[0], "save", end_of(runs[0].events))
    return phases


def _terms(run: Run) -> dict[int, str]:
    """The ledger's term of every allocation, by its number."""
    stacks = Stacks(run.sole_stack, run.vocabulary)
    made = ((number, event) for number, event in enumerate(run.events) if event.action == "alloc")
    return {number: term_of(event, run.roles.get(number), stacks) for number, event in made}


def _phase(run: Run, name: str, peak: PhasePeak) -> dict[str, Any]:
    stacks = Stacks(run.sole_stack, run.vocabulary)
    blocks = alive_at(run.events, peak.event)
    terms = {number: term_of(event, run.roles.get(number), stacks) for number, event in blocks}
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "moment": moment_of(run.events[peak.event], name),
        "terms": ledger_of(blocks, terms),
        "tops": largest(blocks, terms),
    }


REMAINDERS = "allocator_remainders"
BY_ROLE = {"weights": "parameters"}  # every other role is a term's own name
ENCODER_PARTS = ("encoder", "shared", "embed_tokens_encoder")
HEADS = ("lm_head", "embed_out", "score", "classifier", "cls", "qa_outputs", "predictions", "generator_lm_head")
WRAPPERS = ("base_model", "model", "module")  # what PEFT and transformers put around the stacks
LOSS_OPS = ("nll_loss", "log_softmax", "cross_entropy")


class Stacks:
    """Where a model's modules belong. ``sole`` is the stack of a model that has one: ``encoder`` or ``decoder``."""

    def __init__(self, sole: str | None, vocabulary: int) -> None:
        self.sole = sole
        self.vocabulary = vocabulary

    def of(self, module: str) -> str:
        """``encoder``, ``decoder`` or ``head``; empty outside of all of them."""
        parts = [part for part in module.split(".") if part and part not in WRAPPERS]
        if not parts:
            return ""
        if parts[0] in HEADS:
            return "head"
        if self.sole:
            return self.sole
        return "encoder" if parts[0] in ENCODER_PARTS else "decoder"


def term_of(event: Event, role: str | None, stacks: Stacks) -> str:
    """The ledger's term for the block of one allocation."""
    if role == "workspace" and event.op != "cublas_workspace":
        return "temporaries"  # a kernel's own, gone when it ends
    if role is not None:
        return BY_ROLE.get(role, role)
    phase, _, part = event.phase.partition(":")
    if part == "inputs":
        return "inputs"
    if phase in ("load", "save") or part == "optimizer":
        return "temporaries"
    if any(op in event.op for op in LOSS_OPS):
        return "loss" if phase == "train" else "logits"
    if part == "backward":
        return "temporaries"
    stack = stacks.of(event.module)
    if phase == "train":
        return f"activations_{stack or 'head'}"
    if stack == "encoder":
        return "activations_encoder"
    wide = event.requested >= 2 * stacks.vocabulary > 0  # at least a row of half-precision scores
    return "logits" if stack == "head" or (not stack and wide) else "temporaries"


def ledger_of(blocks: Sequence[Block], terms: Mapping[int, str]) -> dict[str, int]:
    """Bytes by term, largest first; what rounding and unsplit blocks add to the tensors is a term of its own."""
    sums: dict[str, int] = {}
    for number, event in blocks:
        size = event.requested or event.size
        sums[terms[number]] = sums.get(terms[number], 0) + size
        sums[REMAINDERS] = sums.get(REMAINDERS, 0) + event.size - size
    return {name: size for name, size in sorted(sums.items(), key=lambda item: -item[1]) if size}


def moment_of(event: Event, reported: str) -> str:
    """Where the peak of the phase ``reported`` lies, which ``event`` made: a key of i18n under ``moment.``."""
    phase, _, part = event.phase.partition(":")
    if phase != reported:  # it was there when the phase began
        part = ""
        phase = reported
    loss = any(op in event.op for op in LOSS_OPS)
    if part == "backward":
        return "loss_backward" if loss else "backward"
    if part == "optimizer":
        return "optimizer_step"
    if phase == "evaluate" and not event.module and "cat" in event.op:
        return "gathering"
    if phase in ("train", "evaluate"):
        return "loss" if loss else "forward"
    return {"load": "loading", "save": "saving", "generate": "decoding"}[phase]
