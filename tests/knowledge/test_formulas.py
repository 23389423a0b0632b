"""rules/formulas worked out: each formula's examples, the notes' own arithmetic, and the thresholds."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from kb.advice.formulas import work_out
from kb.core.expression import is_unknown
from kb.guide.formulas import formula as guide_formula
from kb.guide.library import load_library

FORMULAS: dict[str, Any] = dict(load_guide()["formulas"])
WORKED = {name: formula for name, formula in FORMULAS.items() if "variables" in formula}
each_formula = pytest.mark.parametrize("formula", WORKED.values(), ids=WORKED)
EXACTLY = 1e-9


def examples() -> Iterator[Any]:
    for name, formula in WORKED.items():
        for number, example in enumerate(formula["examples"], 1):
            yield pytest.param(formula, example, id=f"{name}-{number}")


@pytest.mark.parametrize(("formula", "example"), examples())
def test_an_example_comes_out_as_written_or_names_its_erratum(formula: Any, example: Any) -> None:
    found = work_out(formula, example["given"], use=example["use"])
    for name, value in example["gives"].items():
        as_written = found[name] == pytest.approx(value, rel=example.get("within", EXACTLY))
        assert as_written != ("erratum" in example), f"{name} is {found[name]}, written {value}"


@each_formula
def test_terms_name_only_variables_and_terms_before_them(formula: Any) -> None:
    given = dict.fromkeys(formula["variables"], 7.0)
    for use in ("claimed", "corrected"):
        terms = formula.get(use, [])
        later: set[str] = set()
        for term in reversed(terms):
            assert not later & names_in(term["expression_tree"]), term["name"]
            later.add(term["name"])
        if terms:
            inputs = {name: value for name, value in given.items() if name not in later}
            assert not any(map(is_unknown, work_out(formula, inputs, use=use).values()))  # type: ignore[arg-type]


def names_in(tree: Any) -> set[str]:
    from kb.core.expression import fact_names

    return set(fact_names(tree))


@each_formula
def test_every_variable_is_used(formula: Any) -> None:
    used = set()
    for term in [*formula.get("claimed", []), *formula.get("corrected", [])]:
        used |= names_in(term["expression_tree"]) | {term["name"]}
    examples = {name for example in formula["examples"] for name in example["given"]}
    said_only = {name for name, row in formula["variables"].items() if "lines" in row}
    assert formula["variables"].keys() <= used | examples | said_only


def test_a_missing_variable_is_named_not_guessed() -> None:
    found = work_out(FORMULAS["effective-batch"], {"per_device": 4})
    assert is_unknown(found["effective"])
    assert found["effective"].needs == {"accumulation"}


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(ValueError, match="no variable 'batch'"):
        work_out(FORMULAS["effective-batch"], {"batch": 4})


def test_ranges_are_worked_out_at_both_ends() -> None:
    given = {"workers": 16.0, "model_size": 0.0}
    low = work_out(FORMULAS["guide-host-memory"], given, end="low")["total"]
    high = work_out(FORMULAS["guide-host-memory"], given, end="high")["total"]
    assert (low, high) == pytest.approx((42.9, 62.4))


def test_mt5_xl_by_the_notes_formula_and_by_the_corrected_one() -> None:
    """S2: 51.8 GB by the note; 59.2 GB of model states alone by the corrected one."""
    nothing = {"batch_size": 0.0, "sequence_length": 0.0, "hidden_size": 0.0}
    claimed = work_out(FORMULAS["guide-gpu-memory"], {"parameters": 3.7e9, **nothing}, use="claimed")
    assert [claimed[name] / 1e9 for name in ("model", "optimizer", "gradients", "total")] == pytest.approx(
        [14.8, 22.2, 14.8, 51.8]
    )
    assert work_out(FORMULAS["full-training-states"], {"parameters": 3.7e9})["total"] == pytest.approx(59.2e9)
    states = work_out(FORMULAS["full-training-states"], {"parameters": 1.2e9})["total"]
    assert states == pytest.approx(19.2e9)
    assert states > load_catalog().gpus["v100-16gb"].memory_total


def test_host_memory_of_the_history() -> None:
    """S3: 89 GB with 32 workers, 29 over 60; 57 with 16; 39 at the guideline's lower ends."""
    ledger = FORMULAS["history-host-memory"]
    assert work_out(ledger, {"workers": 32}, use="claimed") == {"worker_memory": 64, "total": 89, "excess": 29}
    assert work_out(ledger, {"workers": 16}, use="claimed")["total"] == 57
    lower = {"base": 15, "workers": 16, "per_worker": 1.5, "model_size": 0, "overhead_share": 0}
    assert work_out(FORMULAS["guide-host-memory"], lower)["total"] == 39


