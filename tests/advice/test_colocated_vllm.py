"""vLLM inside a training process (GRPO, RLOO): its share of the GPU, its own weights, and whether it starts."""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file
from effort import few

GRPO = (
    "model_name_or_path: Qwen/Qwen2.5-3B\ndataset_name: trl-lib/tldr\nreward_funcs: [accuracy_reward]\nuse_peft: true\n"
    "dtype: bfloat16\nbf16: true\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nnum_generations: 8\n"
    "max_completion_length: 512\nmax_length: 1024\nuse_vllm: true\nvllm_mode: colocate\noutput_dir: out\n"
)
GIB = 2**30


def checked(folder: Path, config: str, *options: str, gpu: str = "rtx-4090") -> dict[str, Any]:
    """What `kb check` says of one config, on a card of 24 GB unless another is named."""
    (folder / "grpo.yaml").write_text(config, "utf-8")
    return checked_file(folder / "grpo.yaml", "--gpu", gpu, "--gpus", "1", *options)


def about_vllm(file: dict[str, Any]) -> list[str]:
    return [each["rule"] for each in file["findings"] if each["rule"].startswith("colocated-vllm")]


def terms(file: dict[str, Any], phase: str) -> dict[str, int]:
    return {term["name"]: term["bytes"] for term in file["prediction"]["phases"][phase]["terms"]}


@pytest.mark.parametrize(
    ("release", "said", "expected"),
    few(
        [
            ("1.16", "vllm_gpu_memory_utilization: 0.3\n", ["colocated-vllm-length-over-cache"]),  # 32,768 of the model
            ("1.16", "vllm_gpu_memory_utilization: 0.3\nvllm_max_model_length: 2048\n", []),
            ("0.19", "vllm_gpu_memory_utilization: 0.3\nmax_prompt_length: 512\n", []),  # 512 + 512 tokens
            ("1.16", "vllm_gpu_memory_utilization: 0.2\n", ["colocated-vllm-without-cache"]),
            ("1.16", "vllm_gpu_memory_utilization: 0.2\nload_in_4bit: true\nvllm_max_model_length: 2048\n", []),
            ("0.25", "vllm_gpu_memory_utilization: 0.2\nload_in_4bit: true\n", ["colocated-vllm-without-cache"]),
            (
                "1.16",
                "vllm_gpu_memory_utilization: 0.2\nvllm_tensor_parallel_size: 2\nvllm_max_model_length: 2048\n",
                [],
            ),
        ],
        3,
    ),
    ids=["model's length", "shorter", "prompt and answer", "no cache", "packed", "not packed then", "split"],
)
def test_whether_it_starts_follows_the_release_and_the_share(
    tmp_path: Path, release: str, said: str, expected: list[str]
) -> None:
    assert about_vllm(checked(tmp_path, GRPO + said, "--trl", release)) == expected


def test_of_an_unknown_release_the_finding_rests_on_the_newest(tmp_path: Path) -> None:
    file = checked(tmp_path, GRPO + "vllm_gpu_memory_utilization: 0.3\n")
    (finding,) = [each for each in file["findings"] if each["rule"] == "colocated-vllm-length-over-cache"]
    assert (finding["severity"], finding["certainty"]) == ("warning", "assumed")
    assert finding["message"].startswith("If TRL is 1.15: ")


def test_a_model_whose_length_is_not_known_is_not_judged_by_its_length(tmp_path: Path) -> None:
    instruct = GRPO.replace("Qwen2.5-3B", "Qwen2.5-3B-Instruct")  # of one size; its positions may be others
    assert about_vllm(checked(tmp_path, instruct + "vllm_gpu_memory_utilization: 0.3\n", "--trl", "1.16")) == []
    too_little = checked(tmp_path, instruct + "vllm_gpu_memory_utilization: 0.2\n", "--trl", "1.16")
    assert about_vllm(too_little) == ["colocated-vllm-without-cache"]


def test_weights_and_the_rest_are_the_share_and_sleep_frees_both(tmp_path: Path) -> None:
    awake = checked(tmp_path, GRPO + "vllm_gpu_memory_utilization: 0.4\n", "--trl", "1.16", gpu="a100-40gb")
    for phase in ("train", "generate"):
        found = terms(awake, phase)
        assert found["vllm_weights"] == pytest.approx(5.75 * GIB, rel=0.01)  # 3.09 thousand million weights in bf16
        assert found["vllm_weights"] + found["vllm"] == pytest.approx(0.4 * 40 * GIB, rel=1e-6)
    asleep = checked(
        tmp_path,
        GRPO + "vllm_gpu_memory_utilization: 0.4\nvllm_enable_sleep_mode: true\n",
        "--trl",
        "1.16",
        gpu="a100-40gb",
    )
    assert not {"vllm", "vllm_weights"} & set(terms(asleep, "train"))
    assert terms(asleep, "generate") == terms(awake, "generate")


def test_a_server_elsewhere_takes_nothing_here(tmp_path: Path) -> None:
    file = checked(tmp_path, GRPO.replace("colocate", "server"), "--trl", "1.16")
    assert about_vllm(file) == []
    assert "vllm" not in terms(file, "train")
