"""What the panel says and what the findings say is one thing: no run is out of memory without a finding that says so,
as severe as the prediction is certain.
"""

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from catalog_sample import load_catalog, shallow_catalog
from effort import examples
from kb.advice.check import Checker
from kb.config.reader import ConfigReader
from kb.core.memory_report import OVER
from kb.machine.detect import detect

pytestmark = pytest.mark.long

CATALOG = load_catalog()
SMALLEST = sorted(CATALOG.gpus, key=lambda name: (CATALOG.gpus[name].memory_total, name))[:8]
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
HOSTS = st.sampled_from(["12.7GB", "32GB", "60GB", "250GB"])
TRAINING = {
    "per_device_train_batch_size": st.sampled_from([1, 4, 8, 16, 32, 64, 256]),
    "per_device_eval_batch_size": st.sampled_from([1, 8, 32, 128]),
    "gradient_accumulation_steps": st.sampled_from([1, 2, 8]),
    "gradient_checkpointing": st.booleans(),
    "bf16": st.booleans(),
    "do_train": st.booleans(),
    "do_eval": st.booleans(),
    "eval_strategy": st.sampled_from(['"no"', "steps"]),
    "predict_with_generate": st.booleans(),
    "generation_num_beams": st.sampled_from([1, 4, 12]),
    "generation_max_length": st.sampled_from([20, 128, 512]),
    "eval_accumulation_steps": st.sampled_from([1, 4]),
    "optim": st.sampled_from(["adamw_torch", "adafactor", "adamw_8bit"]),
    "dataloader_num_workers": st.sampled_from([0, 2, 8, 32]),
}


@st.composite
def configs(draw: Any) -> str:
    model = draw(st.sampled_from(sorted(CATALOG.models)))
    lengths = draw(st.sampled_from([(128, 32), (512, 128), (1024, 256)]))
    lines = [f"general: {{model_name: {CATALOG.models[model].name}}}"]
    lines.append(f"tokenizer: {{encoder_max_len: {lengths[0]}, decoder_max_len: {lengths[1]}}}")
    chosen = draw(st.fixed_dictionaries({}, optional=TRAINING))
    if chosen:
        lines.append("training:")
        lines += [
            f"  {key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in chosen.items()
        ]
    if draw(st.booleans()) or not chosen:
        batch, beams = draw(st.sampled_from([1, 16, 128])), draw(st.sampled_from([1, 5]))
        lines.append(f"inference: {{batch_size: {batch}, num_beams: {beams}, generate_max_length: 128}}")
    if draw(st.booleans()):
        lines.append(f"qlora: {{use_qlora: true, r: 16, load_in_4bit: {str(draw(st.booleans())).lower()}}}")
    return "\n".join(lines) + "\n"


@given(text=configs(), gpu=st.sampled_from(sorted(CATALOG.gpus)), host_memory=HOSTS)
@settings(max_examples=examples(1, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(
    text="general: {model_name: EleutherAI/gpt-j-6b}\ntokenizer: {encoder_max_len: 128, decoder_max_len: 32}\n"
    "training:\n  per_device_train_batch_size: 1\n",
    gpu="a10",
    host_memory="12.7GB",
)
def test_a_verdict_has_its_finding(text: str, gpu: str, host_memory: str) -> None:
    has_its_finding(text, checker_for(gpu, host_memory))


@given(text=configs(), gpu=st.sampled_from(SMALLEST), host_memory=HOSTS)
@settings(max_examples=examples(12, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_verdict_of_a_shallow_model_has_its_finding(text: str, gpu: str, host_memory: str) -> None:
    """Every model with two layers, on the smallest GPUs: far more of them in the time of one that is whole."""
    has_its_finding(text, checker_for(gpu, host_memory, shallow=True))


def has_its_finding(text: str, checker: Checker) -> None:
    for unit in READER.read(text, "config.yaml"):
        result = checker.check(unit)
        if result.prediction is None:
            continue
        fit = {finding.rule: finding.severity for finding in result.findings}
        status = result.prediction.verdict.status
        worst = set(fit.values())
        over = {fit[rule] for rule in OVER_RULES if rule in fit}
        assert (status in OVER) is bool(over), (text, status, fit)
        # of several phases one may be surer than the worst
        severe = "warning" if result.if_so or status == "likely_oom" else "error"
        assert status not in OVER or over & {severe, "error"}, (text, status, fit)
        assert status != "tight" or worst & {"error", "warning"} & {fit.get(rule) for rule in GPU_RULES}, (text, fit)
        # what fits may be over the line that the original guide calls dangerous, which is below what a process gets
        assert status != "fits" or not fit.keys() & GPU_RULES - {"over-the-danger-line"}, (text, fit)
        host = result.prediction.host.status
        # where the base alone is over, no number of workers is to blame
        over_host = OVER_HOST & fit.keys()
        assert host != "oom" or {fit[rule] for rule in over_host} & {severe, "error"}, (text, fit)
        assert host != "tight" or over_host or "host-memory-over-80-percent" in fit, (text, fit)


@lru_cache(maxsize=128)
def checker_for(gpu: str, host_memory: str, *, shallow: bool = False) -> Checker:
    known = shallow_catalog() if shallow else CATALOG
    return Checker(known, detect(known.gpus, gpu=gpu, host_memory=host_memory, cpus="16"))


OVER_HOST = {
    "host-memory-over-limit",
    "host-floor-over-limit",
    "host-base-over-limit",
    "offloaded-inputs-over-host-memory",
}
OVER_RULES = {
    "training-peak-exceeds-gpu",
    "evaluation-peak-exceeds-gpu",
    "generation-peak-exceeds-gpu",
    "inference-peak-exceeds-gpu",
}
GPU_RULES = {
    "training-peak-exceeds-gpu",
    "training-peak-near-gpu",
    "evaluation-peak-exceeds-gpu",
    "generation-peak-exceeds-gpu",
    "evaluation-peak-exceeds-training-peak",
    "inference-peak-exceeds-gpu",
    "over-the-danger-line",
}