def test_kfold_memory_by_the_note_and_by_the_fit_to_its_figures() -> None:
    """S12: 30 MB a sample, 1.98 GB a fold, 9.9 GB; the fit gives 8.6, 13.1, 22.3 and 40.6 GB."""
    given = {"batch": 16, "new_tokens": 120, "beams": 5}
    claimed = work_out(FORMULAS["kfold-inference-memory"], given, use="claimed")
    assert claimed == pytest.approx({"per_sample": 30, "per_fold": 1.98, "total": 9.9})
    fit = FORMULAS["kfold-inference-memory-fit"]
    totals = [work_out(fit, {"batch": batch})["total"] for batch in (8, 16, 32, 64)]
    assert totals == pytest.approx([8.571, 13.143, 22.286, 40.571], abs=0.001)


def test_the_fit_is_the_least_squares_line_of_the_presets_rows() -> None:
    rows = load_guide()["presets"]["rtx-4090-kobart"]["rows"]
    points = [
        (row["settings"]["inference.batch_size"]["value"], row["memory"]["value"])
        for row in rows
        if row["outcome"] == "fits"
    ]
    mean = sum(batch for batch, _ in points) / len(points)
    slope = sum((batch - mean) * gb for batch, gb in points) / sum((batch - mean) ** 2 for batch, _ in points)
    found = work_out(FORMULAS["kfold-inference-memory-fit"], {"batch": 0})
    assert found["slope"] == pytest.approx(slope)
    assert found["intercept"] == pytest.approx(sum(gb for _, gb in points) / len(points) - slope * mean)


def test_throughput_and_time_of_the_history() -> None:
    """S15: 5.33 and 3.20 samples/s at 8 steps a minute; 3120 steps of 3.24 s are 2 h 48 min 28 s, 7.41 samples/s."""
    rate = FORMULAS["training-throughput"]
    assert work_out(rate, {"per_device": 20})["samples_per_second"] == pytest.approx(16 / 3)
    assert work_out(rate, {"per_device": 12})["samples_per_second"] == pytest.approx(3.2)
    time = work_out(FORMULAS["training-time"], {"steps": 3120, "effective": 24})
    assert divmod(int(time["seconds"]), 3600) == (2, 48 * 60 + 28)
    assert time["samples_per_second"] == pytest.approx(7.407, abs=0.001)


def test_the_ramp_grows_by_a_quarter_and_runs_whole_batches() -> None:
    """S8: from 4: 5, 6, 7, 9, 12, 15, 19."""
    batch, run = 4.0, []
    for _ in range(7):
        found = work_out(FORMULAS["batch-ramp"], {"batch": batch})
        batch = found["next"]
        run.append(found["run"])
    assert run == [5, 6, 7, 9, 12, 15, 19]


def test_three_processes_of_8_gb_fill_a_24_gb_card_and_two_are_safe() -> None:
    """S14."""
    formula = FORMULAS["concurrent-processes"]
    assert work_out(formula, {"processes": 3}, use="claimed")["needed"] == 24
    assert work_out(formula, {}) == {"most": 2}


def test_thresholds_have_a_bound_unless_they_only_say_what_to_watch() -> None:
    thresholds = {row["id"]: row for row in FORMULAS["targets"]["thresholds"]}
    assert len(thresholds) == len(FORMULAS["targets"]["thresholds"])
    for row in thresholds.values():
        assert (row["state"] == "watch") != ("low" in row or "high" in row)
        assert row.get("low", 0) <= row.get("high", float("inf"))
    training = thresholds["gpu-memory-training"]
    assert training["low"] <= 18.3 / 24 * 100 <= training["high"]  # S10: 76 % is inside
    assert thresholds["gpu-memory-danger"]["low"] > thresholds["gpu-memory-safe"]["high"]


def test_the_sites_examples_have_the_units_of_their_terms() -> None:
    known = {"guide-host-memory": "39 GB", "kfold-inference-memory": "9.9 GB"}
    for language, (name, total) in product(("ko", "en"), known.items()):
        page = guide_formula(load_library(language), name)
        assert total in page and not re.search(r"(?<![\d.])(39|9\.9) (bytes|바이트)", page)
