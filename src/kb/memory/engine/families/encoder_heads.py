"""Heads of encoders with their losses: over the first token, every token, spans, and the vocabulary.

As the classes of ``modeling_bert.py`` and its kin read; each is placed behind the stack.
"""

from typing import TYPE_CHECKING, Any

from kb.memory.engine import ops
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.modules import LayerNorm, Linear
from kb.memory.engine.tensor import Tensor, like
from kb.memory.engine.world import world

if TYPE_CHECKING:
    from kb.memory.engine.families.encoder import Encoder

DROPPED = 0.1  # any rate but 0 allocates the same
ACTIVATIONS = {
    "gelu": ops.gelu,
    "gelu_new": ops.gelu_new,
    "gelu_pytorch_tanh": ops.gelu,
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}
POOLED = {"bert": "bert.pooler.dense", "albert": "albert.pooler"}
# the same of bare models, which have it whatever reads them
POOLERS = {
    **POOLED,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "roberta.pooler.dense"),
    **{kind: f"{kind}.pooler.dense" for kind in ("mpnet", "longformer")},
}
# dense, norm, output layer over the vocabulary, and whether the norm is placed first
_TRANSFORM = "cls.predictions.transform"
MASKED = {
    **dict.fromkeys(
        ("bert", "deberta-v2", "big_bird"),
        (f"{_TRANSFORM}.dense", f"{_TRANSFORM}.LayerNorm", "cls.predictions.decoder", False),
    ),
    "electra": ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", True),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector", False),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.decoder", True),
}
ROBERTA_MASKED = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", False)
OWN_ACTIVATION = (
    "bert",
    "big_bird",
    "deberta-v2",
    "distilbert",
    "albert",
)  # the others' masked heads take gelu, whatever the layers do


def activation_of(name: str) -> Any:
    """The operator of an activation.

    Raises:
        NotFollowedError: one that is written out otherwise.
    """
    if name not in ACTIVATIONS:
        raise NotFollowedError(f"hidden_act {name}")
    return ACTIVATIONS[name]


class Head:
    """What the heads share. ``dropout`` is that of the classifier, ``pooler`` the model's own layer over the first
    token."""

    pooler: Any = None

    def __init__(self, model: "Encoder") -> None:
        self.model = model
        self.dropout = DROPPED if model.architecture.head_dropout else 0.0

    def outputs_of(self, path: str) -> Linear:
        """The layer to the labels; 4 bits pack it where PEFT does not train it."""
        a, wide = self.model.architecture, self.model.options.adapters is not None
        return Linear(self.model, path, a.d_model, a.labels, bias=True, packs=not wide)

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        """The loss, None where the Trainer smooths the labels, and the logits."""
        raise NotImplementedError

    def pooled(self, sequence: Tensor) -> Tensor | None:
        """What the model itself makes of the first token; None where it is built without a pooler."""
        if self.pooler is None:
            return None
        first = ops.indexed(sequence, 1)
        pooled = self.pooler(first)
        pooled = ops.tanh(pooled)
        return pooled


class PooledHead(Head):
    """BERT's and ALBERT's classifier of sequences: a dense layer over the first token belongs to the model."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        a = model.architecture
        self.pooler = Linear(model, POOLED[a.model_type], a.d_model, a.d_model, bias=True)
        self.classifier = self.outputs_of("classifier")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        pooled = ops.dropout(pooled, self.dropout)
        logits = self.classifier(pooled)
        return classified(logits, labels, smoothed), logits


class FirstTokenHead(Head):
    """``RobertaClassificationHead`` (tanh), ELECTRA's (gelu) and DistilBERT's (relu, one dropout)."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        a, kind = model.architecture, model.architecture.model_type
        self.drops_first = kind != "distilbert"
        names = ("classifier.dense", "classifier.out_proj") if self.drops_first else ("pre_classifier", "classifier")
        self.activation = {"electra": ops.gelu, "distilbert": ops.relu}.get(kind, ops.tanh)
        if kind == "big_bird":
            self.activation = activation_of(a.activation)
        wide = model.options.adapters is not None
        self.dense = Linear(model, names[0], a.d_model, a.d_model, bias=True, packs=not wide)
        self.classifier = self.outputs_of(names[1])

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        logits = self.classify(sequence)
        return classified(logits, labels, smoothed), logits

    def classify(self, x: Tensor) -> Tensor:
        x = ops.indexed(x, 1)
        x = ops.dropout(x, self.dropout) if self.drops_first else x
        x = self.dense(x)
        x = self.activation(x)
        x = ops.dropout(x, self.dropout)
        return self.classifier(x)


