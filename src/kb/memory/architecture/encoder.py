"""Encoder-only models' ``config.json`` fields as an architecture: BERT and its kin, XLNet, ModernBERT."""

from collections.abc import Mapping
from typing import Any

from kb.core.model import Architecture, Head
from kb.memory.config_fields import (
    UnsupportedArchitectureError,
    flag,
    head_size,
    number,
    rate,
    refuse,
    unpredicted,
    windows_of,
    word,
)

ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
TYPES: tuple[str, ...] = (
    "bert",
    *ROBERTA_TYPES,
    "electra",
    "deberta-v2",
    "distilbert",
    "albert",
    "mpnet",
    "longformer",
    "big_bird",
)
BUCKETS = 32  # of distances, that MPNet's code makes whatever its config says
LONGEST_LABELS = 10**6

# the class names of transformers end so; a bare model or an ELECTRA discriminator is fine-tuned to classify sequences
_HEADS: tuple[tuple[str, Head], ...] = (
    ("ForMaskedLM", "masked"),
    ("ForTokenClassification", "token"),
    ("ForQuestionAnswering", "span"),
)


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture of BERT, RoBERTa, XLM-R, ELECTRA, DeBERTa v2 and v3, DistilBERT, ALBERT or MPNet.

    The head is that of the first name in ``architectures``, else a classifier of sequences. Rates and sizes that a
    config may leave out take the defaults of transformers.

    Raises:
        UnsupportedArchitectureError: a field is missing, of a wrong type, or asks for a form that is not modelled.
    """
    model_type = str(config["model_type"])
    found = _distilbert(config) if model_type == "distilbert" else _bert(model_type, config)
    head = head_of(config)
    found = found._replace(
        head=head,
        labels=labels_of(config, head),
        # over the first token; heads that read every token build the model without one
        pooler=model_type in ("bert", "albert", "deberta-v2") and head == "sequence",
        head_dropout=_drops_in_head(found, config, head),
    )
    if model_type == "deberta-v2":
        return _deberta(found, config)
    if model_type == "albert":
        groups = number(config, "num_hidden_groups", default=1) * number(config, "inner_group_num", default=1)
        if groups != 1:
            raise _unmodelled("num_hidden_groups × inner_group_num", groups)
        return found._replace(shared_layers=True)
    if model_type == "mpnet":
        buckets = number(config, "relative_attention_num_buckets", default=BUCKETS)
        if buckets < BUCKETS:
            raise _unmodelled("relative_attention_num_buckets", buckets)
        return found._replace(type_vocab_size=0, relative_buckets=buckets, engine=True)
    if model_type == "longformer":
        return found._replace(windows=windows_of(config, found.encoder_layers), engine=True)
    if model_type == "big_bird":
        return _big_bird(found, config)
    return found


def _big_bird(found: Architecture, config: Mapping[str, Any]) -> Architecture:
    for name in ("is_decoder", "rescale_embeddings"):
        if flag(config, name, False):
            raise _unmodelled(name, True)
    kind = word(config, "attention_type", default="block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise _unmodelled("attention_type", kind)
    return found._replace(
        qkv_bias=flag(config, "use_bias", True),
        max_positions=number(config, "max_position_embeddings", default=4096),
        activation=word(config, "hidden_act", default="gelu_new"),
        block=number(config, "block_size", default=64) if kind == "block_sparse" else 0,
        random_blocks=number(config, "num_random_blocks", default=3),
        engine=True,
    )


def _bert(model_type: str, config: Mapping[str, Any]) -> Architecture:
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    dropout_default = 0.0 if model_type == "albert" else 0.1
    dropout = rate(config, "hidden_dropout_prob", default=dropout_default) > 0
    embedded = number(config, "embedding_size", default=128 if model_type in ("electra", "albert") else width)
    return Architecture(
        family="encoder",
        model_type=model_type,
        d_model=width,
        d_ff=number(config, "intermediate_size"),
        num_heads=heads,
        d_kv=head_size(width, heads, "num_attention_heads"),
        encoder_layers=number(config, "num_hidden_layers"),
        decoder_layers=0,
        vocab_size=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        max_positions=number(config, "max_position_embeddings", default=512),
        biases=True,
        attention_dropout=rate(config, "attention_probs_dropout_prob", default=dropout_default) > 0,
        activation=word(config, "hidden_act", default="gelu_new" if model_type == "albert" else "gelu"),
        hidden_dropout=dropout,
        embedding_dropout=dropout,
        embedding_size=embedded if embedded != width else None,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        type_vocab_size=_kinds(config, 0 if model_type == "deberta-v2" else 2),
    )


def _distilbert(config: Mapping[str, Any]) -> Architecture:
    named = {
        "hidden_size": config.get("dim"),
        "intermediate_size": config.get("hidden_dim"),
        "num_attention_heads": config.get("n_heads"),
        "num_hidden_layers": config.get("n_layers"),
        "hidden_dropout_prob": config.get("dropout"),
        "attention_probs_dropout_prob": config.get("attention_dropout"),
        "hidden_act": config.get("activation"),
        "type_vocab_size": 0,
    }
    missing = [
        ours
        for name, ours in (
            ("hidden_size", "dim"),
            ("intermediate_size", "hidden_dim"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
        )
        if named[name] is None
    ]
    if missing:
        raise UnsupportedArchitectureError(f"config.json: {missing[0]} is missing", "missing", name=missing[0])
    return _bert("distilbert", {**config, **named})


def _deberta(found: Architecture, config: Mapping[str, Any]) -> Architecture:
    """DeBERTa's attention by content and position; where it attends by content alone, ``relative`` is empty."""
    for name, usual in (("conv_groups", 1), ("attention_head_size", None), ("legacy", True)):
        given = config.get(name, usual)
        if given != usual and (name != "legacy" or found.head == "masked"):
            raise _unmodelled(name, given)
    found = found._replace(
        max_positions=found.max_positions if flag(config, "position_biased_input", True) else None,
        numbered=found.max_positions or 512,
        conv=_conv(config),
        conv_activation=word(config, "conv_act", default="tanh") if _conv(config) else "",
        relative_norm="layer_norm" in word(config, "norm_rel_ebd", default="none").lower(),
    )
    if not flag(config, "relative_attention", False):
        return found
    kinds = config.get("pos_att_type") or ()
    names = kinds.split("|") if isinstance(kinds, str) else [str(kind) for kind in kinds]
    known = [name.strip().lower() for name in names if name.strip().lower() in ("c2p", "p2c")]
    buckets = _span(config, "position_buckets")
    longest = _span(config, "max_relative_positions") or found.numbered
    if not known:
        raise _unmodelled("pos_att_type", kinds)
    return found._replace(
        relative="|".join(known),
        share_att_key=flag(config, "share_att_key", False),
        relative_buckets=buckets or longest,
        log_buckets=buckets > 0,
    )


