"""Count each catalogued model's parameters by building it, and compare with its file.

The model is built on torch's meta device, from the dimensions in ``rules/models/``, so nothing is downloaded and no
memory is used: decoders and encoder-decoders with the head of language modelling, encoders with a classifier of
sequences. Needs torch and transformers:

    python bench/count_parameters.py            # every model
    python bench/count_parameters.py mt5-base   # some of them

Exit status 1 where a file says otherwise.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

SEEING = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "llava", "llava_next", "mistral3", "paligemma", "gemma3",
)  # fmt: skip
MODELS = Path(__file__).parents[1] / "rules" / "models"
ENCODER_DECODERS = ("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "led", "m2m_100")
ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "deberta-v2",
    "distilbert",
    "albert",
    "longformer",
    "big_bird",
    "xlnet",
    "mpnet",
    "modernbert",
)
# EXAONE 3's code is on the hub, not in transformers; its layers have the matrices of a Llama, under other names
EXAONE_AS_LLAMA = {"num_layers": "num_hidden_layers", "activation_function": "hidden_act"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="ID", help="ids of rules/models; all where none is named")
    wanted = parser.parse_args().models
    paths = [MODELS / f"{name}.yaml" for name in wanted] or sorted(MODELS.glob("*.yaml"))
    if missing := [path.stem for path in paths if not path.exists()]:
        parser.error(f"rules/models has no {', '.join(missing)}")

    wrong = 0
    print(f"{'model':28} {'counted':>15} {'in the file':>15}  buffers  published")
    for path in paths:
        row = yaml.safe_load(path.read_text(encoding="utf-8"))
        counted, buffers = count(row["architecture"])
        filed, *published = row["parameters"]
        wrong += counted != filed["value"]
        mark = " " if counted == filed["value"] else "≠"
        said = ", ".join(f"{claim['value'] / 1e6:,.0f} M ({claim['source']})" for claim in published)
        print(f"{row['id']:28} {counted:15,} {mark} {filed['value']:13,} {buffers:8,}  {said}", flush=True)
    return 1 if wrong else 0


def count(architecture: dict[str, Any]) -> tuple[int, int]:
    """Parameters, shared ones once, and elements of buffers, of the model that is trained."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSeq2SeqLM,
        AutoModelForSequenceClassification,
        AutoModelForSpeechSeq2Seq,
    )
    from transformers.initialization import no_init_weights

    kind = architecture["model_type"]
    model_class = AutoModelForCausalLM
    if kind in ENCODER_DECODERS:
        model_class = AutoModelForSeq2SeqLM
    elif kind == "whisper":
        model_class = AutoModelForSpeechSeq2Seq
    elif kind in SEEING:
        model_class = AutoModelForImageTextToText
    elif kind in ENCODERS:
        model_class = AutoModelForSequenceClassification
    if kind == "exaone":
        architecture = {EXAONE_AS_LLAMA.get(name, name): value for name, value in architecture.items()}
        architecture["model_type"] = "llama"
    config = AutoConfig.for_model(**architecture)
    with torch.device("meta"), no_init_weights():
        model = model_class.from_config(config)
    model.tie_weights()
    if architecture.get("tie_word_embeddings") is False and kind in ENCODER_DECODERS:
        # transformers 5 forces the flag to true for T5 and mT5; from_pretrained then leaves a head whose weights differ
        # from the embedding's untied, which a model built from its config cannot show
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return sum(p.numel() for p in model.parameters()), sum(b.numel() for b in model.buffers())


if __name__ == "__main__":
    sys.exit(main())
