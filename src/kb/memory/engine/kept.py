"""What one sample's forward pass keeps for its backward, in bytes: of shallow models, extended to all layers.

Every layer of one kind keeps the same, but the first. So a model of one layer of each kind is followed, and one with
one more of each; what that adds is what each further layer keeps. And what grows with the batch is what is kept of the
samples: weights, their copies in 16 bits and workspaces stay. It reads nothing but a forward pass, a millisecond each.
"""

from collections import Counter
from functools import lru_cache
from typing import Literal

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.memory.engine.predict import model_of
from kb.memory.engine.runs.train import inputs_of, loss_of
from kb.memory.engine.world import AMPERE, held, world

BATCHES = (2, 3)  # of one sample some copies are views, so the second is not like the first
NOTHING = ("-",)  # no module is named so: all is frozen, and nothing wrapped
OUTPUT = ("activations_head", "loss", "logits")  # terms of the output layer and the loss


class Kept(NamedTuple):
    """Bytes that stay until backward: of all layers, and of the output layer with its loss."""

    layers: int
    loss: int


class _Layer(NamedTuple):
    """What tells a layer from others: its stack, and what the architecture says of single layers."""

    stack: Literal["encoder", "decoder", "tower"]
    slides: bool = False
    turns: bool = True
    dense: bool = False
    window: int = 0
    mixes: bool = False
    reuses: bool = False


def kept_of(setup: TrainingSetup, architecture: Architecture) -> Kept:
    """Bytes that a forward pass in training keeps for one sample, without gradient checkpointing.

    How a run is spread over GPUs has no part in it, nor a trainer's own loss; logits are made, whatever the loss. Of
    frozen weights it is what they keep to hand gradients down, without the adapters' own: a step's measured factors
    (``step_over_roofline_*``) were taken over that.

    Raises:
        NotFollowedError: a model that the engine does not follow.
    """
    return _kept(_read(setup), architecture)


def _read(setup: TrainingSetup) -> TrainingSetup:
    """What of a setup a forward pass of one sample reads: setups that are alike in it share one answer."""
    eager, flash = (setup.attn_implementation == name for name in ("eager", "flash"))
    return TrainingSetup(
        method=setup.method,
        fp16=setup.fp16,
        bf16=setup.bf16,
        weights=setup.weights,
        attn_implementation="eager" if eager else "sdpa",  # which keeps what flash attention does
        padded=setup.padded and not flash,  # that has no mask
        max_source_length=max(setup.max_source_length, 1),
        max_target_length=max(setup.max_target_length, 1),
        label_smoothing_factor=setup.label_smoothing_factor,
        lora_target_modules=NOTHING,
        load_in_4bit=setup.load_in_4bit,
        load_in_8bit=setup.load_in_8bit,
        prepare_for_kbit=setup.prepare_for_kbit,
        half_tables=setup.half_tables,
        images=setup.images,
        frozen=setup.frozen,
        frozen_weights=setup.frozen_weights,
    )


@lru_cache(maxsize=256)
def _kept(setup: TrainingSetup, architecture: Architecture) -> Kept:
    layers = _layers_of(architecture)
    number = Counter(layers)
    once = list(number)  # as they come, so that the first is the first
    first = _grows(setup, _of_layers(architecture, once))
    kept = first.layers
    for layer, times in number.items():
        if times > 1:
            more = _grows(setup, _of_layers(architecture, [*once, layer]))
            kept += (times - 1) * (more.layers - first.layers)
    return Kept(kept, first.loss)


def _layers_of(a: Architecture) -> list[_Layer]:
    slides: tuple[bool, ...] = a.slides or (a.windowed_layers > 0,) * a.decoder_layers
    decoder = [
        _Layer(
            "decoder",
            slides[at],
            not a.turns or a.turns[at],
            bool(a.dense) and a.dense[at],
            mixes=bool(a.mixes) and a.mixes[at],
            reuses=bool(a.reuses) and a.reuses[at],
        )
        for at in range(a.decoder_layers)
    ]
    whole = a.encoder_layers - a.windowed_layers  # ModernBERT's see all in turn, the first among them
    encoder = [
        _Layer("encoder", at >= whole and a.windowed_layers > 0, window=a.windows[at] if a.windows else 0)
        for at in range(a.encoder_layers)
    ]
    return _tower_of(a) + encoder + decoder


def _tower_of(a: Architecture) -> list[_Layer]:
    """The layers of what sees pictures; none where single ones of them are read by their number (LLaVA)."""
    if a.vision is None or a.vision.states:
        return []
    return [_Layer("tower", slides=at not in a.vision.full_layers) for at in range(a.vision.depth)]


def _of_layers(a: Architecture, layers: list[_Layer]) -> Architecture:
    """The architecture with these layers; those that reuse what others made come behind them."""
    layers = sorted(layers, key=lambda layer: layer.reuses)
    encoder, decoder, tower = (
        [layer for layer in layers if layer.stack == stack] for stack in ("encoder", "decoder", "tower")
    )
    seen = a.vision
    if seen is not None and tower:
        whole = tuple(at for at, layer in enumerate(tower) if not layer.slides)
        seen = seen._replace(depth=len(tower), full_layers=whole)
    return a._replace(
        vision=seen,
        encoder_layers=len(encoder),
        decoder_layers=len(decoder),
        windowed_layers=sum(layer.slides for layer in encoder + decoder),
        slides=tuple(layer.slides for layer in decoder) if a.slides else (),
        turns=tuple(layer.turns for layer in decoder) if a.turns else (),
        dense=tuple(layer.dense for layer in decoder) if a.dense else (),
        dense_layers=sum(layer.dense for layer in decoder),
        mixes=tuple(layer.mixes for layer in decoder) if a.mixes else (),
        reuses=tuple(layer.reuses for layer in decoder) if a.reuses else (),
        windows=tuple(layer.window for layer in encoder) if a.windows else (),
    )


def _grows(setup: TrainingSetup, architecture: Architecture) -> Kept:
    """What is kept of one sample more: beside the output layer, and of it."""
    few, many = (_alive(setup, architecture, rows) for rows in BATCHES)
    samples = BATCHES[1] - BATCHES[0]
    return Kept((many.layers - few.layers) // samples, (many.loss - few.loss) // samples)


def _alive(setup: TrainingSetup, architecture: Architecture, rows: int) -> Kept:
    """What was made in a forward pass over ``rows`` samples and is alive at its end."""
    with held():
        recording = world.begin(AMPERE)
        model = model_of(setup, architecture)
        model.inputs_need = setup.method != "full"
        start = len(recording.log)
        batch = inputs_of(model, rows, setup.max_source_length, setup.max_target_length, masked=setup.padded)
        loss = loss_of(model, batch, smoothed=setup.label_smoothing_factor > 0)
        (found,) = recording.sums([len(recording.log) - 1], since=start).values()
        del loss, batch, model
    output = sum(found.get(term, 0) for term in OUTPUT)
    return Kept(sum(found.values()) - output, output)
