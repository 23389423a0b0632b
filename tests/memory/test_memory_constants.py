"""rules/constants.yaml: every constant has its source, status and both languages, and the model finds what it reads."""

import json
import re

import memory_sample as sample
from yaml_file import read_yaml


def test_every_constant_names_a_known_source() -> None:
    rules = sample.ROOT / "rules"
    constants = read_yaml(rules / "constants.yaml")["constants"]
    sources = read_yaml(rules / "sources.yaml")["sources"]
    assert [name for name, entry in constants.items() if entry["source"] not in sources] == []
    assert all(entry["ko"] and entry["en"] for entry in constants.values())


def test_every_constant_that_the_code_reads_is_there() -> None:
    read = set()
    for path in (sample.ROOT / "src" / "kb" / "memory").glob("*.py"):
        read |= set(re.findall(r'constants(?:\.get\(|\[)"([a-z0-9_]+)"', path.read_text("utf-8")))
    assert read <= set(sample.CONSTANTS)
    assert {"reserved_mean", "host_base_low_bytes", "usable_memory_ratio"} <= read


def test_traces_say_how_they_were_made() -> None:
    for path in sample.TRACES.glob("*.json"):
        document = json.loads(path.read_text("utf-8"))
        assert "fake CUDA tensors" in document["about"]
        assert {"transformers", "torch", "peft"} <= set(document["software"])
