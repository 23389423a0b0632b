"""One setup and one architecture → the recordings of its processes, and their peaks as phases of a report."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.adapters import adapt
from kb.memory.engine.families import model_class
from kb.memory.engine.faults import NotFollowedError, refuse
from kb.memory.engine.fsdp import Units, drop, on_host
from kb.memory.engine.fsdp1 import Flats
from kb.memory.engine.modules import Model
from kb.memory.engine.options import Options, check_tables, check_token_rows, has_unsloths_layers, options_of
from kb.memory.engine.runs.generate import MOST_TOKENS, Decoding, decoding_of, generate
from kb.memory.engine.runs.train import evaluate, inputs_of, train
from kb.memory.engine.tensor import mark
from kb.memory.engine.world import Recording, held, world
from kb.memory.engine.zero3 import Zero3
from kb.memory.parameters import default_targets

MOST_LAYERS = 512  # each is followed: two steps of so many take some seconds


def record_runs(
    setup: TrainingSetup,
    architecture: Architecture,
    capability: tuple[int, int],
    *,
    kind: Callable[[], Recording] = Recording,
    limit: int | None = None,
) -> list[Recording]:
    """The processes that a setup asks for: training with its evaluation, and inference of its own.

    ``kind`` makes what they are recorded on; ``limit`` are the bytes that PyTorch may reserve, for code that asks.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    check_answers(setup)
    runs: list[Callable[[TrainingSetup, Architecture, Recording], None]] = []
    if setup.do_train or setup.do_eval or not setup.do_predict:
        runs.append(_train_and_evaluate)
    if setup.do_predict and model_class(architecture).generates:
        runs.append(_infer)
    recordings = []
    for run in runs:
        with held():
            if run is _train_and_evaluate and kind is Recording and limit is None and _trains_alone(setup):
                recordings.append(_evaluated(setup, architecture, capability))
                continue
            recording = world.begin(capability, kind, limit)
            recording.begin("load")
            run(setup, architecture, recording)
            recordings.append(recording)
    return recordings


