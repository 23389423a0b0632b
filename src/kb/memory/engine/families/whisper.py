"""Whisper as ``modeling_whisper.py`` reads: sound as features of one length, encoded by convolutions and layers."""

from typing import Any

from kb.memory.engine import ops
from kb.memory.engine.families.attention import PairedCache
from kb.memory.engine.families.bart import DROPPED, BartAttention, BartLayer, Traits
from kb.memory.engine.families.masks import causal_mask, packed_sequences, shifted_right
from kb.memory.engine.modules import LayerNorm, Linear, Model
from kb.memory.engine.tensor import F32, I64, Tensor, new
from kb.memory.engine.world import world

KERNEL = 3  # of both convolutions; the second takes every other frame
FRAMES = 2  # of the features, a position of the encoder


class Conv:
    """``torch.nn.Conv1d`` with padding, so that only the stride shortens."""

    def __init__(self, model: "Whisper", path: str, rows: int, columns: int, stride: int) -> None:
        self.weight = model.parameter(f"{path}.weight", (columns, rows, KERNEL))
        self.bias = model.parameter(f"{path}.bias", (columns,))
        self.path, self.stride = path, stride

    def __call__(self, x: Tensor) -> Tensor:
        world.inside["Conv"] = self.path
        return ops.conv1d(x, self.weight, self.bias, self.stride)


class WhisperAttention(BartAttention):
    """``WhisperAttention``: keys without a bias; what it multiplies is copied by heads."""

    def __init__(self, model: "Whisper", path: str, at: int) -> None:
        d = model.architecture.d_model
        self.model, self.at, self.path = model, at, path
        self.k = Linear(model, f"{path}.k_proj", d, d)
        self.v, self.q, self.o = (
            Linear(model, f"{path}.{name}", d, d, bias=True) for name in ("v_proj", "q_proj", "out_proj")
        )
        self.dropout = DROPPED if model.architecture.attention_dropout else 0.0

    def heads(self, x: Tensor) -> Tensor:
        return ops.contiguous(super().heads(x))

    def queries(self, x: Tensor) -> Tensor:
        return self.heads(ops.scale(self.q(x)))

    def made_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        k = self.heads(self.k(states))
        return k, self.heads(self.v(states))


class WhisperLayer(BartLayer):
    """An encoder's or a decoder's layer; norms come before the sublayers."""

    clamps = True

    def __init__(self, model: "Whisper", path: str, at: int, *, decoder: bool) -> None:
        super().__init__(model, path, at, decoder=decoder)
        self.dropout = DROPPED if model.architecture.hidden_dropout else 0.0

    def attention_of(self, path: str, at: int) -> Any:
        return WhisperAttention(self.model, path, at)


class WhisperEncoder:
    """``WhisperEncoder``: two convolutions, fixed positions, layers."""

    def __init__(self, model: "Whisper") -> None:
        a, path = model.architecture, "model.encoder"
        self.model, self.path = model, path
        self.conv1 = Conv(model, f"{path}.conv1", a.mel_bins, a.d_model, 1)
        self.conv2 = Conv(model, f"{path}.conv2", a.d_model, a.d_model, 2)
        self.positions = model.table(f"{path}.embed_positions", a.audio_positions, a.d_model, frozen=True)
        self.layers = [WhisperLayer(model, f"{path}.layers.{at}", at, decoder=False) for at in range(a.encoder_layers)]
        self.norm = LayerNorm(model, f"{path}.layer_norm", a.d_model)

    def __call__(self, features: Tensor, padding: Any = None) -> Tensor:
        world.inside["WhisperEncoder"] = self.path
        self.model.stack = "encoder"
        world.recording.term = "activations_encoder"
        a = self.model.architecture
        heard = self.conv1(features)
        self.model.require_input_grads(heard)
        embeds = ops.gelu(heard)
        del heard
        embeds = ops.gelu(self.conv2(embeds))
        embeds = ops.permute(embeds, (0, 2, 1))
        places = new((a.audio_positions,), I64)
        x = ops.add(embeds, ops.embedding(places, self.positions))
        x = ops.dropout(x, DROPPED if a.hidden_dropout else 0.0)
        for layer in self.layers:
            x = self.model.layer(layer, x, None)
        x = self.norm(x)
        del embeds, places
        return x