class NoHead(Head):
    """A bare model: the pooler over the first token that its class has is asked, and read by nobody."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        a, path = model.architecture, POOLERS.get(model.architecture.model_type)
        if path is not None:
            self.pooler = Linear(model, path, a.d_model, a.d_model, bias=True)


class TokenHead(Head):
    """A label for every token."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        self.classifier = self.outputs_of("classifier")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        sequence = ops.dropout(sequence, self.dropout)
        logits = self.classifier(sequence)
        return classified(logits, labels, smoothed), logits


class SpanHead(Head):
    """The first and the last token of an answer: two rows of logits, a loss of each."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        a = model.architecture
        self.drops = a.model_type == "distilbert"
        self.outputs = self.outputs_of("qa_outputs")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        if self.drops:
            sequence = ops.dropout(sequence, self.dropout)
        return answered(self.outputs(sequence), labels)


class MaskedHead(Head):
    """A dense layer, an activation, a norm, and the output layer over the vocabulary."""

    def __init__(self, model: "Encoder") -> None:
        super().__init__(model)
        a, width = model.architecture, model.architecture.embedding_size or model.architecture.d_model
        dense, norm, output, norm_first = MASKED.get(a.model_type, ROBERTA_MASKED)
        if norm_first:
            self.norm = LayerNorm(model, norm, width)
        self.dense = Linear(model, dense, a.d_model, width, bias=True)
        if not norm_first:
            self.norm = LayerNorm(model, norm, width)
        weight = model.embeddings.words if a.tied else None
        first = next(at for at, (path, _) in enumerate(model.parameters) if path.startswith(dense))
        self.decoder = Linear(model, output, width, a.vocab_size, bias=True, weight=weight, packs=False, head=True)
        if a.model_type not in ("electra", "distilbert"):  # the bias is the head's own: it stands before its layers
            model.parameters.insert(first, model.parameters.pop())
        self.activation = activation_of(a.activation if a.model_type in OWN_ACTIVATION else "gelu")

    def __call__(self, sequence: Tensor, pooled: Any, labels: list[Tensor], smoothed: bool) -> tuple[Any, ...]:
        logits = self.predict(sequence)
        return classified(logits, labels, smoothed), logits

    def predict(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.activation(x)
        x = self.norm(x)
        x = self.decoder(x)
        return x


def answered(logits: Tensor, labels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The loss over an answer's first and last token, and the logits of both."""
    start, end = ops.split(logits, (1, 1))
    start = ops.contiguous(ops.view(start, start.shape[:2]))
    end = ops.contiguous(ops.view(end, end.shape[:2]))
    starts, ends = (like(label) for label in labels)  # clamped
    first = ops.cross_entropy(start, starts)
    last = ops.cross_entropy(end, ends)
    loss = ops.scale(ops.add(first, last))
    del logits, first, last, starts, ends
    return loss, start, end


def classified(logits: Tensor, labels: list[Tensor], smoothed: bool) -> Tensor | None:
    """``CrossEntropyLoss`` of rows of logits as they are; None where the Trainer smooths the labels itself."""
    if smoothed:
        return None
    world.recording.term = "activations_head"
    rows = 1
    for size in logits.shape[:-1]:
        rows *= size
    return ops.cross_entropy(ops.view(logits, (rows, logits.shape[-1])), labels[0])


def head_of(model: "Encoder") -> Head:
    """The head that the architecture names."""
    a = model.architecture
    if a.head == "sequence":
        return PooledHead(model) if a.model_type in POOLED else FirstTokenHead(model)
    kinds: dict[str, type[Head]] = {"token": TokenHead, "span": SpanHead, "masked": MaskedHead, "embedding": NoHead}
    return kinds[a.head](model)