def record_training(
    setup: TrainingSetup,
    architecture: Architecture,
    capability: tuple[int, int],
    sources: Sequence[int] | None = None,
    *,
    kind: Callable[[], Recording] = Recording,
) -> Recording:
    """Training alone; ``sources`` are the padded lengths of its batches, ``kind`` makes what it is recorded on.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    with held():
        recording = world.begin(capability, kind)
        recording.begin("load")
        model = model_of(setup, architecture)
        loss = loss_of(model, setup) if setup.post is not None else None
        optimizer = train(model, setup, sources, loss=loss)
        recording.close()
        del optimizer, loss, model
        return recording


def _infer(setup: TrainingSetup, architecture: Architecture, recording: Recording) -> None:
    model = model_of(setup, architecture)
    _share_out(model, setup)
    world.training = False
    rows = setup.inference_batch_size or setup.per_device_eval_batch_size
    batch = inputs_of(model, rows, setup.max_source_length, setup.max_target_length)
    decoding = decoding_of(model, setup.inference_max_length, setup.inference_num_beams, trained=False)
    _answer(model, decoding, batch)
    recording.close()  # before the model goes


def _answer(model: Model, decoding: Decoding, batch: list[Any]) -> None:
    """``generate``, around which the Trainer makes what FSDP1 shards whole (``summon_full_params``,
    transformers/trainer_seq2seq.py)."""
    world.recording.begin("generate")
    with getattr(model.units, "summoned", nullcontext)():
        generate(model, decoding, batch)


def check_followed(architecture: Architecture, setup: TrainingSetup) -> None:
    """Refuse, by name, a model or a loss that the engine does not follow.

    Raises:
        NotFollowedError: it does not.
    """
    kind = model_class(architecture)
    kind.check(architecture, setup)
    check_tables(setup, kind.adapted_tables)
    check_token_rows(setup, followed=kind.trains_rows)
    if setup.method != "full" and not (setup.lora_target_modules or default_targets(architecture)):
        raise NotFollowedError("lora_target_modules")  # PEFT has none for the type, and refuses
    kind.check_type(architecture, setup)
    if setup.post is not None and setup.post.kind == "embedding":
        _embed().check_embedding(architecture, setup)
    elif setup.post is not None and (kind.encodes or not kind.generates):
        raise NotFollowedError(f"{setup.post.kind} of {architecture.model_type}")
    flat = setup.spread.fsdp_version == 1
    if setup.fsdp and not (kind.flattens if flat else kind.shards):  # FSDP2 refuses tables that modules share
        refuse(f"FSDP of {architecture.model_type}", setup)
    if setup.zero_stage == 3 and not kind.gathers:
        refuse(f"ZeRO-3 of {architecture.model_type}", setup)
    if setup.unsloth and setup.do_train and not has_unsloths_layers(architecture.model_type, setup):
        raise NotFollowedError(f"Unsloth's layers of {architecture.model_type}")
    if setup.attn_implementation == "flash" and architecture.family == "t5":
        raise NotFollowedError("flash_attention_2")  # there is none for T5
    if not kind.reenters and setup.gradient_checkpointing and setup.use_reentrant and setup.do_train:
        if setup.offloads_checkpoints:
            raise NotFollowedError(f"offloaded checkpoints of {architecture.model_type}")
        raise NotFollowedError(f"use_reentrant of {architecture.model_type}")  # its blocks hand on more than states
    if setup.post is not None and setup.post.completion >= setup.max_source_length:
        raise NotFollowedError(f"{setup.post.completion} of {setup.max_source_length} tokens generated")


def check_answers(setup: TrainingSetup) -> None:
    """Refuse, by name, answers longer than is followed: each token grows the cache of every layer.

    Raises:
        NotFollowedError: there is one.
    """
    evaluated = setup.generation_max_length if setup.do_eval and setup.predict_with_generate else 0
    longest = max(evaluated, setup.inference_max_length if setup.do_predict else 0)
    if longest > MOST_TOKENS:
        refuse(f"{longest} new tokens", setup)


def is_deep(architecture: Architecture) -> bool:
    """Whether the model has more layers than are followed one by one."""
    return architecture.encoder_layers + architecture.decoder_layers > MOST_LAYERS


def model_of(setup: TrainingSetup, architecture: Architecture) -> Model:
    check_followed(architecture, setup)
    if is_deep(architecture):
        raise NotFollowedError(f"{architecture.encoder_layers + architecture.decoder_layers} layers")
    if setup.post is not None and setup.post.kind == "embedding":
        architecture = architecture._replace(head="embedding")
    kind = model_class(architecture)
    if setup.post is not None and setup.post.kind == "reward":
        if kind.scorer is None:
            raise NotFollowedError(f"reward of {architecture.model_type}")
        kind = kind.scorer
    options = options_of(setup, default_targets(architecture))
    build = partial(_built, kind, architecture, options)
    if setup.zero_stage < 3 and not setup.fsdp:
        return build()
    if options.quantization is not None and setup.zero_stage == 3:
        return build()
    if setup.fsdp and options.quantization is not None and setup.spread.packed_on == "gpu":
        return _sharded(build(), setup)
    model = _on_host(build)
    return _sharded(model, setup) if setup.fsdp else model


def _built(kind: type[Model], architecture: Architecture, options: Options) -> Model:
    model = kind(architecture, options)
    if options.adapters is not None:
        adapt(model)
    return model


def _sharded(model: Model, setup: TrainingSetup) -> Model:
    """A model that is loaded on the host, sharded onto the GPU unit by unit."""
    model.units = Flats(model, setup) if setup.spread.fsdp_version == 1 else Units(model, setup)
    return model


def _on_host(build: Callable[[], Model]) -> Model:
    """A model that waits in host memory for what shards it."""
    with on_host():
        model = build()
        for tensor in (*(each for _, each in model.parameters), *model.adapters, *model.buffers):
            drop(tensor)
    return model


def _share_out(model: Model, setup: TrainingSetup) -> Any:
    """ZeRO-3 where nothing trains; training brings its own."""
    if setup.zero_stage < 3:
        return None
    return Zero3(model, setup, serves=True)


def loss_of(model: Model, setup: TrainingSetup) -> Any:
    """The trainer's own loss, with its reference on the GPU where that is a model of its own."""
    assert setup.post is not None
    if setup.post.kind == "embedding":
        return _embed().Embedding(model, setup)
    from kb.memory.engine.runs.prefer import Loss  # plain training does without

    reference = None
    if setup.post.reference == "model":
        options = model.options._replace(adapters=None, checkpointing=False)
        build = partial(type(model), model.architecture, options)
        reference = build() if setup.zero_stage < 3 else _on_host(build)
        shared = _share_out(reference, setup)
        for tensor in shared.frozen if shared is not None else [each for _, each in reference.parameters]:
            mark(tensor, "reference_model")
    return Loss(model, reference, setup)


