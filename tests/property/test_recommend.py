"""Whatever is asked: the recommended batch fits with its whole error band, the next one does not, and the effective
batch is held where any batch holds it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalog_sample import load_catalog, soon_followed
from effort import examples
from kb.advice.batches import Ceiling, splits_of
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.fit.recommend import recommend_training
from kb.advice.question import Question
from kb.memory import UnsupportedArchitectureError
from kb.memory.search import GRAIN

pytestmark = pytest.mark.long

CATALOG = load_catalog()
MODELS = st.sampled_from(sorted(CATALOG.models))
GPUS = st.sampled_from(sorted(CATALOG.gpus))


@pytest.mark.exhaustive
@settings(max_examples=examples(3, 50), deadline=None)
@given(
    model=MODELS,
    gpu=GPUS,
    method=st.sampled_from(["auto", "full", "lora", "qlora"]),
    effective=st.integers(4, 300),
    world=st.sampled_from([1, 2, 4]),
    source=st.integers(32, 1024),
    target=st.integers(8, 256),
    beams=st.integers(1, 8),
)
@example(model="gpt-j-6b", gpu="a10", method="auto", effective=4, world=1, source=32, target=8, beams=1)
def test_what_is_recommended_fits_and_more_does_not(
    model: str, gpu: str, method: str, effective: int, world: int, source: int, target: int, beams: int
) -> None:
    known = CATALOG.models[model]
    known = soon_followed(known) if model != "gpt-j-6b" else known
    estimator = Estimator(known, on_gpu(CATALOG.gpus[gpu]), CATALOG.constants)
    asked = Question.of(
        method=method, effective_batch=effective, source_length=source, target_length=target, beams=beams
    )
    try:
        found = recommend_training(asked, estimator, CATALOG.gpus, world)
    except UnsupportedArchitectureError:  # images of no known size, beams of a decoder: said by name
        assert estimator.model.architecture.engine
        return
    if found.setup is None:
        assert all(not way.fits(effective, world) for way in found.attempts if method in ("auto", way.method)) or (
            found.attempts[-1].fits(effective, world)  # offload alone fits: it is offered, not chosen
        )
        return
    assert found.report.verdict.status == "fits"
    # batches of GRAIN and more are known to a part of themselves, and what a cache leaves is no straight line
    assert estimator.fits(found.report.phases)
    if found.splits.exact:
        assert found.setup.effective_batch_size == effective
    else:
        assert effective % world
        assert abs(found.setup.effective_batch_size - effective) < world * found.setup.gradient_accumulation_steps
    for steps, largest in ((1, found.chosen.ceiling.single), (2, found.chosen.ceiling.accumulated)):
        alone = found.setup._replace(do_eval=False, do_predict=False, gradient_accumulation_steps=steps)
        more = estimator.predict(alone._replace(per_device_train_batch_size=largest + 1)).phase("train")
        assert not estimator.fits((more,)) or largest >= GRAIN
    evaluation = found.setup._replace(do_predict=False, per_device_eval_batch_size=found.largest.evaluation + 1)
    after = [phase for phase in estimator.predict(evaluation).phases if phase.name in ("evaluate", "generate")]
    assert not estimator.fits(after) or found.largest.evaluation >= GRAIN


@given(effective=st.integers(1, 5000), single=st.integers(1, 600), less=st.integers(0, 600), world=st.integers(1, 16))
def test_splits_hold_the_effective_batch_or_stand_around_it(effective: int, single: int, less: int, world: int) -> None:
    ceiling = Ceiling(single, max(single - less, 1))
    if effective < world:
        return
    splits = splits_of(effective, ceiling, world)
    for split in splits.exact:
        assert split.effective == effective
        assert 1 <= split.batch <= (ceiling.single if split.accumulation == 1 else ceiling.accumulated)
    assert bool(splits.exact) == (effective % world == 0)
    for near in (splits.below, splits.above):
        assert near is None or near.batch <= max(ceiling)
    assert splits.below is None or splits.below.effective < effective
    assert splits.above is None or splits.above.effective > effective
    assert splits.exact or splits.nearest() is not None
