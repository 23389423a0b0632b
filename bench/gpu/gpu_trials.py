"""What bench/gpu runs: rows that the memory engine is tested against (tests/data/engine_traces.json), each of whose
figures is a simulation's, and published models of full depth with settings drawn like those of the traces."""

import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine_grid
import grid
import yaml

from kb.core.setup import TrainingSetup
from kb.knowledge import load_catalog, load_guide
from kb.memory import architecture_from_config

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "engine_traces.json"
# rules/models, of full depth: what readers of the guide train
PUBLISHED = {
    "t5": ("t5-small", "t5-base", "mt5-small", "mt5-base", "pko-t5-base"),
    "bart": ("kobart", "bart-large"),
    "decoder": ("gpt2", "kogpt2", "pythia-410m", "smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b"),
    "encoder": ("klue-bert-base", "klue-roberta-base", "kcelectra-base", "deberta-v3-base", "roberta-large"),
}  # fmt: skip
PUBLISHED_ROWS = 16  # of each
UNMEASURED_ROWS, UNMEASURED_MOST = 6, 1_300_000_000  # of each model that nothing is measured of; parameters
LONG_GENERATION = (
    "t5-base", "flan-t5-base", "mt5-base", "bart-base", "kobart", "pegasus-large", "gpt2", "gpt2-medium", "pythia-410m",
    "bloom-560m", "opt-350m", "smollm2-135m", "smollm2-360m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-3-270m",
    "gemma-3-1b", "llama-3.2-1b", "exaone-4.0-1.2b", "polyglot-ko-1.3b",
)  # fmt: skip
LONG_GENERATION_ROWS = 4  # of each
LARGE_MOST, LARGE_ROWS = 15_000_000_000, 3  # parameters; of each model
FULL_MOST = 3_500_000_000  # parameters that are all trained on one card, in half, by an optimizer of 8 bits
PICTURES = {"qwen2_vl": (26, 36), "qwen2_5_vl": (26, 36), "qwen3_vl": (26, 36), "llava": (24, 24),
            "paligemma": (16, 16), "gemma3": (64, 64), "llava_next": (500, 400)}  # fmt: skip
EVALUATED = 3  # batches, where a row says no number of samples: logits of all of them are kept
# For the path without a GPU: the same code on a model that a CPU steps in a second.
TINY: dict[str, dict[str, Any]] = {
    "t5-tiny": {
        "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 4, "vocab_size": 128, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    "qwen2-tiny": {
        "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": True,
        "max_position_embeddings": 256,
    },
}  # fmt: skip
TINY_SETUP = {"per_device_train_batch_size": 1, "max_source_length": 16, "max_target_length": 8, "bf16": True}


class Trial(NamedTuple):
    """One process's work: settings of a TrainingSetup that are not its defaults, and the phases of one run of it.

    ``lengths`` are those of the batches, one for each pass, where they vary; ``expandable``: with expandable segments.
    ``limit``: the bytes that torch may reserve, where it is held to fewer than there are.
    """

    model: str
    config: Mapping[str, Any]
    setup: Mapping[str, Any]
    phases: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    expandable: bool = False
    limit: int = 0

    @property
    def id(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.setup.items())
        return " ".join(
            filter(
                None,
                (
                    self.model,
                    "+".join(self.phases),
                    settings,
                    str(list(self.lengths)),
                    "expandable" * self.expandable,
                    f"limit={self.limit}" if self.limit else "",
                ),
            )
        )


def trials(*, tiny: bool = False) -> Iterator[Trial]:
    """Every trial there is, each once."""
    if tiny:
        for model, config in TINY.items():
            for phases in (("train",), ("generate",)):
                made = {"do_train": False, "do_predict": True, "inference_max_length": 4, "inference_batch_size": 1}
                yield Trial(model, config, TINY_SETUP | (made if phases == ("generate",) else {}), phases)
        return
    yield from _traced()
    yield from _published()


def trials_from(path: Path) -> Iterator[Trial]:
    """Those of a file, one to a line."""
    for line in path.read_text("utf-8").splitlines():
        yield Trial(**json.loads(line))


