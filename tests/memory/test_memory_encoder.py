"""Encoder-only models: parameters, heads, and measured rows."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.memory import UnsupportedArchitectureError, architecture_from_config, match_targets, parameter_count, predict

GPU_CAPABILITY = (8, 6)
BERT = {
    "model_type": "bert", "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12, "num_hidden_layers": 12, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
ROBERTA = {**BERT, "model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1}
ELECTRA_SMALL = {
    **BERT, "model_type": "electra", "vocab_size": 35000, "embedding_size": 128, "hidden_size": 256,
    "intermediate_size": 1024, "num_attention_heads": 4,
}  # fmt: skip
DEBERTA = {
    **BERT, "model_type": "deberta-v2", "vocab_size": 251000, "type_vocab_size": 0, "relative_attention": True,
    "max_relative_positions": -1, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert", "vocab_size": 30522, "dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 6,
    "max_position_embeddings": 512,
}  # fmt: skip
ALBERT = {**BERT, "model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "hidden_act": "gelu_new"}
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering")


# counted by building each model on the meta device with transformers 5.23 and two labels
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (BERT, (110_618_882, 110_028_290, 110_650_880, 110_028_290)),
        (ROBERTA, (110_619_650, 110_029_058, 110_651_648, 110_029_058)),
        (ELECTRA_SMALL, (14_122_498, 14_056_706, 14_124_344, 14_056_706)),
        (DEBERTA, (278_810_882, 278_220_290, 279_061_880, 278_220_290)),
        (DISTILBERT, (66_955_010, 66_364_418, 66_985_530, 66_364_418)),
        (ALBERT, (11_685_122, 11_094_530, 11_221_680, 11_094_530)),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_with_each_head(config: dict[str, Any], parameters: tuple[int, ...]) -> None:
    found = [parameter_count(architecture_from_config({**config, "architectures": [f"X{head}"]})) for head in HEADS]
    assert tuple(found) == parameters


def test_deberta_v2_xlarge_has_a_convolution() -> None:
    config = {
        **DEBERTA, "vocab_size": 128100, "hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 24,
        "num_hidden_layers": 24, "conv_kernel_size": 3, "num_labels": 3,
    }  # fmt: skip
    assert parameter_count(architecture_from_config(config)) == 886_958_595


def test_a_config_that_names_no_head_classifies_sequences() -> None:
    assert architecture_from_config(BERT).head == "sequence"
    assert architecture_from_config({**BERT, "architectures": ["BertModel"]}).head == "sequence"
    assert architecture_from_config({**BERT, "architectures": ["BertForMaskedLM"]}).head == "masked"


def test_labels_are_counted_from_the_names_of_the_classes() -> None:
    names = {str(index): f"class {index}" for index in range(7)}
    assert architecture_from_config({**BERT, "id2label": names}).labels == 7


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**BERT, "hidden_size": None}, "hidden_size is missing"),
        ({**DISTILBERT, "n_layers": None}, "n_layers is missing"),
        ({**BERT, "num_attention_heads": 7}, "not a multiple"),
        ({**BERT, "hidden_dropout_prob": 3}, "hidden_dropout_prob"),
        ({**ALBERT, "num_hidden_groups": 2}, "num_hidden_groups"),
        ({**BERT, "num_labels": 0}, "num_labels"),
    ],
)
def test_a_config_that_cannot_be_used_says_which_field(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=says):
        architecture_from_config(config)


def test_dense_matches_the_layers_and_what_stands_beside_them() -> None:
    matched, missing = match_targets(architecture_from_config(BERT), ("dense",))
    assert not missing
    assert {module.name for module in matched} == {
        "bert.encoder.layer.*.attention.output.dense",
        "bert.encoder.layer.*.intermediate.dense",
        "bert.encoder.layer.*.output.dense",
        "bert.pooler.dense",
    }


def test_peft_trains_the_classifier_beside_the_adapters() -> None:
    setup = TrainingSetup(method="lora", optim="adamw_torch_fused", max_source_length=64)
    report = predict(setup, architecture_from_config(ROBERTA), constants=sample.CONSTANTS)
    load = report.phase("load")
    assert load is not None
    assert dict(load.terms)["adapters"] == 4 * (294_912 + 592_130)


# MB of 10^6 bytes in the sources, here MiB: torch.cuda.max_memory_allocated, fp16 weights and gradients, no optimizer,
# the logits' sum as loss; transformers' docs/model_doc/distilbert.md (RTX 2060) and pull request 32092 (ALBERT)
@pytest.mark.parametrize(
    ("config", "batch", "length", "attention", "measured_mib"),
    [
        (DISTILBERT, 1, 128, "eager", 378.6),
        (DISTILBERT, 4, 256, "eager", 566.6),
        (DISTILBERT, 8, 256, "eager", 937.9),
        (DISTILBERT, 8, 256, "sdpa", 761.5),
        (ALBERT, 1, 256, "sdpa", 207.7),
        (ALBERT, 4, 512, "eager", 1586.9),
        (ALBERT, 4, 512, "sdpa", 1300.1),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_measured_passes_without_an_optimizer_are_reproduced(
    config: dict[str, Any], batch: int, length: int, attention: str, measured_mib: float
) -> None:
    setup = TrainingSetup(
        weights="fp16",
        attn_implementation="eager" if attention == "eager" else "sdpa",
        per_device_train_batch_size=batch,
        max_source_length=length,
        optim="none",
        padded=False,
    )
    architecture = architecture_from_config({**config, "architectures": ["XForMaskedLM"]})
    phase = predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=(7, 5)).phase("train")
    assert phase is not None
    assert phase.peak_allocated_bytes / 2**20 == pytest.approx(measured_mib, rel=0.025)
