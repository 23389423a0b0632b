"""A whole run on the fake GPU, phase by phase, in the order and with the allocator that the real one has.

Evaluation after training finds the optimizer's states and the cache that training left; inference of its own starts
with nothing but the model. Import only in the simulator's process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.torch_runs.adapters import is_quantized, kept_head
from kb.torch_runs.models import hears
from kb.torch_runs.simulation.evaluate import Evaluation, evaluate
from kb.torch_runs.simulation.generate import Decoding, generate
from kb.torch_runs.simulation.job import BeyondPositionsError, Job
from kb.torch_runs.simulation.known import SHAPED, Known, route_evenly, tell_global_tokens, tell_whole_tiles
from kb.torch_runs.simulation.loading import build_model
from kb.torch_runs.simulation.session import open_session
from kb.torch_runs.simulation.timeline import Event
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
            as_accelerate(model, "float16" if setup.fp16 else "bfloat16")
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
        generative = _inner(model).can_generate()
        sole = None if model.config.is_encoder_decoder else ("decoder" if generative else "encoder")
        ended = next((number for number, event in enumerate(tracer.events) if event.phase == ENDED), len(tracer.events))
        head = kept_head(model, setup)
        return Run(tracer.events[:ended], tracer.roles, passed, sole, model.config.get_text_config().vocab_size, head)


def _needs_bits_and_bytes(setup: TrainingSetup) -> bool:
    return setup.method != "full" or is_quantized(setup) or setup.optim.startswith(BITS_AND_BYTES)


def _infer(job: Job, model: Any, tracer: Any) -> Passed:
    setup = job.setup
    model.eval()
    _generate(model, batch_of(model, setup, inference_rows(setup), tracer.known), inference_decoding(job), tracer)
    tracer.phase = ENDED
    return Passed()


def _train_and_evaluate(job: Job, model: Any, tracer: Any) -> Passed:
    setup = job.setup
    if setup.autocast:
        as_accelerate(model, "float16" if setup.fp16 else "bfloat16")
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
    generates = setup.predict_with_generate and _inner(model).can_generate()
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


def inference_rows(setup: TrainingSetup) -> int:
    """Samples of one batch of inference."""
    return setup.inference_batch_size or setup.per_device_eval_batch_size


def inference_decoding(job: Job) -> Decoding:
    """How inference of its own generates."""
    setup = job.setup
    return Decoding(setup.inference_max_length, setup.inference_num_beams, job.sampling, job.static_cache)


def _inner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


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
        if not decodes and hears(_inner(model)):
            continue  # its input is as long as the table
        length = setup.max_target_length if decodes else setup.max_source_length
        if length > module.num_embeddings - offset:
            raise BeyondPositionsError(length=length, positions=module.num_embeddings - offset)
