"""Properties of predictions over random setups and dimensions: sums, order, monotony, bounds."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memory_sample as sample
from effort import EXHAUSTIVE, examples
from kb.core.memory_report import WITHOUT_LOW_END
from kb.core.setup import TrainingSetup
from kb.core.units import GIB, tenths
from kb.memory import UnsupportedArchitectureError, predict
from kb.memory.search import largest_within

pytestmark = pytest.mark.long

setups = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["full", "lora", "qlora"]),
        "bf16": st.booleans(),
        "weights": st.sampled_from(["fp32", "bf16", "fp16"]),
        "attn_implementation": st.sampled_from(["eager", "sdpa", "flash"]),
        "padded": st.booleans(),
        "per_device_train_batch_size": st.integers(1, 256),
        "per_device_eval_batch_size": st.integers(1, 256),
        "gradient_accumulation_steps": st.integers(1, 8),
        "max_source_length": st.integers(1, 4096),
        "max_target_length": st.integers(1, 1024),
        "optim": st.sampled_from(
            ["adamw_torch_fused", "adamw_torch", "adafactor", "adamw_8bit", "sgd", "paged_adamw_8bit"]
        ),
        "gradient_checkpointing": st.booleans(),
        "label_smoothing_factor": st.sampled_from([0.0, 0.1]),
        "do_eval": st.booleans(),
        "do_predict": st.booleans(),
        "predict_with_generate": st.booleans(),
        "eval_samples": st.none() | st.integers(1, 10_000),
        "eval_accumulation_steps": st.none() | st.integers(1, 100),
        "generation_num_beams": st.integers(1, 12),
        "generation_max_length": st.integers(1, 512),
        "load_in_4bit": st.booleans(),
        "world_size": st.integers(1, 8),
        "zero_stage": st.integers(0, 3),
        "offload_optimizer": st.booleans(),
    }
).map(lambda given: TrainingSetup(**given))
CONFIGS = (sample.T5_BASE, sample.MT5_BASE, sample.KOBART)
WHOLE = [sample.architecture(config) for config in CONFIGS]
# Of two layers for each stack: of an example in four the whole depth is looked at, with --exhaustive of each.
SHALLOW = [sample.architecture({**c, **{name: 2 for name in c if name.endswith("layers")}}) for c in CONFIGS]
architectures = st.sampled_from(WHOLE if EXHAUSTIVE else [*SHALLOW * 3, *WHOLE])


def predicted(setup, architecture, **where):
    try:
        return predict(setup, architecture, constants=sample.CONSTANTS, **where)
    except UnsupportedArchitectureError as error:
        assume("unused parameters" not in str(error))  # DDP refuses these as well
        raise


@given(setups, architectures)
@settings(max_examples=examples(5, 100), deadline=None)
def test_ledgers_add_up_and_bands_are_ordered(setup, architecture):
    report = predicted(setup, architecture, gpu=sample.RTX_3090)
    for phase in report.phases:
        assert sum(term.bytes for term in phase.terms) == phase.peak_allocated_bytes >= 0
        assert all(isinstance(term.bytes, int) and term.bytes > 0 for term in phase.terms)
        assert phase.low_bytes <= phase.process_used_bytes <= phase.high_bytes
    assert 0 < report.host.low_bytes <= report.host.peak_bytes
    highest = max(phase.low_bytes for phase in report.phases)
    # in tenths of a GiB, as reports show both
    too_much = highest * 10 // GIB > tenths(sample.RTX_3090.memory_total)
    out_of_memory = report.verdict.status == "oom"
    if not WITHOUT_LOW_END & {each.reason for each in report.assumed}:  # else it is only likely
        assert out_of_memory >= too_much
    # tensors that would fit may still find no segment that holds them
    cannot_reserve = any(phase.process_used_bytes > sample.RTX_3090.memory_total for phase in report.phases)
    assert too_much or cannot_reserve or not out_of_memory


@given(
    setups, architectures, st.sampled_from(["per_device_train_batch_size", "max_source_length", "max_target_length"])
)
@settings(max_examples=examples(4, 70), deadline=None)
def test_a_larger_batch_or_length_never_needs_less(setup, architecture, field):
    def train(s):
        return predicted(s, architecture).phase("train").peak_allocated_bytes

    # blocks that are not split round either way: kilobytes where the whole is hundreds of megabytes
    assert train(setup._replace(**{field: 2 * getattr(setup, field)})) >= train(setup) * (1 - 2e-4)


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=40),
    st.integers(0, 2 * 10**7),
    st.integers(0, 3),
)
def test_the_search_finds_what_a_walk_would(steps: list[int], limit: int, lowest: int) -> None:
    """For any sizes that never fall, in any number of straight pieces."""
    sizes = [sum(steps[: number + 1]) for number in range(len(steps))]
    highest = lowest + len(sizes) - 1
    asked: list[int] = []

    def used(number: int) -> int:
        asked.append(number)
        return sizes[number - lowest]

    walked = max(
        (number for number in range(lowest, highest + 1) if sizes[number - lowest] <= limit), default=lowest - 1
    )
    assert largest_within(used, limit, lowest, highest) == walked
    assert len(asked) <= 2 * len(sizes).bit_length() + 4
