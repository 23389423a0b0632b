"""The rows of rules/hardware: complete, consistent, and each value with its source."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from every_row import Rows, for_every
from yaml_file import read_yaml

RULES = Path(__file__).parents[2] / "rules"
MIB = {"MiB": 1.0, "GiB": 1024.0}
CONTRACT = [
    "v100-16gb",
    "v100-32gb",
    "t4",
    "titan-rtx",
    "rtx-2080-ti",
    "rtx-3060-12gb",
    "rtx-3080-10gb",
    "rtx-3080-12gb",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-a6000",
    "rtx-6000-ada",
    "a10",
    "a10g",
    "a40",
    "l4",
    "l40s",
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h100-pcie",
    "h100-nvl",
    "h200",
    "b200",
]


ROWS = Rows(RULES / "hardware")
SOURCES = read_yaml(RULES / "sources.yaml")["sources"]
each_row = for_every(ROWS)


def quantities(row: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for value in row.values():
        found += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    return found


def by_name() -> dict[str, str]:
    return {name.casefold(): gpu for gpu, row in ROWS.items() for name in (row["id"], row["name"], *row["aliases"])}


def test_every_gpu_of_the_contract_has_a_row() -> None:
    assert set(CONTRACT) <= set(ROWS)


@pytest.mark.long
def test_rows_match_their_schema() -> None:
    schema = json.loads((RULES / "schema/hardware.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for row in ROWS.values():
        validator.validate(row)


def test_id_is_the_files_name_and_the_modeline_names_the_schema() -> None:
    for name, row in ROWS.items():
        assert row["id"] == name
        first = (RULES / f"hardware/{name}.yaml").read_text("utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=../schema/hardware.json"


def test_no_name_means_two_gpus() -> None:
    owners: dict[str, str] = {}
    for gpu, row in ROWS.items():
        for name in {text.casefold() for text in (row["id"], row["name"], *row["aliases"])}:
            assert owners.setdefault(name, gpu) == gpu, f"{name!r} means {owners[name]} and {gpu}"


@each_row
def test_row_lists_exactly_the_sources_it_cites(row: dict[str, Any]) -> None:
    cited = {quantity["source"] for quantity in quantities(row)}
    assert cited == set(row["sources"])
    assert cited <= set(SOURCES)


@each_row
def test_first_memory_total_is_what_a_current_driver_reports(row: dict[str, Any]) -> None:
    first, *others = row["memory_total"]
    assert (first["status"], first["unit"]) == ("measured", "MiB")
    assert "earlier" not in first["drivers"]
    old = [total["value"] for total in others if "earlier" in total.get("drivers", "")]
    assert all(value < first["value"] for value in old)


@each_row
def test_reported_memory_is_near_the_size_the_gpu_is_sold_as(row: dict[str, Any]) -> None:
    sold = next(total["value"] for total in row["memory_total"] if total["unit"] == "GB")
    assert 0.92 <= row["memory_total"][0]["value"] / (sold * 1024) <= 1.0


@each_row
def test_cuda_offers_less_than_the_driver_reports(row: dict[str, Any]) -> None:
    for offered in row.get("cuda_memory", []):
        share = offered["value"] * MIB[offered["unit"]] / row["memory_total"][0]["value"]
        assert share == 1.0 if row.get("of_host") else 0.95 < share < 1.0


@each_row
def test_bf16_is_native_exactly_from_compute_capability_8(row: dict[str, Any]) -> None:
    major, _, minor = row["compute_capability"]["value"].partition(".")
    assert row["native_bf16"]["value"] is ((int(major), int(minor)) >= (8, 0))


@each_row
def test_figure_from_general_knowledge_is_never_called_certain(row: dict[str, Any]) -> None:
    for quantity in quantities(row):
        if quantity["source"] == "vendor-specifications":
            assert (quantity["status"], quantity["confidence"]) == ("claimed", "medium")


@pytest.mark.parametrize(
    ("reported", "gpu"),
    [
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA A30", "a30"),
        ("Tesla P100-PCIE-16GB", "p100-16gb"),
        ("Tesla T4", "t4"),
        ("GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
    ],
)
def test_name_that_a_driver_reports_is_known(reported: str, gpu: str) -> None:
    assert by_name()[reported.casefold()] == gpu


@pytest.mark.parametrize("ambiguous", ["a100", "v100", "h100", "rtx 3080"])
def test_name_that_leaves_the_memory_open_means_no_gpu(ambiguous: str) -> None:
    assert ambiguous not in by_name()


def test_sources_match_their_schema() -> None:
    schema = json.loads((RULES / "schema/sources.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(read_yaml(RULES / "sources.yaml"))


def test_no_source_is_defined_twice() -> None:
    root = yaml.compose((RULES / "sources.yaml").read_text("utf-8"))
    assert isinstance(root, yaml.MappingNode)
    sources = next(value for key, value in root.value if key.value == "sources")
    ids = [key.value for key, _ in sources.value]
    assert [name for name in set(ids) if ids.count(name) > 1] == []
