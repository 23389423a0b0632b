"""ModernBERT as ``modeling_modernbert.py`` reads: norms before the sublayers, rotary positions, a gated feed-forward.

Some layers see all tokens, the others a window; with one implementation both ask for the same blocks.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.attention import eager_forward, rotary_tables, rotate_half, sdpa_forward
from kb.memory.engine.families.encoder import Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, Head, activation_of, answered, classified
from kb.memory.engine.families.masks import padding_mask
from kb.memory.engine.modules import KEPT_HEADS, LayerNorm, Linear
from kb.memory.engine.ops.losses import averaged_rows
from kb.memory.engine.tensor import F32, I64, Tensor, new
from kb.memory.engine.world import world

USUAL_PERIOD = 3  # global_attn_every_n_layers


class Attention:
    """``ModernBertAttention``: one product, whose queries and keys are turned in fp32."""

    def __init__(self, model: "ModernBert", path: str) -> None:
        a = model.architecture
        self.model, self.path, self.dropout = model, path, DROPPED if a.attention_dropout else 0.0
        self.qkv = Linear(model, f"{path}.Wqkv", a.d_model, 3 * a.d_model, bias=a.qkv_bias)
        self.output = Linear(model, f"{path}.Wo", a.d_model, a.d_model, bias=a.output_bias)

    def __call__(self, x: Tensor, mask: Any, cos: Tensor, sin: Tensor) -> tuple[Tensor, Any]:
        world.inside["Attention"] = self.path
        a = self.model.architecture
        qkv = self.qkv(x)
        qkv = ops.view(qkv, (*x.shape[:2], 3, a.num_heads, a.d_kv))
        q, k, v = (ops.transpose(one, 1, 2) for one in ops.unbind(qkv, 2))
        q, k = turned(q, k, cos, sin)
        weights = None
        if self.model.options.eager:
            out, weights = eager_forward(q, k, v, mask, dropout=self.dropout, wide=True)
        else:
            out = sdpa_forward(q, k, v, mask, dropout=self.dropout)
        out = ops.contiguous(ops.reshape(out, x.shape))
        out = ops.dropout(self.output(out), self.dropout)
        return out, weights


def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``: in fp32, and cast back at its end."""
    dtype = q.dtype
    q_embed = ops.add(ops.mul(ops.cast(q, F32), cos), ops.mul(rotate_half(ops.cast(q, F32)), sin))
    k_embed = ops.add(ops.mul(ops.cast(k, F32), cos), ops.mul(rotate_half(ops.cast(k, F32)), sin))
    return ops.cast(q_embed, dtype), ops.cast(k_embed, dtype)


class Layer:
    """``ModernBertEncoderLayer``; the first has no norm before its attention."""

    def __init__(self, model: "ModernBert", path: str, at: int) -> None:
        a, self.path = model.architecture, path
        self.norm1 = model.norm(f"{path}.attn_norm") if at else None
        self.attention = Attention(model, f"{path}.attn")
        self.norm2 = model.norm(f"{path}.mlp_norm")
        self.up = Linear(model, f"{path}.mlp.Wi", a.d_model, 2 * a.d_ff, bias=a.mlp_bias)
        self.down = Linear(model, f"{path}.mlp.Wo", a.d_ff, a.d_model, bias=a.mlp_bias)
        self.activation, self.dropout = activation_of(a.activation), DROPPED if a.hidden_dropout else 0.0

    def __call__(self, x: Tensor, mask: Any, tables: tuple[Tensor, Tensor]) -> Tensor:
        world.inside["Layer"] = self.path
        attended, _ = self.attention(self.norm1(x) if self.norm1 else x, mask, *tables)
        x = ops.add(x, attended)
        return ops.add(x, self.feed_forward(self.norm2(x)))

    def feed_forward(self, x: Tensor) -> Tensor:
        wide, gate = ops.split(self.up(x), (self.down.weight.shape[1],) * 2)
        return self.down(ops.dropout(ops.mul(self.activation(wide), gate), self.dropout))


