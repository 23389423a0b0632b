"""Count each catalogued model's parameters by building it, and compare with its file.

The model is built on torch's meta device, from the dimensions in ``rules/models/``, so nothing is downloaded and no
memory is used. Needs torch and transformers:

    python bench/count_parameters.py            # every model
    python bench/count_parameters.py mt5-base   # some of them

Exit status 1 where a file says otherwise.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

MODELS = Path(__file__).parents[1] / "rules" / "models"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="ID", help="ids of rules/models; all where none is named")
    wanted = parser.parse_args().models
    paths = [MODELS / f"{name}.yaml" for name in wanted] or sorted(MODELS.glob("*.yaml"))
    if missing := [path.stem for path in paths if not path.exists()]:
        parser.error(f"rules/models has no {', '.join(missing)}")

    wrong = 0
    print(f"{'model':16} {'counted':>15} {'in the file':>15}  buffers  published")
    for path in paths:
        row = yaml.safe_load(path.read_text(encoding="utf-8"))
        counted, buffers = count(row["architecture"])
        filed, *published = row["parameters"]
        wrong += counted != filed["value"]
        mark = " " if counted == filed["value"] else "≠"
        said = ", ".join(f"{claim['value'] / 1e6:,.0f} M ({claim['source']})" for claim in published)
        print(f"{row['id']:16} {counted:15,} {mark} {filed['value']:13,} {buffers:8,}  {said}")
    return 1 if wrong else 0


def count(architecture: dict[str, Any]) -> tuple[int, int]:
    """Parameters, shared ones once, and elements of buffers, of the model with a language-modelling head."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    config = AutoConfig.for_model(**architecture)
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(config)
    model.tie_weights()
    if not architecture["tie_word_embeddings"]:
        # transformers 5 forces the flag to true for T5 and mT5; from_pretrained then leaves a head whose weights differ
        # from the embedding's untied, which a model built from its config cannot show
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return sum(p.numel() for p in model.parameters()), sum(b.numel() for b in model.buffers())


if __name__ == "__main__":
    sys.exit(main())
