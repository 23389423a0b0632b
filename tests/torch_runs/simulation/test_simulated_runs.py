"""The record of simulated runs: what it is of, which of its runs are simulated again, and what a digest tells apart."""

import json
import re
from pathlib import Path

import pytest

import simulated_runs
from kb.core.setup import PostTraining, TrainingSetup
from simulated_runs import RECORD, covering, digest, key_of, parted, recorded
from simulation_needs import PACKAGES

ROOT = Path(__file__).parents[3]
BERT = {"model_type": "bert", "hidden_size": 64}
AMPERE = (8, 6)


def test_the_record_is_of_the_releases_that_are_pinned() -> None:
    pins = dict(re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    held = json.loads(RECORD.read_text("utf-8"))["releases"]
    assert held == {name: pins[name] for name in PACKAGES}, 'KB_RECORD=1 make test ARGS="-k _acts"'


def test_what_is_simulated_again_has_every_word_of_all_runs() -> None:
    runs = {"a": (["full", "bert"], 5), "b": (["lora", "bert"], 4), "c": (["lora", "t5"], 9), "d": (["full", "t5"], 90)}
    chosen = covering(runs)
    assert {word for key in chosen for word in runs[key][0]} == {"full", "lora", "bert", "t5"}
    assert "d" not in chosen  # the dearest, of which the others have all


def test_of_other_releases_nothing_that_is_recorded_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_runs, "releases", lambda: {"torch": "1.0"})
    recorded.cache_clear()
    try:
        assert recorded() == {}
    finally:
        recorded.cache_clear()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("+", 512, "a"), ("+", 700, ""), ("-", 512, "")], [("+", 500, ""), ("+", 1024, ""), ("-", 1024, "")]),
        ([("+", 512, ""), ("+", 512, "")], [("+", 512, ""), ("+", 513, "")]),
        ([("+", 9, ""), ("-", 9, ""), ("+", 9, "")], [("+", 9, ""), ("+", 9, "")]),
        ([("+", 9, ""), ("+", 9000, ""), ("-", 9, ""), ("-", 9000, ""), ("+", 1, "")],
         [("+", 9, ""), ("+", 9000, ""), ("-", 9000, ""), ("-", 9, ""), ("+", 1, "")]),
    ],
    ids=["frees at the end", "a block more", "a free less", "frees in another order"],
)  # fmt: skip
def test_a_digest_tells_apart_what_parts(one: list[simulated_runs.Act], other: list[simulated_runs.Act]) -> None:
    alike = parted(simulated_runs.canonical(one), simulated_runs.canonical(other)) is None
    assert (digest(one) == digest(other)) is alike


def test_a_run_is_known_by_all_that_it_is_made_of() -> None:
    plain = TrainingSetup()
    keys = [
        key_of(BERT, plain, AMPERE, ""),
        key_of({**BERT, "hidden_size": 65}, plain, AMPERE, ""),
        key_of(BERT, plain._replace(bf16=True), AMPERE, ""),
        key_of(BERT, plain._replace(max_source_length=8), AMPERE, ""),
        key_of(BERT, plain._replace(post=PostTraining("embedding", columns=3)), AMPERE, ""),
        key_of(BERT, plain._replace(post=PostTraining("embedding")), AMPERE, ""),
        key_of(BERT, plain, (7, 5), ""),
        key_of(BERT, plain, AMPERE, "ddp"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == key_of(dict(reversed(BERT.items())), TrainingSetup(bf16=False), AMPERE, "")


def test_what_a_simulation_writes_into_a_config_makes_no_other_run_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does with ``rope_scaling``, which the configs of several tests share; of what is not recorded
    beside other runs it is said how to record it."""
    monkeypatch.setattr(simulated_runs, "recorded", dict)
    config = {"model_type": "llama", "rope_scaling": {"type": "linear"}}
    asked: list[dict[str, object]] = []

    def simulate(given: dict[str, dict[str, str]], *_: object) -> tuple[list[simulated_runs.Act], dict[str, object]]:
        given["rope_scaling"]["rope_type"] = "linear"
        asked.append(dict(given))
        return [("+", 512, "")], {}

    monkeypatch.setattr(simulated_runs, "about", lambda *_: "a run (llama)")
    monkeypatch.delenv("KB_RECORD", raising=False)
    simulated_runs.run_again(config, TrainingSetup(), AMPERE, simulate=simulate, wrapped="")  # type: ignore[arg-type]
    assert asked == [{"model_type": "llama", "rope_scaling": {"type": "linear", "rope_type": "linear"}}]
    assert config == {"model_type": "llama", "rope_scaling": {"type": "linear"}}

    monkeypatch.setattr(simulated_runs, "recorded", lambda: {"another": None})
    with pytest.raises(AssertionError, match="KB_RECORD=1"):
        simulated_runs.run_again(config, TrainingSetup(), AMPERE, simulate=simulate, wrapped="")  # type: ignore[arg-type]
