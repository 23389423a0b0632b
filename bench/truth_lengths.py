"""Published runs on a real dataset: how long its samples are, and what the program that ran them sets by itself."""

import re
from collections.abc import Mapping
from math import exp, log
from statistics import NormalDist
from typing import Any

from kb.core.setup import LENGTH_SHARES, DataLengths, TrainingSetup

NOTED = re.compile(r"tokens ([\d.,]+) ?± ?([\d.,]+), min ([\d,]+), max ([\d,]+)")
# ms-swift as its benchmark ran it (github.com/modelscope/ms-swift, commit 97e4d198b of 2024-01-02, with PEFT 0.7 and
# transformers below 4.37): the names of a default's modules, of types whose q, k and v kb follows as three layers.
MS_SWIFT_TARGETS = ("q_proj", "k_proj", "v_proj")  # swift/llm/utils/model.py, LoRATM: c_attn, W_pack


def lengths_of(notes: str, most: int) -> DataLengths | None:
    """What the samples' mean, spread and ends say of their lengths; None where notes do not have all four.

    Log-normal, between the ends. Of samples that are longer than ``most`` there are none: a program that cuts them
    would have nearly every batch at the maximum, and ms-swift leaves them out.
    """
    found = NOTED.search(notes)
    if found is None:
        return None
    mean, spread, least, longest = (float(each.replace(",", "")) for each in found.groups())
    variance = log(1 + (spread / mean) ** 2)
    normal = NormalDist(log(mean) - variance / 2, variance**0.5)
    low, high = (normal.cdf(log(end)) for end in (least, min(most, longest)))
    shares = (low + share * (high - low) for share in LENGTH_SHARES.values())
    return DataLengths(tuple(round(exp(normal.inv_cdf(share))) for share in shares))


def is_of_ms_swift(row: Mapping[str, Any]) -> bool:
    return str(row.get("source")).startswith("modelscope/ms-swift")


def with_settings_of_ms_swift(setup: TrainingSetup, row: Mapping[str, Any]) -> TrainingSetup:
    """What ``swift sft`` sets where its command says nothing; files below ``swift/llm``.

    ``utils/argument.py``: bf16 of the Trainer on bf16 weights, AdamW of torch, adapters with a dropout of 0.05 on q, k
    and v, 4 bits quantized twice. PEFT 0.7 makes adapters of the type of the weights below (``update_layer``).
    ``tuner.py`` does not prepare 4-bit models. ``get_model_tokenizer_qwen`` loads without a type (``utils/model.py``),
    and what is not packed is then fp16: transformers' type for bitsandbytes.
    """
    packed = setup.method == "qlora"
    every = row.get("lora_targets") == "all-linear"
    return setup._replace(
        bf16=True,
        weights="fp16" if packed and str(row["model"]).startswith("qwen") else "bf16",
        optim="adamw_torch",
        lora_dropout=0.05,
        lora_target_modules=None if setup.method == "full" else ("all-linear",) if every else MS_SWIFT_TARGETS,
        trained_type="bf16",
        prepare_for_kbit=False,
        bnb_4bit_use_double_quant=packed,
    )
