"""Tables that take long to compute are kept by what they rest on."""

import subprocess
import sys
from pathlib import Path

import pytest

from kb.guide import choices, fits
from kb.knowledge import load_catalog

MARKS = "from kb.guide import choices, fits; print(choices._mark(), fits._mark())"


def test_every_process_finds_what_another_kept() -> None:
    run = subprocess.run([sys.executable, "-c", MARKS], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == [choices._mark(), fits._mark()]


def test_a_preview_has_a_model_of_each_family_and_some_of_the_first_pages_choices() -> None:
    models = load_catalog().models
    families = {model.architecture.family for model in models.values()}
    assert {models[name].architecture.family for name in fits.PREVIEWED} == families
    assert {*fits.PREVIEWED} & {*fits.TYPICAL_MODELS}, "a GPU's page has no maps of others"
    assert all(
        set(few) < set(every) for few, every in zip(choices.PREVIEWED, (choices.MODELS, choices.GPUS), strict=True)
    )


def test_what_was_kept_of_a_preview_is_not_taken_for_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(choices, "_computed", lambda models, gpus: asked.append((models, gpus)) or [])
    choices.choices.cache_clear()
    try:
        choices.choices(str(tmp_path), True)
        choices.choices(str(tmp_path))
    finally:
        choices.choices.cache_clear()
    assert asked == [choices.PREVIEWED, (choices.MODELS, choices.GPUS)]
    assert len({path.name.rpartition("-")[0] for path in tmp_path.iterdir()}) == 2
