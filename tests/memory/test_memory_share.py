"""The largest part of a step's samples that fits at once is the one that following every batch gives."""

from typing import Any

import pytest

from catalog_sample import CATALOG, shallow
from effort import few
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.core.setup import PostTraining, TrainingSetup
from kb.core.units import GIB
from kb.memory import search
from kb.memory.search import divisors_of

PLAIN = TrainingSetup(bf16=True, per_device_train_batch_size=8, gradient_accumulation_steps=8, max_source_length=512)
RUNS = {
    "t5-base": PLAIN._replace(do_eval=True, predict_with_generate=True, generation_num_beams=4),
    "t5-base with checkpointing": PLAIN._replace(gradient_checkpointing=True, attn_implementation="eager"),
    "kobart": PLAIN._replace(bf16=False, per_device_train_batch_size=24, gradient_accumulation_steps=5),
    "qwen2.5-0.5b": PLAIN._replace(method="lora", lora_r=16, lora_target_modules=("q_proj", "v_proj")),
    "qwen2.5-0.5b with Adafactor": PLAIN._replace(optim="adafactor", gradient_accumulation_steps=1),
    "qwen2.5-0.5b by SFT": PLAIN._replace(post=PostTraining("sft"), gradient_checkpointing=True),
    "qwen2.5-0.5b by DPO": PLAIN._replace(post=PostTraining("dpo", reference="model"), weights="bf16"),
    "qwen2.5-0.5b by GRPO": PLAIN._replace(post=PostTraining("grpo", "rows", "model", 64, generated_rows=2)),
}


def estimator(name: str, gib: float) -> Estimator:
    gpu = CATALOG.gpus["rtx-3090"]._replace(memory_total=int(gib * GIB))
    return Estimator(shallow(CATALOG.models[name.partition(" ")[0]]), on_gpu(gpu), CATALOG.constants)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", few(RUNS, 4))
def test_the_share_found_is_the_largest_that_fits(name: str, known: bool) -> None:
    setup = RUNS[name]
    alone = setup.training_alone
    for gib in (1.5, 2, 3, 4, 6, 9, 14, 24):
        here = estimator(name, gib)
        fitting = [0]
        for batch in divisors_of(setup.per_device_train_batch_size * setup.gradient_accumulation_steps):
            train = here.predict(alone._replace(per_device_train_batch_size=batch)).phase("train")
            if train is None or not here.fits([train]):
                break
            fitting.append(batch)
        own = here.predict(setup).phase("train") if known else None
        assert here.largest_share(setup, own) == fitting[-1], gib


@pytest.mark.parametrize(
    ("name", "most"),
    [("t5-base", 2), ("qwen2.5-0.5b by SFT", 2), ("qwen2.5-0.5b by DPO", 2), ("qwen2.5-0.5b by GRPO", 3)],
)
def test_few_batches_are_followed(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = search.predict

    def counted(setup: TrainingSetup, *args: Any, **named: Any) -> Any:
        asked.append(setup.per_device_train_batch_size)
        return real(setup, *args, **named)

    monkeypatch.setattr(search, "predict", counted)
    setup = RUNS[name]
    for gib in (2, 3, 4, 6, 9, 14, 24):
        here, asked[:] = estimator(name, gib), []
        here.largest_share(setup, here.predict(setup).phase("train"))
        assert len(asked) <= most, (gib, asked)


def test_what_takes_all_at_once_and_fits_is_not_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here, setup = estimator("t5-base", 24), RUNS["t5-base"]._replace(gradient_accumulation_steps=1)
    own = here.predict(setup).phase("train")
    monkeypatch.delattr(search, "predict")
    assert here.largest_share(setup, own) == setup.per_device_train_batch_size
