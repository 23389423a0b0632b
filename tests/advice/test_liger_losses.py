"""Liger's losses in post-training: which release of TRL and liger-kernel has which, as `kb check` reads a config."""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file

MODEL = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d --output_dir out --per_device_train_batch_size 2"
ROWS = "--max_length 512"
GENERATED = "--reward_funcs acc --num_generations 2 --max_completion_length 64"
KINDS = {"dpo": ROWS, "kto": ROWS, "grpo": GENERATED, "rloo": GENERATED, "orpo": ROWS, "sft": ROWS}
NEWEST = {"tiles": True, "frozen_gradient": False, "states_kept": False, "autocast": False}


def checked(folder: Path, kind: str, more: str, *pins: str) -> dict[str, Any]:
    (folder / "train.sh").write_text(f"trl {kind} {MODEL} {KINDS[kind]} {more}\n", "utf-8")
    (folder / "requirements.txt").write_text("\n".join(pins) + "\n", "utf-8")
    return checked_file(folder / "train.sh", "--gpu", "rtx-4090")


@pytest.mark.parametrize(
    ("kind", "option", "pins", "liger"),
    [
        ("dpo", "use_liger_kernel", ("trl==1.8.0", "liger-kernel==0.8.5"), NEWEST),
        ("dpo", "use_liger_kernel", ("trl==1.0.0", "liger-kernel==0.7.0"),
         NEWEST | {"tiles": False, "frozen_gradient": True}),
        ("dpo", "use_liger_loss", ("trl==0.23.1", "liger-kernel==0.8.3"), NEWEST | {"states_kept": True}),
        ("grpo", "use_liger_kernel", ("trl==1.8.0", "liger-kernel==0.8.3"), NEWEST | {"frozen_gradient": True}),
        ("kto", "use_liger_kernel", ("trl==1.8.0", "liger-kernel==0.8.3"), NEWEST),
        ("dpo", "use_liger_kernel", ("trl==0.23.1",), None),  # its kernels alone: the loss is asked for by another name
        ("grpo", "use_liger_kernel", ("trl==1.16.0",), None),  # has a fused head of its own, and takes no other
        ("rloo", "use_liger_kernel", ("trl==1.8.0",), None),  # never had one
        ("orpo", "use_liger_kernel", ("trl==1.8.0",), None),
    ],
)  # fmt: skip
def test_whose_loss_it_is_follows_the_releases(
    tmp_path: Path, kind: str, option: str, pins: tuple[str, ...], liger: dict[str, bool] | None
) -> None:
    file = checked(tmp_path, kind, f"--{option} true", *pins)
    assert file["setup"]["post"]["liger"] == liger
    assert file["prediction"] is not None and not file["setup"]["fused_loss"]
    listed = {each["name"] for each in file["prediction"]["assumed"]}
    assert ("training.use_liger_kernel" in listed) == (option == "use_liger_kernel")


def test_of_an_unknown_release_the_newest_that_takes_the_name_is_assumed(tmp_path: Path) -> None:
    file = checked(tmp_path, "dpo", "--use_liger_loss true")
    assumed = {each["name"]: each["value"] for each in file["prediction"]["assumed"]}
    assert (assumed["trl.release"], assumed["liger_kernel.release"]) == ("0.27", "0.8.5")


@pytest.mark.parametrize(
    ("kind", "more", "release", "said"),
    [
        ("dpo", "--use_liger_kernel true --use_peft", "1.4.0", "not implemented for PEFT models"),
        ("dpo", "--use_liger_kernel true --precompute_ref_log_probs true", "1.8.0", "precomputing reference"),
        ("kto", "--use_liger_loss true --use_peft", "0.23.1", "`use_liger_loss=True` with Peft models"),
    ],
)
def test_what_a_release_refuses_has_a_finding_and_no_verdict(
    tmp_path: Path, kind: str, more: str, release: str, said: str
) -> None:
    file = checked(tmp_path, kind, more, f"trl=={release}")
    assert file["prediction"] is None
    assert "Liger + " in file["note"]
    (finding,) = [each for each in file["findings"] if each["rule"] == "refused-at-start"]
    assert said in finding["message"]


def test_sft_of_the_newest_release_takes_its_own_head_with_liger_too(tmp_path: Path) -> None:
    file = checked(tmp_path, "sft", "--use_liger_kernel true", "trl==1.16.0")
    assert (file["setup"]["post"]["kind"], file["setup"]["fused_loss"]) == ("sft", False)
    assert "training.use_liger_kernel" in {each["name"] for each in file["prediction"]["assumed"]}


@pytest.mark.parametrize(
    ("pins", "release", "skips"),
    [
        (("liger-kernel==0.8.0", "transformers==5.14.0"), [0, 8, 0], False),
        (("liger-kernel==0.8.5", "transformers==5.15.0"), [0, 8, 5], True),
        ((), [0, 8, 5], True),
    ],
)
def test_plain_training_takes_the_kernels_of_the_release(
    tmp_path: Path, pins: tuple[str, ...], release: list[int], skips: bool
) -> None:
    """Of SFT before TRL's own head; a release that nobody names is listed."""
    file = checked(tmp_path, "sft", "--use_liger_kernel true", "trl==1.8.0", *pins)
    assert file["setup"]["fused_loss"]
    assert file["setup"]["liger_kernels"] == {"release": release, "layers": True, "skips": skips}
    listed = {each["name"] for each in file["prediction"]["assumed"]}
    assert ("liger_kernel.release" in listed) == (not pins)


def test_whose_fused_loss_nobody_names_has_no_kernels_in_the_layers(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 512\n"
        "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
        "datasets: [{path: d, type: alpaca}]\noutput_dir: out\n",
        "utf-8",
    )
    file = checked_file(tmp_path / "train.yaml", "--gpu", "rtx-4090")
    assert (file["setup"]["fused_loss"], file["setup"]["liger_kernels"]) == (True, None)
    listed = {each["name"]: each["value"] for each in file["prediction"]["assumed"]}
    assert listed["training.fused_loss"] is True and "liger_kernel.release" not in listed


PUBLISHED = {
    # ms-swift's examples/train (4.6.0), on A100 of 80 GB: its comments say what a GPU took
    "--model Qwen/Qwen2.5-7B --max_length 16384 --attn_impl flash_attn": (4, 42),  # packing/liger_kernel.sh
    "--model Qwen/Qwen2.5-7B --max_length 8192 --attn_impl flash_attn": (4, 42),  # liger/sft.sh
    "--model Qwen/Qwen2.5-32B --max_length 8192 --attn_impl flash_attn": (8, 80),  # full/qwen2_5_32b.sh
}


@pytest.mark.parametrize("asked", PUBLISHED)
def test_a_fused_loss_of_shards_takes_what_was_published_of_it(tmp_path: Path, asked: str) -> None:
    """Under ZeRO-3 the output layer is whole for the kernel, and no logits are: they were 28 GiB of the first."""
    gpus, published = PUBLISHED[asked]
    (tmp_path / "train.sh").write_text(
        f"NPROC_PER_NODE={gpus} swift sft {asked} --train_type full --torch_dtype bfloat16 --dataset a --packing true "
        "--per_device_train_batch_size 1 --deepspeed zero3 --use_liger_kernel true --eval_strategy no\n",
        "utf-8",
    )
    file = checked_file(tmp_path / "train.sh", "--gpu", "a100-80gb")
    taken = file["prediction"]["phases"]["train"]["process_used_bytes"] / 2**30
    assert 0.9 * published < taken < 1.1 * published
