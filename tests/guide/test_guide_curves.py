"""What fits where, computed for all cards together, equals what each card gives alone."""

import json
from pathlib import Path

import pytest

from effort import few
from kb.advice.fit.attempts import WAYS
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend import alone_at_inference, base_of
from kb.core.text import LANGUAGES
from kb.guide import fits as whole
from kb.guide.fits import Curves, fit_of, heat_map, map_of
from kb.guide.kept import KEPT
from kb.guide.library import load_library
from kb.guide.pages import model_page
from kb.knowledge import load_catalog
from kb.report.lessons import SHOWN_WAYS

CATALOG = load_catalog()
# the two that are always looked at are of a preview: what the site's tests ask of them is kept
MODELS = ("t5-base", "mt5-base", "kobart", "distilgpt2", "llama-3.2-1b", "klue-roberta-base")


@pytest.mark.parametrize("name", few(MODELS, 2))
@pytest.mark.long
def test_cards_together_give_the_same_batches_as_each_alone(name: str) -> None:
    model = CATALOG.models[name]
    curves = Curves(model, CATALOG.constants)
    cards = sorted(CATALOG.gpus.values(), key=lambda gpu: gpu.memory_total)
    rows = {gpu.id: fit_of(model, gpu, CATALOG.constants, curves) for gpu in cards}
    # each card's answer leans on those of the cards before: some of every size show whether that changes it
    for gpu in {*cards[::6], *{gpu.compute_capability: gpu for gpu in cards}.values()}:
        row = rows[gpu.id]
        estimator = Estimator(model, on_gpu(gpu), CATALOG.constants, rough=True)
        base, _ = base_of(model, estimator)
        assert row is not None
        for way in SHOWN_WAYS:
            setup = base._replace(**WAYS[way], do_eval=False)
            assert row.train[way] == estimator.largest(setup, "per_device_train_batch_size")
        assert row.evaluation == estimator.largest(base, "per_device_eval_batch_size")
        assert row.inference == estimator.largest(alone_at_inference(base), "inference_batch_size")


@pytest.mark.parametrize("gpu", ["t4", "rtx-3090", "h100-80gb"])
def test_phases_and_verdicts_are_those_of_the_prediction_for_that_card(gpu: str) -> None:
    model, card = CATALOG.models["t5-base"], CATALOG.gpus[gpu]
    estimator, curves = Estimator(model, on_gpu(card), CATALOG.constants, rough=True), Curves(model, CATALOG.constants)
    for other in CATALOG.gpus.values():  # what others of its generation have left behind changes nothing
        curves.phases(base_of(model, Estimator(model, on_gpu(other), CATALOG.constants))[0], other)
    base, _ = base_of(model, estimator)
    report = estimator.predict(base)
    assert curves.phases(base, card) == report.phases
    training = base._replace(do_eval=False)
    verdict = curves.verdicts(training, card)(training.per_device_train_batch_size)
    assert verdict == estimator.predict(training).verdict.status


@pytest.mark.exhaustive
def test_a_map_is_of_the_first_way_in_which_anything_fits() -> None:
    model, constants = CATALOG.models["mt5-xl"], CATALOG.constants
    small, large = CATALOG.gpus["t4"], CATALOG.gpus["a100-80gb"]
    found = map_of(model, large, constants)
    assert found is not None and found.way == "full" and found.cells == heat_map(model, large, constants)
    smaller = map_of(model, small, constants)
    assert smaller is None or smaller.way != "full"


@pytest.mark.long
@pytest.mark.parametrize("name", ["deberta-v3-small", "whisper-tiny"])
def test_models_of_every_family_are_on_the_table(name: str) -> None:
    row = fit_of(CATALOG.models[name], CATALOG.gpus["rtx-4090"], CATALOG.constants)
    assert row is not None and row.train["lora"] >= row.train["full"] > 0


@pytest.mark.parametrize("name", ["deberta-v3-small", "whisper-tiny"])
def test_the_page_of_a_model_that_is_on_no_table_says_what_to_ask(name: str) -> None:
    model = CATALOG.models[name]
    for language in LANGUAGES:
        page = model_page(load_library(language), model, whole.Fits([], {}, []))
        assert "{ #fits }" in page and f"`kb recommend --model {name} --gpu a100-80gb`" in page


@pytest.mark.long
def test_everything_is_computed_once_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, gpus = ("kobart", "klue-roberta-base"), ("t4", "rtx-3090", "b200")
    few = CATALOG._replace(
        models={name: CATALOG.models[name] for name in models}, gpus={name: CATALOG.gpus[name] for name in gpus}
    )
    for name in ("load_catalog", "_catalog"):  # of this process, and of those that it forks
        monkeypatch.setattr(whole, name, lambda: few)
    whole.all_fits.cache_clear()
    for number in range(KEPT + 2):
        (tmp_path / f"fits-{number}.json").write_text("[]", "utf-8")
    try:
        first = whole.all_fits(str(tmp_path))
        whole.all_fits.cache_clear()
        assert whole.all_fits(str(tmp_path)) == first
    finally:
        whole.all_fits.cache_clear()
    assert {row.model for row in first.rows} == set(models)
    assert first.maps.keys() == {(model, gpu) for model in models for gpu in gpus}
    kept = list(tmp_path.glob("fits-*.json"))
    assert len(kept) == KEPT and any(json.loads(path.read_text("utf-8")) for path in kept)
