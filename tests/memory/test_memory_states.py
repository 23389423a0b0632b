"""Model states: bytes a parameter by method, optimizer and stage; what quantization leaves alone."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.memory import adapter_parameters, parameter_count, predict
from kb.memory.parameters import count
from kb.memory.states import States, states_of

T5 = sample.architecture(sample.T5_BASE)
MT5 = sample.architecture(sample.MT5_BASE)
N = 222_903_552


def states(**settings: Any) -> States:
    return states_of(TrainingSetup(**settings), T5)


@pytest.mark.parametrize(
    ("optim", "bytes_a_parameter"),
    [("adamw_torch_fused", 8), ("adamw_torch", 8), ("sgd", 0), ("paged_adamw_32bit", 0), ("adamw_hf", 8)],
)
def test_optimizer_states_by_optimizer(optim: str, bytes_a_parameter: int) -> None:
    assert states(optim=optim).optimizer == bytes_a_parameter * N


def test_full_fine_tuning_in_fp32_holds_sixteen_bytes_a_parameter() -> None:
    found = states()
    assert (found.parameters, found.gradients, found.optimizer) == (4 * N, 4 * N, 8 * N)


def test_eight_bit_adamw_keeps_embeddings_in_32_bits() -> None:
    wide, narrow = 32128 * 768, N - 32128 * 768
    assert states(optim="adamw_bnb_8bit").optimizer == pytest.approx(8 * wide + 2 * narrow, rel=0.02)


@pytest.mark.parametrize(("optim", "of_codes"), [("adamw_torch_8bit", 2), ("adamw_torch_4bit", 1)])
def test_torchaos_adamw_packs_every_tensor_but_the_small_ones(optim: str, of_codes: int) -> None:
    """torchao/optim/adam.py: below 4,096 values as wide as the parameter; a table of 256 or 16 floats each else."""
    assert states(optim=optim).optimizer == pytest.approx((of_codes + 8 / 256) * N, rel=1e-6)
    setup = TrainingSetup(optim=optim, per_device_train_batch_size=1, max_source_length=16, max_target_length=16)
    (train,) = [phase for phase in predict(setup, T5, constants=sample.CONSTANTS).phases if phase.name == "train"]
    held = sum(term.bytes for term in train.terms if term.name == "optimizer")
    small = sum(8 * 768 for _ in range(62))  # norms
    tables = 220 * 2 * (1024 if of_codes == 2 else 512)
    assert held == pytest.approx((of_codes + 8 / 256) * N + small + tables, rel=0.002)


def test_paged_states_are_on_the_host() -> None:
    assert states(optim="paged_adamw_32bit").paged == 8 * N


def test_pure_half_weights_have_half_states() -> None:
    found = states(weights="bf16")
    assert found.parameters == pytest.approx(2 * N, rel=0.05)
    assert (found.gradients, found.optimizer) == (2 * N, 4 * N)


def test_fp16_loading_keeps_wo_in_fp32() -> None:
    wo = 24 * 768 * 3072
    assert states(weights="fp16").parameters - states(weights="bf16").parameters == 2 * wo


def test_lora_trains_its_adapters_alone() -> None:
    found = states(method="lora", lora_r=16)
    assert found.trainable == adapter_parameters(T5, ("q", "v"), 16) == 1_769_472
    assert found.gradients == 4 * found.trainable
    assert found.parameters == 4 * N


def test_four_bit_leaves_embeddings_head_and_wo_wide() -> None:
    setup = TrainingSetup(method="qlora", load_in_4bit=True, bnb_4bit_use_double_quant=True)
    counts = count(MT5)
    assert counts.quantizable == counts.block_linear - 24 * 768 * 2048
    expected = counts.quantizable / 2 + 4 * (parameter_count(MT5) - counts.quantizable)
    assert states_of(setup, MT5).parameters == pytest.approx(expected, rel=0.01)


def test_without_peft_preparation_the_rest_stays_half() -> None:
    prepared = states(method="qlora", load_in_4bit=True, weights="bf16")
    plain = states(method="qlora", load_in_4bit=True, weights="bf16", prepare_for_kbit=False)
    assert plain.parameters < 0.6 * prepared.parameters


def test_double_quantization_shrinks_the_scales_to_about_a_quarter() -> None:
    single = states(method="qlora", load_in_4bit=True).quantization
    double = states(method="qlora", load_in_4bit=True, bnb_4bit_use_double_quant=True).quantization
    assert double / single == pytest.approx(0.254, abs=0.002)


def test_modules_to_save_are_copied_and_trained_whole() -> None:
    plain, whole = states(method="lora"), states(method="lora", modules_to_save=("lm_head",))
    assert whole.trainable - plain.trainable == 32128 * 768


def test_a_checkpoint_of_adapters_holds_the_embeddings_that_they_wrap() -> None:
    assert states().saved == states().parameters
    alone, tables = states(method="lora"), states(method="lora", lora_target_modules=("q", "shared"))
    assert alone.saved == alone.adapters
    assert tables.saved - tables.adapters == 4 * 32128 * 768  # T5's output layer shares the table
