"""Run by the rivals' own environment: what each of them says of a row. Rows come as JSON lines, answers go back so.

accelerate's estimate-memory and DeepSpeed's estimator count model states and nothing of a batch, and know no adapters.
fitcheck-llm knows decoder-only models. A rival that has nothing to say of a row says nothing.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

MIB = 2**20
Answer = dict[str, int]
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FITCHECK_GPUS = {"t4": "t4", "v100-16gb": "v100-16", "rtx-3090": "3090", "a100-40gb": "a100-40", "l40s": "l40s"}


def fitcheck(row: Mapping[str, Any]) -> Answer | None:
    from fitcheck import ModelConfig, TrainingConfig, estimate, get_gpu
    from fitcheck.config_parser import _count_params, _parse_fields, _reject_unsupported

    if row["task"] != "train" or not row["decoder_only"]:
        return None
    raw = row["config"]
    _reject_unsupported(raw, row["model"])
    fields = _parse_fields(raw)
    model = ModelConfig(name=row["model"], num_params=_count_params(fields), **fields.__dict__)
    names = {"adamw_bnb_8bit": "adamw8bit", "sgd": "sgd"}
    training = TrainingConfig(
        precision=row["precision"],
        quantization="nf4" if row["method"] == "qlora" else "none",
        double_quant=row["double_quant"],
        optimizer=names.get(row["optimizer"], "adamw"),
        batch_size=row["batch"],
        seq_len=row["source"],
        lora_rank=None if row["method"] == "full" else row["rank"],
        **({"lora_targets": row["targets"]} if row["targets"] else {}),
        grad_checkpoint=row["checkpointing"],
        flash_attn=row["attention"] != "eager",
    )
    report = estimate(model, training, get_gpu(FITCHECK_GPUS.get(row["gpu"], "t4")))
    tensors = report.total_mib - report.overhead_mib
    return {"allocated": round(tensors * MIB), "process": round(report.total_mib * MIB)}


@cache
def _sizes(config: str) -> int:
    """Bytes of the model in fp32, as estimate-memory counts them."""
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    given = json.loads(config)
    made = AutoConfig.for_model(given.pop("model_type"), **given)
    with init_empty_weights():
        model = AutoModel.from_config(made, dtype=torch.float32)
    total, _ = calculate_maximum_sizes(model)
    return int(total)


def accelerate(row: Mapping[str, Any]) -> Answer | None:
    from accelerate.commands.estimate import estimate_training_usage

    if row["method"] != "full":
        return None
    total = _sizes(json.dumps(row["config"], sort_keys=True))
    if row["task"] == "train":
        usage = estimate_training_usage(total, PRECISIONS[row["precision"]])
        return {"allocated": round(max(usage.values()))}
    return {"allocated": total if row["precision"] == "fp32" or row["autocast"] else total // 2}


def deepspeed(row: Mapping[str, Any]) -> Answer | None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    if row["method"] != "full" or row["task"] != "train":
        return None
    _, gpu = estimate_zero2_model_states_mem_needs(row["parameters"], 1, 1, cpu_offload=False)
    return {"allocated": int(gpu)}


RIVALS: dict[str, Callable[[Mapping[str, Any]], Answer | None]] = {
    "fitcheck-llm": fitcheck,
    "accelerate": accelerate,
    "DeepSpeed": deepspeed,
}


def main() -> int:
    failed: dict[str, str] = {}
    for line in sys.stdin:
        row = json.loads(line)
        answers: dict[str, Answer] = {}
        for name, rival in RIVALS.items():
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed greets
                    answer = rival(row)
            except Exception as error:
                failed.setdefault(name, f"{type(error).__name__}: {error}"[:200])
                continue
            if answer:
                answers[name] = answer
        print(json.dumps({"id": row["id"], "answers": answers}))
    print(json.dumps({"failed": failed, "versions": _versions()}))
    return 0


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("fitcheck-llm", "accelerate", "deepspeed", "torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