def _span(config: Mapping[str, Any], name: str) -> int:
    """A number of positions; -1 stands for none of its own."""
    return 0 if config.get(name) in (None, -1, 0) else number(config, name)


def _conv(config: Mapping[str, Any]) -> int:
    return 0 if config.get("conv_kernel_size") in (None, 0) else number(config, "conv_kernel_size")


def _kinds(config: Mapping[str, Any], default: int) -> int:
    """Kinds of segments; 0 where the model embeds none."""
    if config.get("type_vocab_size", default) in (None, 0):
        return default if config.get("type_vocab_size", default) is None else 0
    return number(config, "type_vocab_size", default=default)


def head_of(config: Mapping[str, Any]) -> Head:
    """The head that the first of ``architectures`` has."""
    names = config.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    return next((head for ending, head in _HEADS if first.endswith(ending)), "sequence")


def labels_of(config: Mapping[str, Any], head: Head) -> int:
    """How many labels a head gives."""
    if head in ("span", "masked"):
        return 2
    named = config.get("id2label")
    if config.get("num_labels") is None and isinstance(named, Mapping) and named:
        return min(len(named), LONGEST_LABELS)
    return number(config, "num_labels", default=2)


def _drops_in_head(found: Architecture, config: Mapping[str, Any], head: Head) -> bool:
    """Whether the head drops what it reads: a rate of its own, else that of the layers."""
    if found.model_type == "distilbert":
        names = {"sequence": ("seq_classif_dropout", 0.2), "span": ("qa_dropout", 0.1)}
        return rate(config, *names[head][:1], default=names[head][1]) > 0 if head in names else found.hidden_dropout
    if found.model_type == "mpnet":
        return found.hidden_dropout
    if found.model_type == "albert":
        return rate(config, "classifier_dropout_prob", default=0.1) > 0
    if found.model_type == "deberta-v2":
        own = head == "sequence" and config.get("cls_dropout") is not None
        return rate(config, "cls_dropout") > 0 if own else found.hidden_dropout
    return found.hidden_dropout if config.get("classifier_dropout") is None else rate(config, "classifier_dropout") > 0


