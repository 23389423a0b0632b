"""How often a check asks the memory engine to follow a run: what it costs, whatever the machine."""

from typing import Any

import pytest

from catalog_sample import CATALOG, machine, read_units
from effort import few
from kb.advice.check import Checker
from kb.advice.facts.memory_facts import PredictedFacts
from kb.core.document import Unit
from kb.core.result import UnitResult
from kb.memory.engine import follow

GRPO = (
    "model_name_or_path: {model}\ndataset_name: trl-lib/tldr\nreward_funcs: [think_format_reward]\noutput_dir: out\n"
    "num_generations: 8\nuse_vllm: true\nvllm_mode: server\n"
)
ADAPTED = "use_peft: true\nbf16: true\ngradient_checkpointing: true\n"


def unit(text: str) -> Unit:
    (found,) = read_units(text, "grpo.yaml", CATALOG.dialects, CATALOG.facts)
    return found


def runs_of(text: str, gpu: str) -> tuple[UnitResult, int]:
    """The result, and the runs that were followed for it."""
    caches: list[Any] = [follow._unlimited, follow._inside, follow._held_by_training]
    for cache in caches:
        cache.cache_clear()
    follow._NEVER_FULL.clear()
    result = Checker(CATALOG, machine(gpu), notes=False).check(unit(text))
    return result, sum(cache.cache_info().misses for cache in caches)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "more", "gpu", "most"),
    [
        # the weights alone are too much, so the run itself is followed, and the one guess that halves them
        ("Qwen/Qwen2.5-7B-Instruct", ADAPTED, "rtx-4090", 3),
        # every guess is tried, several GPUs among them, three savings are told, the batch is sought among its divisors
        ("Qwen/Qwen2.5-1.5B-Instruct", "per_device_train_batch_size: 32\n", "rtx-4090", 13),
    ],
    ids=["weights too large", "batch too large"],
)
def test_a_check_follows_few_runs(model: str, more: str, gpu: str, most: int) -> None:
    result, runs = runs_of(GRPO.format(model=model) + more, gpu)
    assert result.prediction is not None
    assert result.prediction.verdict.status in ("oom", "likely_oom")
    assert result.if_so
    assert runs <= most


@pytest.mark.parametrize("gpu", few(["rtx-3060-12gb", "rtx-3090", "a100-40gb", "h100-80gb"]))
@pytest.mark.parametrize("more", ["", ADAPTED, "bf16: true\nload_in_4bit: true\nuse_peft: true\n"])
@pytest.mark.parametrize("vllm", ["server", "colocate"])
def test_what_is_over_by_its_weights_alone_is_out_of_memory_by_the_whole_prediction(
    gpu: str, more: str, vllm: str
) -> None:
    text = GRPO.format(model="Qwen/Qwen2.5-7B-Instruct").replace("server", vllm) + more
    predicted: PredictedFacts = Checker(CATALOG, machine(gpu)).prepare(unit(text)).predicted
    assert predicted.estimator is not None
    supposed = predicted.supposing(predicted.setup)
    assert predicted.report is not None
    if predicted.estimator.surely_over(predicted.setup) or supposed.surely_over:
        assert predicted.report.verdict.status == "oom"
    assert supposed.status == predicted.report.verdict.status
