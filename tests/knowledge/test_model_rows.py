"""The rows of rules/models: dimensions, parameters and names agree with one another."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from catalog_sample import load_catalog
from effort import EXHAUSTIVE
from every_row import Rows, for_every
from kb.advice.run.named_model import ModelIndex
from kb.memory import architecture_from_config, parameter_count
from yaml_file import read_yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "rules"
BYTES = {"B": 1, "MB": 10**6, "GB": 10**9}
HUB_NAMES = [
    "google-t5/t5-small",
    "google-t5/t5-base",
    "google-t5/t5-large",
    "google-t5/t5-3b",
    "google/mt5-small",
    "google/mt5-base",
    "google/mt5-large",
    "google/mt5-xl",
    "csebuetnlp/mT5_multilingual_XLSum",
    "eenzeenee/t5-base-korean-summarization",
    "paust/pko-t5-small",
    "paust/pko-t5-base",
    "paust/pko-t5-large",
    "digit82/kobart-summarization",
    "gogamza/kobart-base-v1",
    "gogamza/kobart-base-v2",
    "gogamza/kobart-summarization",
    "facebook/bart-base",
    "facebook/bart-large",
    "facebook/bart-large-cnn",
    "google/flan-t5-small",
    "google/flan-t5-base",
    "google/flan-t5-large",
    "google/flan-t5-xl",
    "facebook/mbart-large-50-many-to-many-mmt",
    "google/pegasus-large",
    "google-bert/bert-base-uncased",
    "google-bert/bert-large-uncased",
    "google-bert/bert-base-multilingual-cased",
    "klue/bert-base",
    "klue/roberta-small",
    "klue/roberta-base",
    "klue/roberta-large",
    "FacebookAI/xlm-roberta-base",
    "FacebookAI/xlm-roberta-large",
    "beomi/KcELECTRA-base",
    "beomi/KcELECTRA-base-v2022",
    "monologg/koelectra-base-v3-discriminator",
    "monologg/koelectra-small-v3-discriminator",
    "microsoft/deberta-v3-base",
    "microsoft/mdeberta-v3-base",
    "distilbert/distilbert-base-uncased",
    "openai-community/gpt2",
    "openai-community/gpt2-xl",
    "skt/kogpt2-base-v2",
    "skt/ko-gpt-trinity-1.2B-v0.5",
    "facebook/opt-125m",
    "facebook/opt-6.7b",
    "EleutherAI/pythia-70m",
    "EleutherAI/pythia-12b",
    "EleutherAI/polyglot-ko-1.3b",
    "EleutherAI/polyglot-ko-12.8b",
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "mistralai/Mistral-7B-v0.1",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen2-7B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen1.5-MoE-A2.7B",
    "Qwen/Qwen3-30B-A3B",
    "google/gemma-2b",
    "google/gemma-2-9b",
    "google/gemma-3-1b-it",
    "microsoft/phi-2",
    "microsoft/Phi-3-mini-4k-instruct",
    "microsoft/phi-4",
    "upstage/SOLAR-10.7B-v1.0",
    "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
    "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",
    "HuggingFaceTB/SmolLM2-135M",
]


ROWS = Rows(RULES / "models")
SOURCES = read_yaml(RULES / "sources.yaml")["sources"]
each_row = for_every(ROWS)
PADS_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "longformer",
    "mpnet",
)  # whose first two positions are kept for padding


def counted_parameters(row: dict[str, Any]) -> int:
    first = row["parameters"][0]
    assert first["status"] == "computed"
    return int(first["value"])


def counting_script() -> Any:
    spec = importlib.util.spec_from_file_location("count_parameters", ROOT / "bench" / "count_parameters.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_models_of_every_kind() -> None:
    families = [architecture_from_config(row["architecture"]).family for row in ROWS.values()]
    assert len(families) >= 70
    assert min(families.count(family) for family in ("t5", "bart", "encoder", "decoder")) >= 9


def test_every_wanted_model_has_a_row() -> None:
    assert set(HUB_NAMES) <= {row["name"] for row in ROWS.values()}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    """The schema of a model's row, which is one itself."""
    found = json.loads((RULES / "schema/model.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.long
@each_row
def test_row_matches_its_schema(row: dict[str, Any], schema: jsonschema.Draft202012Validator) -> None:
    schema.validate(row)


def test_id_is_the_files_name_and_the_modeline_names_the_schema() -> None:
    for name, row in ROWS.items():
        assert row["id"] == name
        first = (RULES / f"models/{name}.yaml").read_text("utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=../schema/model.json"


def test_no_name_means_two_models() -> None:
    owners: dict[str, str] = {}
    for model, row in ROWS.items():
        for name in {text.casefold() for text in (row["id"], row["name"], *row["aliases"])}:
            assert owners.setdefault(name, model) == model, f"{name!r} means {owners[name]} and {model}"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("t5-base", "t5-base"),
        ("kobart", "kobart"),
        ("mt5-xlsum", "mt5-xlsum"),
        ("xlsum_mt5", "mt5-xlsum"),
        ("eenzeenee", "eenzeenee"),
        ("CSEBUETNLP/mt5_multilingual_xlsum", "mt5-xlsum"),
    ],
)
def test_name_of_the_field_notes_is_known(name: str, model: str) -> None:
    meanings = {
        text.casefold(): row["id"] for row in ROWS.values() for text in (row["id"], row["name"], *row["aliases"])
    }
    assert meanings[name.casefold()] == model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("camembert-base", "camembert-base"),
        ("cl-tohoku/bert-base-japanese-whole-word-masking", "bert-base-japanese"),
        ("tohoku-nlp/bert-base-japanese-v2", "bert-base-japanese-v3"),
        ("hfl/chinese-macbert-base", "bert-base-chinese"),
        ("hfl/rbt3", "rbt3"),
        ("vinai/phobert-base-v2", "phobert-base"),
        ("dmis-lab/biobert-base-cased-v1.2", "bert-base-cased"),
        ("bert-base-german-cased", "bert-base-german-cased"),
        ("dbmdz/bert-base-german-cased", "gbert-base"),  # of the same name, with another vocabulary
        ("monologg/koelectra-base-discriminator", "koelectra-base-v2"),
        ("albert-base-v2", "albert-base-v2"),
        ("bigscience/mt0-base", "mt5-base"),
        ("microsoft/DialoGPT-medium", "gpt2-medium"),
        ("rinna/japanese-gpt2-medium", "japanese-gpt2-medium"),
        ("huggyllama/llama-7b", "llama-7b"),  # 2,048 positions, half of Llama 2's
    ],
)
def test_name_that_training_programs_write_is_known(name: str, model: str) -> None:
    found = ModelIndex(load_catalog().models).resolve(name)
    assert found is not None and found.id == model


