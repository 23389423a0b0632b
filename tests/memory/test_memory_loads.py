"""What passes through host memory, by one function for every architecture."""

from typing import Any

import pytest

import memory_sample as sample
from catalog_sample import load_catalog
from kb.core.model import Architecture
from kb.core.setup import PostTraining, TrainingSetup
from kb.memory import parameter_count
from kb.memory.host import loads_of

MODELS = {name: model.architecture for name, model in load_catalog().models.items()}
T5 = sample.architecture(sample.T5_BASE)
EVALUATED = TrainingSetup(do_train=False, do_eval=True, eval_samples=100, max_source_length=512, max_target_length=64)
BERT = next(a for a in MODELS.values() if a.model_type == "bert")


@pytest.mark.parametrize(
    ("architecture", "elements"),
    [
        (T5, 64 * T5.vocab_size + 512 * T5.d_model),
        (MODELS["gpt2"], 512 * MODELS["gpt2"].vocab_size),
        (MODELS["glm-4-9b"], 512 * MODELS["glm-4-9b"].vocab_size),
        (MODELS["whisper-small"], 64 * MODELS["whisper-small"].vocab_size + 512 * MODELS["whisper-small"].d_model),
        (BERT._replace(head="sequence", labels=3), 3),
        (BERT._replace(head="token", labels=3), 512 * 3),
        (BERT._replace(head="masked"), 512 * BERT.vocab_size),
    ],
)
def test_predictions_of_all_samples_are_gathered_in_fp32(architecture: Architecture, elements: int) -> None:
    assert loads_of(EVALUATED, architecture).gathered == 4 * 100 * elements
    for change in ({"prediction_loss_only": True}, {"predict_with_generate": True}, {"eval_samples": None}):
        assert loads_of(EVALUATED._replace(**change), architecture).gathered == 0


@pytest.mark.parametrize("name", ["gpt2", "glm-4-9b", "whisper-small", "t5-base"])
def test_a_model_that_the_engine_alone_knows_is_counted_as_the_others(name: str) -> None:
    architecture = MODELS[name]
    total, half = parameter_count(architecture), {"weights": "bf16"}

    def loads(**settings: Any) -> Any:
        return loads_of(TrainingSetup(**settings), architecture)

    assert loads(**half).checkpoint == pytest.approx(2 * total, rel=0.05)
    assert loads(**half).saved == loads(**half).checkpoint
    assert loads(optim="paged_adamw_32bit", **half).offloaded == 8 * total
    offloaded = loads(bf16=True, zero_stage=2, offload_optimizer=True, world_size=4).offloaded
    assert 18 * total < offloaded < 22 * total
    assert loads(do_train=False)[1:] == (0, 0, 0, 0)


def test_paged_states_are_each_rank_s_own_unless_they_are_shared_out() -> None:
    def paged(**settings: Any) -> int:
        setup = TrainingSetup(weights="bf16", optim="paged_adamw_32bit", **settings)
        return loads_of(setup, MODELS["gpt2"]).offloaded

    one = paged()
    assert paged(world_size=4) == 4 * one
    for shared in ({"zero_stage": 1}, {"zero_stage": 3}, {"fsdp": True}):
        assert paged(world_size=4, **shared) == pytest.approx(one, rel=0.01)


def test_a_trainer_s_own_loss_changes_nothing_on_the_host() -> None:
    setup = TrainingSetup(method="qlora", load_in_4bit=True, bf16=True, optim="paged_adamw_8bit")
    assert loads_of(setup._replace(post=PostTraining("dpo")), MODELS["gpt2"]) == loads_of(setup, MODELS["gpt2"])