def _traced() -> Iterator[Trial]:
    document = json.loads(TRACES.read_text("utf-8"))
    for row in document["rows"]:
        if "images" in row["setup"]:  # no pictures are made here
            continue
        config = document["models"][row["model"]]
        setup = engine_grid.setup_of(row, document["targets"][row["model"]])
        yield from _runs(thin_name(row["model"]), config, setup, tuple(row.get("lengths", ())))


def thin_name(model: str) -> str:
    """What a model of bench/engine_models.py is called here: it has a published one's dimensions and few layers."""
    return f"{model.replace('_', '-')}-few-layers"


def unmeasured() -> Iterator[Trial]:
    """Of text models of full depth whose name no file of rules/measurements has, one for each set of dimensions: what
    the memory model says of these was fitted on none of their rows."""
    catalog = load_catalog()
    measured = {row.get("model") for each in load_guide()["measurements"].values() for row in each["rows"]}
    seen = [catalog.models[name].architecture for name in sorted(measured & catalog.models.keys())]
    for name, model in sorted(catalog.models.items()):
        known = model.architecture
        if known in seen or name in measured or known.vision or known.hears:
            continue
        if model.parameters > UNMEASURED_MOST:
            continue
        seen.append(known)
        both = known.encoder_layers and known.decoder_layers
        yield from _of_published(name, "t5" if both else "decoder", UNMEASURED_ROWS)


def long_generation() -> Iterator[Trial]:
    """Runs that only generate, as long as users let them: hundreds of new tokens, so that what is kept for each token
    (KV cache) is a large part of the whole."""
    for name in LONG_GENERATION:
        draw = random.Random(f"{name} generates")
        config = yaml.safe_load((ROOT / "rules" / "models" / f"{name}.yaml").read_text("utf-8"))["architecture"]
        most = architecture_from_config(config).max_positions or 2048
        for _ in range(LONG_GENERATION_ROWS):
            length = draw.choice((100, 256, 400))
            yield Trial(
                name,
                config,
                {
                    "do_train": False,
                    "do_predict": True,
                    "weights": draw.choice(("fp32", "bf16", "fp16")),
                    "max_source_length": draw.choice([each for each in (64, 300, 900) if each + length <= most]),
                    "inference_batch_size": draw.choice((1, 8, 32)),
                    "inference_num_beams": draw.choice((1, 1, 4)),
                    "inference_max_length": length,
                    "attn_implementation": draw.choice(("sdpa", "eager")),
                },
                ("generate",),
            )


def large() -> Iterator[Trial]:
    """Models that users of cards of 16 to 48 GB train with adapters, of full depth, and models that see or hear; none
    has a row in rules/measurements, and what the memory model says was fitted on no row of theirs."""
    catalog = load_catalog()
    measured = {row.get("model") for each in load_guide()["measurements"].values() for row in each["rows"]}
    seen = [catalog.models[name].architecture for name in sorted(measured & catalog.models.keys())]
    for name, model in sorted(catalog.models.items()):
        known = model.architecture
        small = model.parameters <= UNMEASURED_MOST and not known.vision and not known.hears
        if known in seen or name in measured or small or model.parameters > LARGE_MOST:
            continue
        seen.append(known)
        config = yaml.safe_load((ROOT / "rules" / "models" / f"{name}.yaml").read_text("utf-8"))["architecture"]
        draw = random.Random(f"{name} large")
        for number in range(LARGE_ROWS):
            setup = _large_setup(draw, config, full=model.parameters <= FULL_MOST and number % 3 == 2)
            yield Trial(name, config, setup, ("train", "evaluate") if setup.get("do_eval") else ("train",))


