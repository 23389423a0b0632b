"""The rows of rules/models: dimensions, parameters and names agree with one another."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kb.memory import architecture_from_config, parameter_count

RULES = Path(__file__).parents[1] / "rules"
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
]


def rows() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted((RULES / "models").glob("*.yaml"))}


ROWS = rows()
each_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def counted_parameters(row: dict[str, Any]) -> int:
    first = row["parameters"][0]
    assert first["status"] == "computed"
    return int(first["value"])


def test_every_wanted_model_has_a_row() -> None:
    assert set(HUB_NAMES) <= {row["name"] for row in ROWS.values()}


@each_row
def test_row_matches_its_schema(row: dict[str, Any]) -> None:
    schema = json.loads((RULES / "schema/model.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(row)


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


@each_row
def test_row_lists_every_source_it_cites(row: dict[str, Any]) -> None:
    known = yaml.safe_load((RULES / "sources.yaml").read_text("utf-8"))["sources"]
    cited = {row["architecture_source"], *(quantity["source"] for quantity in row["parameters"])}
    cited |= {row[field]["source"] for field in ("max_length", "checkpoint") if field in row}
    assert cited <= set(row["sources"]) <= set(known)


@each_row
def test_closed_form_gives_the_counted_parameters(row: dict[str, Any]) -> None:
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
        width = 4 if row["weights_dtype"] == "fp32" else 2
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
    if not architecture.tied:
        tied = counted_parameters(row) - architecture.vocab_size * architecture.d_model
        assert f"{tied:,}" in row["note"]


def test_model_behind_the_notes_mt5_is_mt5_base() -> None:
    assert ROWS["mt5-xlsum"]["architecture"] == ROWS["mt5-base"]["architecture"]
    assert counted_parameters(ROWS["mt5-xlsum"]) == 582_401_280


def test_eenzeenee_has_the_dimensions_of_pko_t5_base() -> None:
    assert ROWS["eenzeenee"]["architecture"] == ROWS["pko-t5-base"]["architecture"]