def _unmodelled(name: str, value: object) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(f"config.json: {name} {value}: kb does not know that")


def xlnet(config: Mapping[str, Any]) -> Architecture:
    """XLNet that classifies sequences or tokens."""
    for name in config.get("architectures") or ():
        if name not in ("XLNetForSequenceClassification", "XLNetForTokenClassification"):
            raise unpredicted(str(name)[:80])
    known = (("attn_type", "bi"), ("summary_type", "last"), ("summary_activation", "tanh"), ("summary_use_proj", True),
             ("bi_data", False), ("reuse_len", None))  # fmt: skip
    for name, usual in known:
        if config.get(name, usual) != usual:
            raise unpredicted(f"{name} {config[name]}")
    width, heads = number(config, "d_model", "hidden_size"), number(config, "n_head", "num_attention_heads")
    head = head_of(config)
    dropped = rate(config, "dropout", default=0.1) > 0
    return Architecture(
        family="encoder",
        model_type="xlnet",
        d_model=width,
        d_ff=number(config, "d_inner", default=4096),
        num_heads=heads,
        d_kv=head_size(width, heads, "n_head"),
        encoder_layers=number(config, "n_layer", "num_hidden_layers"),
        decoder_layers=0,
        vocab_size=number(config, "vocab_size"),
        biases=True,
        activation=word(config, "ff_activation", default="gelu"),
        hidden_dropout=dropped,
        attention_dropout=dropped,
        head=head,
        labels=labels_of(config, head),
        head_dropout=head == "sequence" and rate(config, "summary_last_dropout", default=0.1) > 0,
        keeps_inputs=flag(config, "use_mems_eval", True),
        engine=True,
    )


def modernbert(config: Mapping[str, Any]) -> Architecture:
    """ModernBERT; which layers slide is given by name, or by a period (one of so many sees all tokens)."""
    for name in ("norm_bias", "classifier_bias", "sparse_prediction"):
        refuse(config, name)
    if word(config, "classifier_activation", default="gelu") != "gelu":
        raise unpredicted("classifier_activation other than gelu")
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    layers, biased = number(config, "num_hidden_layers"), flag(config, "attention_bias", False)
    named = config.get("layer_types")
    period = number(config, "global_attn_every_n_layers", default=3)
    slides = list(named).count("sliding_attention") if named else sum(at % period > 0 for at in range(layers))
    head = head_of(config)
    return Architecture(
        family="encoder",
        model_type="modernbert",
        d_model=width,
        d_ff=number(config, "intermediate_size"),
        num_heads=heads,
        d_kv=head_size(width, heads, "num_attention_heads"),
        encoder_layers=layers,
        decoder_layers=0,
        vocab_size=number(config, "vocab_size"),
        gated=True,
        tied=flag(config, "tie_word_embeddings", True),
        activation=word(config, "hidden_activation", default="gelu"),
        rotary=1.0,
        window=number(config, "local_attention", default=128) // 2,
        windowed_layers=slides,
        attention_dropout=rate(config, "attention_dropout") > 0,
        hidden_dropout=rate(config, "mlp_dropout") > 0,
        embedding_dropout=rate(config, "embedding_dropout") > 0,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=flag(config, "mlp_bias", False),
        head=head,
        head_bias=flag(config, "decoder_bias", True),
        labels=labels_of(config, head),
        head_dropout=rate(config, "classifier_dropout") > 0,
        averages=word(config, "classifier_pooling", default="cls") == "mean",
        engine=True,
    )