class ModernHead(Head):
    """A dense layer, an activation and a norm, then the labels or the vocabulary."""

    def __init__(self, model: "ModernBert") -> None:
        super().__init__(model)
        a, self.kind = model.architecture, model.architecture.head
        self.dense = Linear(model, "head.dense", a.d_model, a.d_model, bias=False)
        self.norm = model.norm("head.norm")
        if self.kind == "masked":
            tied = model.words if a.tied else None
            self.outputs = Linear(
                model, "decoder", a.d_model, a.vocab_size, bias=a.head_bias, weight=tied, packs=False, head=True
            )
        else:
            self.outputs = self.outputs_of("classifier")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        """``pooled`` is the batch's mask."""
        if self.kind == "masked":
            logits = self.outputs(self.predict(sequence))
            return masked_loss(logits, labels, smoothed), logits
        read = sequence
        if self.kind == "sequence":
            read = averaged_rows(read, pooled) if self.model.architecture.averages else ops.indexed(read, 1)
        x = self.predict(read)
        x = ops.dropout(x, self.dropout)
        if self.kind == "span":
            return answered(self.outputs(x), labels)
        logits = self.outputs(x)
        return classified(logits, labels, smoothed), logits

    def predict(self, x: Tensor) -> Tensor:
        return self.norm(ops.gelu(self.dense(x)))


def masked_loss(logits: Tensor, labels: list[Tensor], smoothed: bool) -> Tensor | None:
    """``ForMaskedLMLoss`` (loss/loss_utils.py): in fp32."""
    return None if smoothed else classified(ops.cast(logits, F32), labels, smoothed)


class ModernBert(Encoder):
    """ModernBERT with a head; its norms have no bias."""

    adapted_tables = ("tok_embeddings",)
    gathers = False  # its table and norms under ZeRO-3, which were not compared

    @property
    def kept_heads(self) -> tuple[str, ...]:  # type: ignore[override]
        """PEFT's class for spans looks for ``qa_outputs``, which is called ``classifier`` here and stays frozen."""
        return () if self.architecture.head == "span" else KEPT_HEADS

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)

    def norm(self, path: str) -> LayerNorm:
        """A norm of the model's width."""
        return LayerNorm(self, path, self.architecture.d_model, bias=False)

    @property
    def period(self) -> int:
        """One of so many layers sees all tokens, the first among them: three, where their number agrees."""
        layers = self.architecture.encoder_layers
        whole = layers - self.architecture.windowed_layers
        return USUAL_PERIOD if -(-layers // USUAL_PERIOD) == whole else -(-layers // whole) if whole else 0

    def build(self) -> None:
        a = self.architecture
        self.words = self.table("model.embeddings.tok_embeddings", a.vocab_size, a.d_model)
        self.first_norm = self.norm("model.embeddings.norm")
        self.layers = [Layer(self, f"model.layers.{at}", at) for at in range(a.encoder_layers)]
        self.last_norm = self.norm("model.final_norm")
        self.kinds = (a.windowed_layers < a.encoder_layers) + (a.windowed_layers > 0)
        for _ in range(2 * self.kinds):  # inv_freq and original_inv_freq
            self.buffer((a.d_kv // 2,), F32)
        self.head = ModernHead(self)

    def base(self, ids: Tensor, padding: Any) -> tuple[Tensor, Any]:
        """The last layer's states, and the batch's mask."""
        world.recording.term = "activations_encoder"
        a, options, (rows, length) = self.architecture, self.options, ids.shape
        positions = new((1, length), I64)
        words = looked_up(self, "model.embeddings.tok_embeddings", ids, self.words, hooked=True)
        x = self.first_norm(words)
        del words
        x = ops.dropout(x, DROPPED if a.embedding_dropout else 0.0)
        embedded = x  # in the masks' arguments, which have a name of their own
        eager = x.dtype if options.eager else None
        masks = [
            padding_mask(rows, length, length, padding, eager=eager, padded=options.padded, window=window)
            for window in (None, a.window)
        ]
        tables = [rotary_tables(1, length, a.d_kv, x.dtype) for _ in range(self.kinds)]
        for at, layer in enumerate(self.layers):
            slides = self.period == 0 or at % self.period > 0
            x = self.layer(layer, x, masks[slides], tables[-1 if slides else 0])
        x = self.last_norm(x)
        del positions, embedded
        return x, padding