class WhisperDecoder:
    """``WhisperDecoder``: learned positions, looked up by number."""

    def __init__(self, model: "Whisper") -> None:
        a, path = model.architecture, "model.decoder"
        self.model, self.path = model, path
        self.words = model.table(f"{path}.embed_tokens", a.vocab_size, a.d_model)
        self.positions = model.table(f"{path}.embed_positions", a.max_positions or 0, a.d_model)
        self.layers = [WhisperLayer(model, f"{path}.layers.{at}", at, decoder=True) for at in range(a.decoder_layers)]
        self.norm = LayerNorm(model, f"{path}.layer_norm", a.d_model)

    def __call__(self, ids: Tensor, other: Tensor, cache: PairedCache | None = None) -> Tensor:
        world.inside["WhisperDecoder"] = self.path
        model, (batch, length) = self.model, ids.shape
        model.stack = "decoder"
        world.recording.term = "activations_decoder"
        embeds = ops.embedding(ids, self.words)
        model.require_input_grads(embeds)
        past = cache.own.length() if cache is not None else 0
        first = new((length,), I64)
        row = new((length,), I64)
        del first
        places = new((batch, length), I64)
        del row
        positions = ops.looked_up(self.positions, places)
        x = ops.add(embeds, positions)
        x = ops.dropout(x, DROPPED if model.architecture.hidden_dropout else 0.0)
        eager = embeds.dtype if model.options.eager else None
        if cache is None:
            packed_sequences(batch, length)
        mask = causal_mask(batch, length, past + length, None, eager=eager, padded=False, positions=False)
        for layer in self.layers:
            x = model.layer(layer, x, mask, other, None, cache)
        x = self.norm(x)
        del embeds, places, positions, mask
        return x


class Whisper(Model):
    """``WhisperForConditionalGeneration``."""

    encodes = hears = True
    gathers = False
    stack = "encoder"
    special_tokens = 4
    forces_end = False
    traits = Traits(norm_first=True)
    prompt = 4  # start, language, task, no timestamps

    def build(self) -> None:
        a = self.architecture
        self.encoder = WhisperEncoder(self)
        self.decoder = WhisperDecoder(self)
        weight = self.decoder.words if a.tied else None
        self.output = Linear(self, "proj_out", a.d_model, a.vocab_size, weight=weight, packs=False, head=True)

    def every_layer(self) -> list[Any]:
        return [*self.encoder.layers, *self.decoder.layers]

    def batch(self, rows: int, source: int, target: int) -> list[Any]:
        """Features of one length whatever ``source`` is, and no mask; autocast alone takes fp32 for narrow weights.

        Preparation for training in 4 or 8 bits makes the convolutions fp32, and with them what they are given.
        """
        a = self.architecture
        dtype = F32 if self.options.autocast else self.encoder.conv1.weight.dtype
        features = new((rows, a.mel_bins, FRAMES * a.audio_positions), dtype)
        return [features, None, new((rows, target), I64)]

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        features, _, labels = batch
        decoder_ids = new(labels.shape, I64) if smoothed else shifted_right(labels)
        decoded, encoded = self.model(features, decoder_ids)
        world.recording.term = "activations_head"
        logits = self.output(decoded)
        rows, length, vocabulary = logits.shape
        loss = None if smoothed else ops.cross_entropy(ops.view(logits, (rows * length, vocabulary)), labels)
        return loss, logits, encoded

    def model(self, features: Tensor, decoder_ids: Tensor) -> tuple[Tensor, Tensor]:
        """``WhisperModel``: the decoder's and the encoder's last states."""
        encoded = self.encoder(features)
        return self.decoder(decoder_ids, encoded), encoded

    def step(self, ids: Tensor, padding: Any, encoded: Tensor, cache: PairedCache) -> Tensor:
        """One step of decoding: the logits of the last tokens."""
        return self.output(self.decoder(ids, encoded, cache))