def _embed() -> Any:
    """Embedding training, imported for it: other runs do without, and without the decoders that it stands on."""
    from kb.memory.engine.runs import embed  # it stands on the decoders

    return embed


def _post_training(model: Model, setup: TrainingSetup, recording: Recording) -> None:
    loss = loss_of(model, setup)
    optimizer = train(model, setup, loss=loss, before=loss.prepared if loss.post.completion else None)
    recording.begin("save")
    recording.close()  # before the model goes
    del optimizer


def _train_and_evaluate(setup: TrainingSetup, architecture: Architecture, recording: Recording) -> None:
    model = model_of(setup, architecture)
    if setup.post is not None:
        _post_training(model, setup, recording)
        return
    optimizer = train(model, setup) if setup.do_train else _share_out(model, setup)
    if setup.do_eval:
        _evaluate(model, setup)
    if setup.do_train:
        recording.begin("save")
    recording.close()  # before the model goes
    del optimizer


def _evaluate(model: Model, setup: TrainingSetup) -> None:
    generates = setup.predict_with_generate and model.generates
    decoding = decoding_of(model, setup.generation_max_length, setup.generation_num_beams, trained=True)
    for _ in range(1 if setup.do_train or model.units is None else 2):  # ZeRO-3 learns the modules' order by one
        evaluate(model, setup, partial(_answer, model, decoding) if generates else None)


class Trained(NamedTuple):
    """A run at the end of its training: the world and its recording there, and what holds the GPU's memory."""

    state: dict[str, Any]
    point: tuple[Any, ...]
    model: Model
    optimizer: Any


_TRAINED: dict[Any, Trained] = {}  # the last one: a search of an evaluation's batch follows its training once


def _trains_alone(setup: TrainingSetup) -> bool:
    """Whether a run trains and evaluates on one GPU, where nothing but the model and the optimizer has a state."""
    spread = setup.world_size > 1 or setup.zero_stage or setup.fsdp or setup.offload_optimizer
    return setup.do_train and setup.do_eval and setup.post is None and not spread


def _evaluated(setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int]) -> Recording:
    """Training with its evaluation. Where one with another batch was followed before, and left nothing of its
    evaluation behind, it goes on from the end of that training."""
    key = setup._replace(per_device_eval_batch_size=1), architecture, capability
    trained = _TRAINED.pop(key, None)
    _TRAINED.clear()
    if trained is None or not trained.state["recording"].back_to(trained.point):
        recording = world.begin(capability)
        recording.begin("load")
        model = model_of(setup, architecture)
        optimizer = train(model, setup)
        trained = Trained(world.state(), recording.point(), model, optimizer)
    world.resume(trained.state)
    recording = world.recording
    _evaluate(trained.model, setup)
    recording.begin("save")
    found = recording.copied()
    found.begin("")
    _TRAINED[key] = trained
    return found