def test_dialogpt_is_stored_in_16_bits_and_gpt2_is_not() -> None:
    index = ModelIndex(load_catalog().models)
    stored = {name: index.resolve(name) for name in ("microsoft/DialoGPT-large", "gpt2-large")}
    types = {name: model.weights_dtype for name, model in stored.items() if model is not None}
    assert types == {"microsoft/DialoGPT-large": "fp16", "gpt2-large": "fp32"}


@each_row
def test_row_lists_every_source_it_cites(row: dict[str, Any]) -> None:
    cited = {row["architecture_source"], *(quantity["source"] for quantity in row["parameters"])}
    cited |= {row[field]["source"] for field in ("max_length", "checkpoint") if field in row}
    assert cited <= set(row["sources"]) <= set(SOURCES)


def _refused(architecture: dict[str, Any]) -> bool:
    """Whether transformers from 5.4 on builds no such model (``hidden-size-not-in-heads``)."""
    uneven = architecture["hidden_size"] % architecture["num_attention_heads"] if "hidden_size" in architecture else 0
    types = read_yaml(RULES / "vocabulary.yaml")["facts"]["model.heads_must_divide"]["model_types"]
    return bool(uneven) and architecture["model_type"] in types


@pytest.mark.exhaustive
@pytest.mark.torch
@pytest.mark.long
def test_built_model_has_the_parameters_of_its_row() -> None:
    """Of the smallest of each type without ``--exhaustive``: what kb counts of dimensions is that of every row."""
    if missing := [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{', '.join(missing)} not installed")
    script = counting_script()
    by_size = sorted(ROWS.items(), key=lambda named: -counted_parameters(named[1]))
    smallest = {row["architecture"]["model_type"]: name for name, row in by_size}.values()
    rows = ROWS if EXHAUSTIVE else {name: ROWS[name] for name in smallest}
    rows = {name: row for name, row in rows.items() if not _refused(row["architecture"])}
    # checkpoints of one shape are built once
    shapes = {json.dumps(row["architecture"], sort_keys=True): row["architecture"] for row in rows.values()}
    counted = {shape: script.count(architecture)[0] for shape, architecture in shapes.items()}
    wrong = {
        name: (counted[json.dumps(row["architecture"], sort_keys=True)], counted_parameters(row))
        for name, row in rows.items()
        if counted[json.dumps(row["architecture"], sort_keys=True)] != counted_parameters(row)
    }
    assert not wrong


@each_row
def test_dimensions_give_the_counted_parameters(row: dict[str, Any]) -> None:
    assert parameter_count(architecture_from_config(row["architecture"])) == counted_parameters(row)


@each_row
def test_published_size_far_from_the_count_is_explained(row: dict[str, Any]) -> None:
    for claim in row["parameters"][1:]:
        difference = abs(claim["value"] / counted_parameters(row) - 1)
        assert difference < 0.05 or "note" in claim, f"{claim['value']:,} is {difference:.0%} off, and no note says why"


@each_row
def test_checkpoint_holds_every_parameter_in_its_type(row: dict[str, Any]) -> None:
    if "checkpoint" in row:
        size = row["checkpoint"]["value"] * BYTES[row["checkpoint"]["unit"]]
        width = 4 if row["weights_dtype"][0]["value"] == "fp32" else 2
        assert size == pytest.approx(width * counted_parameters(row), rel=0.005)


@each_row
def test_gated_models_are_those_with_a_head_of_their_own(row: dict[str, Any]) -> None:
    architecture = row["architecture"]
    if "feed_forward_proj" in architecture:
        gated = architecture["feed_forward_proj"] == "gated-gelu"
        assert gated is not architecture["tie_word_embeddings"]


@each_row
def test_untied_head_says_what_transformers_5_makes_of_its_config(row: dict[str, Any]) -> None:
    architecture = architecture_from_config(row["architecture"])
    if architecture.family == "t5" and not architecture.tied:
        tied = counted_parameters(row) - architecture.vocab_size * architecture.d_model
        assert f"{tied:,}" in row["note"]


@each_row
def test_longest_input_fits_the_positions(row: dict[str, Any]) -> None:
    architecture = architecture_from_config(row["architecture"])
    if "max_length" in row and architecture.max_positions is not None:
        kept_for_padding = 2 if architecture.model_type in PADS_POSITIONS else 0
        assert row["max_length"]["value"] == architecture.max_positions - kept_for_padding


@each_row
def test_encoder_rows_have_a_classifier_of_sequences(row: dict[str, Any]) -> None:
    architecture = architecture_from_config(row["architecture"])
    if architecture.family == "encoder":
        assert (architecture.head, architecture.labels) == ("sequence", 2)


def test_checkpoint_of_a_family_takes_no_field_of_another() -> None:
    schema = jsonschema.Draft202012Validator(json.loads((RULES / "schema/model.json").read_text("utf-8")))
    llama = ROWS["llama-3.1-8b"]
    for field in ("num_experts", "n_embd", "type_vocab_size"):
        assert not schema.is_valid(llama | {"architecture": llama["architecture"] | {field: 2}})
    unsized = {name: value for name, value in llama["architecture"].items() if name != "num_key_value_heads"}
    assert not schema.is_valid(llama | {"architecture": unsized})


def test_model_behind_the_notes_mt5_is_mt5_base() -> None:
    assert ROWS["mt5-xlsum"]["architecture"] == ROWS["mt5-base"]["architecture"]
    assert counted_parameters(ROWS["mt5-xlsum"]) == 582_401_280


def test_eenzeenee_has_the_dimensions_of_pko_t5_base() -> None:
    assert ROWS["eenzeenee"]["architecture"] == ROWS["pko-t5-base"]["architecture"]


# whose config.json nobody could show
NO_RECORD = {
    "exaone-3.5-2.4b", "exaone-3.5-7.8b", "gemma-2-27b", "bloom-560m", "bloom-7b1", "whisper-tiny", "whisper-base",
    "whisper-medium", "whisper-large-v2", "whisper-large-v3-turbo", "longformer-base-4096", "led-base-16384",
    "bigbird-roberta-base", "xlnet-base-cased", "mpnet-base", "paligemma-3b-pt-224",
    "starcoder2-3b", "starcoder2-7b", "codet5-large", "sheared-llama-1.3b", "sheared-llama-2.7b",
    "olmo-2-1b", "olmo-2-7b", "olmo-2-13b", "orpheus-3b", "llama-outetts-1.0-1b",
}  # fmt: skip


def test_the_type_of_every_checkpoint_is_recorded_or_known_to_be_missing() -> None:
    assert {name for name, row in ROWS.items() if "weights_dtype" not in row} == NO_RECORD


@each_row
def test_a_type_that_is_only_recalled_or_inferred_says_so(row: dict[str, Any]) -> None:
    for stored in row.get("weights_dtype", []):
        inferred = "ecalled" in stored.get("note", "") or "family" in stored.get("note", "")
        assert not inferred or stored.get("confidence") in ("medium", "low")
