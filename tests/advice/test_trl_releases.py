"""What GRPO takes where nothing says it, by release of TRL."""

import pytest

from catalog_sample import load_catalog, read_units
from kb.advice.check import Checker
from kb.core.hardware import Machine
from kb.core.setup import TrainingSetup

CATALOG = load_catalog()
GRPO = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\nreward_funcs: [accuracy_reward]\nnum_generations: 8\n"
    "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\nlog_completions: true\nlearning_rate: 1.0e-6\n"
)


def setup_of(release: tuple[int, ...] | None, more: str = "") -> TrainingSetup:
    (unit,) = read_units(GRPO + more, "grpo.yaml", CATALOG.dialects, CATALOG.facts)
    versions = {"trl": release} if release else {}
    setup = Checker(CATALOG, Machine(), versions=lambda library, *_: versions.get(library)).prepare(unit).setup
    assert setup is not None and setup.post is not None and setup.post.kind == "grpo"
    return setup


@pytest.mark.parametrize(
    ("release", "answer", "reference", "rows"),
    [
        ((0, 16, 1), 256, "model", 8),
        ((0, 18, 2), 256, "model", 32),
        ((0, 19, 1), 256, "none", 32),
        ((1, 8), 256, "none", 32),
        ((1, 16), 512, "none", 32),
        (None, 512, "none", 32),
    ],
)
def test_answers_reference_and_rows_are_those_of_the_release(release, answer, reference, rows) -> None:
    post = setup_of(release).post
    assert post is not None
    assert (post.completion, post.reference, post.generated_rows) == (answer, reference, rows)


def test_what_the_config_says_counts_in_every_release() -> None:
    post = setup_of((0, 16, 1), "beta: 0.0\nmax_completion_length: 100\n").post
    assert post is not None
    assert (post.completion, post.reference) == (100, "none")


def test_the_weight_of_an_earlier_release_is_listed() -> None:
    assumed = {each.name: each.value for each in setup_of((0, 18, 2)).assumed}
    assert assumed["trl.beta"] == 0.04
    assert "trl.beta" not in {each.name for each in setup_of((0, 19, 1)).assumed}


@pytest.mark.parametrize(("release", "bf16"), [((0, 18, 2), False), ((0, 19), True), ((1, 16), True)])
def test_bf16_is_the_trainers_own_before_0_19(release, bf16) -> None:
    assert setup_of(release).bf16 is bf16
    assert setup_of(release, "bf16: true\n").bf16 is True


SFT = "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 2048\npacking: true\nper_device_train_batch_size: 8\n"


@pytest.mark.parametrize(
    ("release", "more", "in_chunks", "listed"),
    [
        ((1, 6), "", False, False),
        ((1, 8), "", True, False),
        ((1, 15), "do_eval: true\neval_strategy: steps\n", True, False),
        ((1, 8), "loss_type: nll\n", False, False),
        ((1, 5), "loss_type: chunked_nll\n", True, False),
        (None, "", False, True),
        (None, "loss_type: nll\n", False, False),
        (None, "use_liger_kernel: true\n", False, False),
    ],
)
def test_sft_makes_its_loss_in_chunks_since_1_7(release, more, in_chunks, listed) -> None:
    """With Liger its kernel does; where nobody says the release, whole logits are counted, and listed."""
    (unit,) = read_units(SFT + more, "sft.yaml", CATALOG.dialects, CATALOG.facts)
    versions = {"trl": release} if release else {}
    setup = Checker(CATALOG, Machine(), versions=lambda library, *_: versions.get(library)).prepare(unit).setup
    assert setup.fused_evaluation is in_chunks
    assert setup.fused_loss is (in_chunks or "liger" in more)
    assert ("whole_logits" in {each.reason for each in setup.assumed}) is listed


# --- adapters --------------------------------------------------------------------------------------------------------

SFT = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\ndtype: bfloat16\nbf16: true\nmax_length: 512\npacking: false\n"
    "completion_only_loss: true\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-4\n"
)
DPO = SFT.replace("completion_only_loss: true\n", "f_divergence_type: reverse_kl\nbeta: 0.1\n")


def adapted(config: str, more: str) -> TrainingSetup:
    (unit,) = read_units(config + more, "config.yaml", CATALOG.dialects, CATALOG.facts)
    setup = Checker(CATALOG, Machine(), versions=lambda *_: None).prepare(unit).setup
    assert setup is not None and setup.method == "lora"
    return setup


def test_trl_s_commands_make_adapters_of_their_own_defaults() -> None:
    """``lora_r`` and ``lora_dropout`` of ModelConfig; measured on an H100 (rules/measurements/trl-h100-*)."""
    setup = adapted(SFT, "use_peft: true\n")
    assert (setup.lora_r, setup.lora_dropout) == (16, 0.05)
    setup = adapted(SFT, "use_peft: true\nlora_r: 8\nlora_dropout: 0.0\n")
    assert (setup.lora_r, setup.lora_dropout) == (8, 0.0)


@pytest.mark.parametrize(
    ("more", "dropout"), [("", 0.0), ("lora_dropout: 0.1\n", 0.0), ("disable_dropout: false\n", 0.05)]
)
def test_a_trainer_of_preferences_turns_dropout_off_unless_it_is_told_not_to(more: str, dropout: float) -> None:
    assert adapted(DPO, f"use_peft: true\n{more}").lora_dropout == dropout


# --- prompts and answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("facts", "scored"), [({}, 0), ({"trl.max_prompt_length": 400}, 112)])
def test_of_a_sample_the_answer_alone_is_scored_where_the_project_says_how_long_a_prompt_is(facts, scored) -> None:
    (unit,) = read_units(DPO, "config.yaml", CATALOG.dialects, CATALOG.facts)
    setup = Checker(CATALOG, Machine(), versions=lambda *_: None, given=facts).prepare(unit).setup
    assert setup is not None and setup.post is not None and setup.post.scored == scored
    reasons = {each.reason for each in setup.assumed if each.name == "trl.max_prompt_length"}
    assert reasons == (set() if facts else {"all_answer"})
