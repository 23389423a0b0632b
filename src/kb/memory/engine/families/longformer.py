"""Longformer as ``modeling_longformer.py`` reads: a RoBERTa whose tokens see a window, and the first of a row all.

Input is padded to whole windows inside of the model. Attention has no other implementation.
"""

from typing import Any

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.memory.engine import ops
from kb.memory.engine.adapters import looked_up
from kb.memory.engine.families.encoder import BertLayer, Encoder
from kb.memory.engine.families.encoder_heads import DROPPED, activation_of, head_of
from kb.memory.engine.families.masks import counted_places, padding_mask
from kb.memory.engine.families.windows import WindowAttention, lengthened, masks_of, spread_over
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm
from kb.memory.engine.tensor import BOOL, F32, I64, Tensor, like, new
from kb.memory.engine.world import world


class Embeddings:
    """``LongformerEmbeddings``: words, kinds of segments, and positions that count what is no padding."""

    def __init__(self, model: "Longformer", path: str) -> None:
        a, self.model, self.path = model.architecture, model, path
        self.words = model.table(f"{path}.word_embeddings", a.vocab_size, a.d_model)
        self.kinds = model.table(f"{path}.token_type_embeddings", a.type_vocab_size, a.d_model)
        self.norm = LayerNorm(model, f"{path}.LayerNorm", a.d_model)
        self.places = model.table(f"{path}.position_embeddings", a.max_positions or 0, a.d_model)
        self.dropout = DROPPED if a.embedding_dropout else 0.0

    def __call__(self, ids: Tensor, kinds: Tensor) -> Tensor:
        world.inside["Embeddings"] = self.path
        places = counted_places(ids, past=False)
        words = looked_up(self.model, f"{self.path}.word_embeddings", ids, self.words, hooked=True)
        by_place = looked_up(self.model, f"{self.path}.position_embeddings", places, self.places)
        by_kind = looked_up(self.model, f"{self.path}.token_type_embeddings", kinds, self.kinds)
        x = ops.add(ops.add(words, by_place), by_kind)
        x = self.norm(x)
        x = ops.dropout(x, self.dropout)
        del places, words, by_place, by_kind
        return x


class Layer(BertLayer):
    """``LongformerLayer``."""

    def attention_of(self, model: Any, path: str) -> Any:
        at = int(path.split(".layer.")[1].partition(".")[0])
        attention = WindowAttention(model, path, model.architecture.windows[at])
        return lambda x, masks: (attention(x, masks), None)


class Longformer(Encoder):
    """Longformer with the head that its config names."""

    eager_only = True
    reaches_all = False  # of tokens that are tagged or masked none is global

    @classmethod
    def check(cls, architecture: Architecture, setup: TrainingSetup) -> None:
        activation_of(architecture.activation)
        if setup.attn_implementation == "flash":
            raise NotFollowedError("flash_attention_2")  # there is none
        if architecture.head == "span":
            raise NotFollowedError("questions of longformer")  # as many global tokens as they are long

    def build(self) -> None:
        a = self.architecture
        self.embeddings: Any = Embeddings(self, "longformer.embeddings")
        self.layers: Any = [Layer(self, f"longformer.encoder.layer.{at}") for at in range(a.encoder_layers)]
        self.head = head_of(self)

    def forward(self, *batch: Any, smoothed: bool = False) -> tuple[Any, ...]:
        """Of a classifier of sequences the first token is global: what says so lives until the loss is there."""
        ids, padding, *labels = batch
        spread = like(ids) if self.architecture.head == "sequence" else None
        sequence, pooled = self.base(ids, padding, spread)
        world.recording.term = "activations_head"
        found: tuple[Any, ...] = self.head(sequence, pooled, labels, smoothed)
        del spread
        return found

    def base(self, ids: Tensor, padding: Any, spread: Tensor | None = None) -> tuple[Tensor, Any]:
        """``LongformerModel``: the last layer's states, and the first token's pooled where it is asked for."""
        world.recording.term = "activations_encoder"
        (rows, given), longest = ids.shape, max(self.architecture.windows)
        mask = padding if padding is not None else new(ids.shape, F32)
        kinds = new(ids.shape, I64)
        if spread is not None:
            more = like(spread)
            mask = like(mask)
            del more
        if given % longest:
            ids, mask, kinds = (lengthened(each, -given % longest) for each in (ids, mask, kinds))
        embedded = self.embeddings(ids, kinds)
        length = ids.shape[1]
        numbers = spread_over(self.mask_of(mask, embedded), rows, length)
        same = like(mask, BOOL)
        del same
        x = self.encoder(embedded, numbers, given)
        pooled = self.head.pooled(x)
        del mask, kinds, embedded, numbers
        return x, pooled

    def mask_of(self, mask: Tensor, embedded: Tensor) -> Tensor:
        """``create_bidirectional_mask`` of every pair of tokens, whatever is padded.

        What wraps it (``deprecate_kwarg``) holds the copy of the batch's mask that it is given.
        """
        rows, length = mask.shape
        given = [like(mask)]
        held = () if self.options.earlier.masks_let_go else tuple(given)
        found = padding_mask(rows, length, length, given.pop(), eager=embedded.dtype, padded=True, skips=False)
        assert found is not None
        del held
        return found

    def encoder(self, x: Tensor, numbers: Tensor, given: int) -> Tensor:
        """``LongformerEncoder``; what was padded is cut off."""
        masks = masks_of(numbers, first=self.architecture.head == "sequence")
        for layer in self.layers:
            x = self.layer(layer, x, masks)
        del masks
        return x if x.shape[1] == given else ops.cut(x, 1, given)