def _large_setup(draw: random.Random, config: Mapping[str, Any], *, full: bool) -> dict[str, Any]:
    """As such runs are set up: bf16, mostly with checkpointing, adapters, half or 4 bits of weights."""
    model_type, known = config["model_type"], architecture_from_config(config)
    both = bool(known.encoder_layers and known.decoder_layers)
    most = known.max_positions or 4096
    lengths = [448] if known.hears else [each for each in (512, 1024, 2048, 4096) if each <= most] or [most]
    length = max(draw.choice(lengths), 1024 if known.vision else 0, 3072 if model_type == "llava_next" else 0)
    setup: dict[str, Any] = {
        "bf16": True,
        "per_device_train_batch_size": draw.choice([each for each in (1, 2, 4, 8) if each * length <= 8192]),
        "max_source_length": length,
        "attn_implementation": draw.choice(("sdpa", "sdpa", "sdpa", "eager")),
        "gradient_checkpointing": draw.random() < 0.7,
        "gradient_accumulation_steps": draw.choice((1, 4)),
        "padded": draw.random() < 0.5,
    }
    if full:
        setup |= {"weights": "bf16", "optim": draw.choice(("adamw_bnb_8bit", "paged_adamw_8bit", "adafactor"))}
    else:
        setup |= draw.choice(({"method": "lora", "weights": "bf16"}, {"method": "qlora", "load_in_4bit": True}))
        setup["optim"] = draw.choice(("adamw_torch", "adamw_torch_fused", "paged_adamw_8bit"))
        setup |= {"lora_r": draw.choice((8, 16, 64)), "lora_dropout": draw.choice((0.0, 0.05))}
        narrow = list(engine_grid.TARGETS.get(model_type, ("q_proj", "v_proj")))
        setup["lora_target_modules"] = draw.choice((["all-linear"], narrow))
    if both:
        setup["max_target_length"] = draw.choice((64, 128))
    if known.vision:
        setup["images"] = [1, *PICTURES[model_type]]
    if draw.random() < 0.3:
        setup |= {"do_eval": True, "prediction_loss_only": True, "per_device_eval_batch_size": draw.choice((1, 2, 4)),
                  "eval_samples": 12}  # fmt: skip
    return setup


def _published() -> Iterator[Trial]:
    for family, names in PUBLISHED.items():
        for name in names:
            yield from _of_published(name, family, PUBLISHED_ROWS)


def _of_published(name: str, family: str, rows: int) -> Iterator[Trial]:
    config = yaml.safe_load((ROOT / "rules" / "models" / f"{name}.yaml").read_text("utf-8"))["architecture"]
    targets = engine_grid.TARGETS.get(config["model_type"], ("q_proj", "v_proj"))
    for setup in grid.setups_of(name, family, rows, config):
        adapted = setup.get("method", "full") != "full"
        yield from _runs(name, config, ({"lora_target_modules": list(targets)} if adapted else {}) | setup)


def _runs(
    model: str, config: Mapping[str, Any], setup: Mapping[str, Any], lengths: tuple[int, ...] = ()
) -> Iterator[Trial]:
    """The processes of one row: training with the evaluation after it, and inference of its own."""
    whole = TrainingSetup()._asdict() | dict(setup)
    phases = ["train"] if whole["do_train"] else []
    if whole["do_eval"]:
        phases.append("generate" if whole["predict_with_generate"] else "evaluate")
    own = {name: value for name, value in setup.items() if not name.startswith(("inference_", "do_predict"))}
    if whole["do_eval"] and not (whole["predict_with_generate"] or whole["prediction_loss_only"]):
        own["eval_samples"] = whole["eval_samples"] or EVALUATED * whole["per_device_eval_batch_size"]
    if phases:
        yield Trial(model, config, own, tuple(phases), lengths)
        if lengths:
            yield Trial(model, config, own, tuple(phases), lengths, expandable=True)
    if whole["do_predict"]:
        left = {name: value for name, value in setup.items() if name not in ("do_train", "do_eval")}
        yield Trial(model, config, left | {"do_train": False}, ("generate",))


def shuffled(wanted: list[Trial], seed: int) -> list[Trial]:
    """In a fixed order in which any beginning holds the models evenly."""
    draw = random.Random(seed)
    by_model: dict[str, list[Trial]] = {}
    for trial in draw.sample(wanted, len(wanted)):
        by_model.setdefault(trial.model, []).append(trial)
    names = draw.sample(sorted(by_model), len(by_model))
    turns = max(map(len, by_model.values()), default=0)
    return [by_model[name][turn] for turn in range(turns) for name in names if turn < len(by_model[name])]
