"""What a loop of its own keeps of a forward pass: a Trainer keeps nothing, a function its outputs to the end of a step,
a loop through the next forward pass."""

import pytest

from kb.core.setup import KeepsOutputs, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine.follow import Run, follow
from kb.memory.engine.shallow import roughly

LLAMA = architecture_from_config(
    {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32_000, "tie_word_embeddings": False,
    }
)  # fmt: skip
ROWS, TOKENS = 4, 256
LOGITS = ROWS * TOKENS * 32_000 * 4


def setup(keeps: KeepsOutputs, **given: object) -> TrainingSetup:
    return TrainingSetup(
        per_device_train_batch_size=ROWS, max_source_length=TOKENS, keeps_outputs=keeps, method="lora", **given
    )  # type: ignore[arg-type]


def peak(keeps: KeepsOutputs, **given: object) -> int:
    return follow(setup(keeps, **given), LLAMA, (8, 6)).phases["train"].allocated


def test_logits_stay_through_backward() -> None:
    """The peak of a small model is where the loss's gradient is made, beside logits that would be gone."""
    assert peak("step") - peak("no") == pytest.approx(LOGITS, rel=0.02)


def test_a_loop_holds_the_last_logits_beside_the_next_ones() -> None:
    """Both, and what the loss makes of the new ones, are no less than the peak of backward."""
    step, loop = (follow(setup(keeps), LLAMA, (8, 6)).phases["train"] for keeps in ("step", "loop"))  # type: ignore[arg-type]
    assert loop.allocated >= step.allocated
    assert loop.reserved >= step.reserved


@pytest.mark.parametrize("keeps", ["no", "step", "loop"])
def test_a_few_layers_tell_of_all_what_is_kept(keeps: KeepsOutputs) -> None:
    found = roughly(Run(setup(keeps), LLAMA, (8, 6))).phases["train"].allocated
    assert found == pytest.approx(peak(keeps), rel=0.01)


def test_each_pass_of_an_accumulated_step_lets_go_of_the_last_ones_outputs() -> None:
    assert peak("loop", gradient_accumulation_steps=4) == pytest.approx(peak("loop"), rel=0.02)
