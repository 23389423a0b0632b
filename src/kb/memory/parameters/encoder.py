"""Encoder-only models by their parts: the modules under transformers' names, and the parameters they hold."""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.memory.parameters import Counts, LinearModule, table_module


class _Names(NamedTuple):
    """Dotted names; ``layer`` ends with the star of the layer's number. Positions' projections are DeBERTa's."""

    root: str = "bert"
    layer: str = "encoder.layer.*"
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    up: str = "intermediate.dense"
    down: str = "output.dense"


_BERT = _Names()
_NAMES = {
    "bert": _BERT,
    "roberta": _BERT._replace(root="roberta"),
    "xlm-roberta": _BERT._replace(root="roberta"),
    "camembert": _BERT._replace(root="roberta"),
    "electra": _BERT._replace(root="electra"),
    "deberta-v2": _BERT._replace(
        root="deberta", qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")
    ),
    "distilbert": _Names("distilbert", "transformer.layer.*", ("attention.q_lin", "attention.k_lin",
                         "attention.v_lin"), "attention.out_lin", "ffn.lin1", "ffn.lin2"),
    "albert": _Names("albert", "encoder.albert_layer_groups.0.albert_layers.*", ("attention.query", "attention.key",
                     "attention.value"), "attention.dense", "ffn", "ffn_output"),
}  # fmt: skip


class HeadLayer(NamedTuple):
    """A linear layer outside the stack: between embeddings and stack (``entry``), or above the stack; ``kept`` says
    that PEFT trains it whole beside the adapters (its name ends in "classifier" or lies inside one)."""

    name: str
    in_features: int
    out_features: int
    entry: bool = False
    kept: bool = False


def embedded(a: Architecture) -> int:
    """Width of the token embeddings."""
    return a.embedding_size or a.d_model


def relative_rows(a: Architecture) -> int:
    """Rows of DeBERTa's table of relative positions: each distance both ways."""
    return 2 * a.relative_buckets if a.relative else 0


def head_layers(a: Architecture) -> tuple[HeadLayer, ...]:
    """The linear layers outside the stack, as transformers names them; the output layer over the vocabulary apart."""
    width, found = a.d_model, []
    root = _NAMES[a.model_type].root
    if embedded(a) != width:
        name = {"albert": "encoder.embedding_hidden_mapping_in", "electra": "embeddings_project"}.get(a.model_type)
        found.append(HeadLayer(f"{root}.{name or 'embeddings.embed_proj'}", embedded(a), width, entry=True))
    if a.head == "masked":
        names = {
            "bert": "cls.predictions.transform.dense",
            "electra": "generator_predictions.dense",
            "deberta-v2": "cls.predictions.transform.dense",
            "distilbert": "vocab_transform",
            "albert": "predictions.dense",
        }
        found.append(HeadLayer(names.get(a.model_type, "lm_head.dense"), width, embedded(a)))
    elif a.head == "span":
        found.append(HeadLayer("qa_outputs", width, a.labels, kept=True))
    elif a.head == "token":
        found.append(HeadLayer("classifier", width, a.labels, kept=True))
    else:
        found += _sequence_head(a, root)
    return tuple(found)


def _sequence_head(a: Architecture, root: str) -> list[HeadLayer]:
    width = a.d_model
    if a.model_type in ("bert", "albert", "deberta-v2"):
        name = {"bert": "bert.pooler.dense", "albert": "albert.pooler"}.get(a.model_type, "pooler.dense")
        return [HeadLayer(name, width, width), HeadLayer("classifier", width, a.labels, kept=True)]
    if a.model_type == "distilbert":
        return [
            HeadLayer("pre_classifier", width, width, kept=True),
            HeadLayer("classifier", width, a.labels, kept=True),
        ]
    return [
        HeadLayer("classifier.dense", width, width, kept=True),
        HeadLayer("classifier.out_proj", width, a.labels, kept=True),
    ]


def modules_of(a: Architecture) -> tuple[LinearModule, ...]:
    """Linear layers and embeddings. What PEFT trains whole is left out: it is no target of LoRA."""
    names, width = _NAMES[a.model_type], a.d_model
    layers = 1 if a.shared_layers else a.encoder_layers
    stem = f"{names.root}.embeddings"
    found = [table_module(f"{stem}.word_embeddings", a.vocab_size, embedded(a))]
    if a.max_positions:
        found.append(table_module(f"{stem}.position_embeddings", a.max_positions, embedded(a)))
    if a.type_vocab_size:
        found.append(table_module(f"{stem}.token_type_embeddings", a.type_vocab_size, embedded(a)))
    if a.relative:
        found.append(table_module(f"{names.root}.encoder.rel_embeddings", relative_rows(a), width))
    shapes = [(name, width, width) for name in (*names.qkv, names.output)]
    if a.relative and not a.share_att_key:
        projections = {"c2p": "attention.self.pos_key_proj", "p2c": "attention.self.pos_query_proj"}
        shapes += [(projections[kind], width, width) for kind in a.relative.split("|")]
    shapes += [(names.up, width, a.d_ff), (names.down, a.d_ff, width)]
    found += [LinearModule(f"{names.root}.{names.layer}.{name}", "encoder", rows, columns, layers)
              for name, rows, columns in shapes]  # fmt: skip
    found += [LinearModule(layer.name, "head", layer.in_features, layer.out_features, 1)
              for layer in head_layers(a) if not layer.kept]  # fmt: skip
    if a.head == "masked":
        name = {"electra": "generator_lm_head", "distilbert": "vocab_projector", "bert": "cls.predictions.decoder",
                "albert": "predictions.decoder", "deberta-v2": "cls.predictions.decoder"}  # fmt: skip
        found.append(LinearModule(name.get(a.model_type, "lm_head.decoder"), "head", embedded(a), a.vocab_size, 1))
    return tuple(found)


def trained_whole(a: Architecture) -> int:
    """Parameters that PEFT trains beside the adapters: the classifier, where the task is classification."""
    return sum((layer.in_features + 1) * layer.out_features for layer in head_layers(a) if layer.kept)


def count_parts(a: Architecture) -> Counts:
    """Parameters of an encoder-only model with its head, as transformers 5 builds it from the same dimensions."""
    linear = [m for m in modules_of(a) if m.stack == "encoder"]
    layers = 1 if a.shared_layers else a.encoder_layers
    tables = (a.max_positions or 0) + a.type_vocab_size
    outside = sum((layer.in_features + 1) * layer.out_features for layer in head_layers(a))
    if a.model_type == "deberta-v2":  # embed_proj has no bias
        outside -= sum(layer.out_features for layer in head_layers(a) if layer.entry)
    norm_width = a.d_model if a.model_type == "deberta-v2" else embedded(a)
    norms = 2 * norm_width + 4 * a.d_model * layers + 2 * a.d_model * a.relative_norm
    if a.conv:
        outside += a.d_model * a.d_model * a.conv + a.d_model
        norms += 2 * a.d_model
    if a.head == "masked":
        norms += 2 * embedded(a)
    head = a.vocab_size if a.head == "masked" else 0
    return Counts(
        embedding=a.vocab_size * embedded(a),
        head=head + (0 if a.tied or a.head != "masked" else a.vocab_size * embedded(a)),
        positions=tables * embedded(a) + relative_rows(a) * a.d_model,
        encoder_linear=sum(m.in_features * m.out_features * m.number for m in linear),
        decoder_linear=0,
        biases=sum(m.out_features * m.number for m in linear),
        kept_wide=0,
        norms=norms,
        outside=outside,
    )
