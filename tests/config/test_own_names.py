"""Names that programs of their own give to a setting: read where the format has none for it, and said to be guessed."""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file
from config_sample import DIALECTS, ROOT, load
from kb.knowledge.compile_checks import with_own_names

FLAT = "model_name_or_path: google-t5/t5-base\nlearning_rate: 1.0e-4\ndo_train: true\noutput_dir: out\n"
GROUPED = "model:\n  name: google-t5/t5-base\n{model}training:\n  do_train: true\n  bf16: true\n{training}"
VOCABULARY = load(ROOT / "rules" / "vocabulary.yaml")


def checked(folder: Path, config: str) -> dict[str, Any]:
    (folder / "run.yaml").write_text(config, "utf-8")
    return checked_file(folder / "run.yaml", "--gpu", "rtx-3090", "--gpus", "1", "--notes")


def settings(file: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = file["setup"]
    return found


@pytest.mark.parametrize("name", ["batch_size", "train_batch_size", "micro_batch_size"])
def test_a_batch_of_its_own_name_is_no_library_default(tmp_path: Path, name: str) -> None:
    file = checked(tmp_path, GROUPED.format(model="", training=f"  {name}: 64\n"))
    assert settings(file)["per_device_train_batch_size"] == 64
    (finding,) = [each for each in file["findings"] if each["rule"] == "training-peak-exceeds-gpu"]
    assert (finding["severity"], finding["certainty"]) == ("warning", "assumed")
    assert finding["message"].startswith(f"If {name} is the batch of one device")


def test_lengths_steps_and_epochs_of_their_own_names_are_read(tmp_path: Path) -> None:
    config = GROUPED.format(
        model="  max_length: 384\n  max_target_len: 96\n",
        training="  batch_size: 4\n  grad_accum_steps: 8\n  epochs: 7\n  val_batch_size: 2\n",
    )
    setup = settings(checked(tmp_path, config))
    assert setup["max_source_length"] == 384
    assert setup["max_target_length"] == 96
    assert setup["gradient_accumulation_steps"] == 8
    assert setup["per_device_eval_batch_size"] == 2


def test_precision_optimizer_and_adapter_of_their_own_names_are_read(tmp_path: Path) -> None:
    config = GROUPED.replace("  bf16: true\n", "").format(
        model="  load_in_4bit: true\n  use_lora: true\n",
        training="  batch_size: 4\n  mixed_precision: bf16\n  optimizer: AdamW\n  lora_r: 32\n  num_workers: 6\n",
    )
    setup = settings(checked(tmp_path, config))
    assert (setup["method"], setup["lora_r"], setup["bf16"]) == ("qlora", 32, True)
    assert setup["optim"] == "adamw_torch"
    assert setup["dataloader_num_workers"] == 6


@pytest.mark.parametrize("rank", ["r: 6", "lora_r: 6", "rank: 6", "lora_rank: 6"])
def test_adapters_may_stand_in_a_group_of_their_librarys_name(tmp_path: Path, rank: str) -> None:
    config = GROUPED.format(model="", training="  batch_size: 4\n")
    setup = settings(checked(tmp_path, f"{config}peft:\n  {rank}\n  target_modules: [q_proj]\n"))
    assert (setup["lora_r"], setup["lora_target_modules"]) == (6, ["q_proj"])


@pytest.mark.parametrize("group", ["lora", "qlora", "peft"])
@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("true", ""), ("qlora", ""), ('"LoRA"', ""), ("{enable: true}", ""), ("{type: lora}", ""),
        ("{config: {r: 8}}", ""), ("{lora_alpha: 16}", ""), ("{enabled: true, method: dora, r: 4}", ".method"),
        ("{r: 8, config: {bias: all}}", ".config"),
        ("{enable: false, r: 8}", ".enable"),
    ],
)  # fmt: skip
def test_adapters_that_are_not_understood_are_no_full_training_and_no_lora(
    tmp_path: Path, group: str, said: str, named: str
) -> None:
    file = checked(
        tmp_path, GROUPED.format(model="", training="  per_device_train_batch_size: 4\n") + f"{group}: {said}\n"
    )
    assert file["prediction"] is None
    assert file["note"].startswith(f"No prediction: {group}{named} speaks of an adapter")


def test_weights_of_a_width_that_is_not_understood_below_adapters_are_not_whole(tmp_path: Path) -> None:
    config = GROUPED.format(model="", training="  per_device_train_batch_size: 4\n")
    for said in ("quantization: 4bit", "method: qlora"):
        file = checked(tmp_path, f"{config}peft: {{r: 8, {said}}}\n")
        assert file["prediction"] is None
        assert file["note"].startswith(f"No prediction: peft.{said.partition(':')[0]} speaks of quantized weights")
    known = checked(tmp_path, f"{config}peft: {{r: 8, method: qlora, load_in_4bit: true}}\n")
    assert known["prediction"] is not None and settings(known)["method"] == "qlora"


@pytest.mark.parametrize(("said", "method"), [
    ("false", "full"), ("{enable: false}", "full"), ("{enabled: false, r: 8}", "full"), ("{}", "full"),
    ("{enabled: true, type: lora, r: 8}", "lora"), ("{enable: true, peft_type: LORA, r: 8}", "lora"),
])  # fmt: skip
def test_adapters_that_are_off_or_plain_lora_are_predicted(tmp_path: Path, said: str, method: str) -> None:
    file = checked(
        tmp_path, GROUPED.format(model="", training="  per_device_train_batch_size: 4\n") + f"peft: {said}\n"
    )
    assert file["prediction"] is not None and settings(file)["method"] == method


def test_the_formats_own_name_wins(tmp_path: Path) -> None:
    setup = settings(checked(tmp_path, FLAT + "batch_size: 64\nper_device_train_batch_size: 2\n"))
    assert setup["per_device_train_batch_size"] == 2


def test_such_names_make_no_file_a_training_config(tmp_path: Path) -> None:
    """A config of a vision project has batches and epochs too."""
    config = "train:\n  batch_size: 32\n  epochs: 90\n  lr: 0.1\n  num_epochs: 90\ndata:\n  batch_size: 32\n"
    assert checked(tmp_path, config)["dialect"] is None


def test_a_text_where_a_number_is_meant_is_found_under_its_own_name(tmp_path: Path) -> None:
    file = checked(tmp_path, FLAT + "lr: 1e-4\nbatch_size: 2\n")
    assert "yaml-number-is-text" not in {each["rule"] for each in file["findings"]}  # learning_rate says it already
    file = checked(tmp_path, FLAT.replace("learning_rate: 1.0e-4\n", "num_train_epochs: 3\n") + "lr: 1e-4\n")
    assert "yaml-number-is-text" in {each["rule"] for each in file["findings"]}


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_no_own_name_takes_the_place_of_a_key(name: str) -> None:
    data = load(ROOT / "rules" / "dialects" / f"{name}.yaml")
    made = with_own_names(data, VOCABULARY["own_names"], VOCABULARY["facts"])
    assert "own_names" not in made
    assert {key: made["keys"][key] for key in data["keys"]} == data["keys"]
    assert list(made["keys"])[: len(data["keys"])] == list(data["keys"])
    added = [meant for key, meant in made["keys"].items() if key not in data["keys"]]
    assert bool(added) == bool(data.get("own_names"))
    assert all(each["last"] for meant in added for each in meant)


def test_a_hubs_model_and_a_batch_make_a_file_without_marks_a_run(tmp_path: Path) -> None:
    config = (
        "seed: 3\ntrain:\n  model_name: klue/bert-base\n  batch_size: 16\n  epoch: 20\n  lr: 5.0e-5\n  max_len: 200\n"
    )
    file = checked(tmp_path, config)
    assert file["dialect"] == "hydra"
    assert (settings(file)["model_name"], settings(file)["per_device_train_batch_size"]) == ("klue/bert-base", 16)
    assert checked(tmp_path, config.replace("klue/bert-base", "resnet50"))["dialect"] is None
    assert checked(tmp_path, config.replace("batch_size", "rows"))["dialect"] is None


LOADERS = {
    "omegaconf": "cfg = OmegaConf.load('run.yaml')",
    "pyyaml": "cfg = yaml.safe_load(open('run.yaml'))",
}
PROGRAM = (
    "import yaml\nfrom omegaconf import OmegaConf\nfrom transformers import TrainingArguments\n{load}\n"
    "arguments = TrainingArguments(output_dir='out', learning_rate=cfg.train.lr)\n"
)
OWN = (
    "model:\n  name: klue/roberta-base\ntrain:\n  batch_size: 8\n  lr: 2e-5\n"
    "  gradient_accumulation_steps: 1\n  weight_decay: 0.01\n"
)


@pytest.mark.parametrize(
    ("loader", "severity"),
    [("omegaconf", None), ("pyyaml", "error"), ("", "warning")],
    ids=["OmegaConf", "PyYAML", "?"],
)
def test_whether_a_number_is_text_is_what_loads_the_file(tmp_path: Path, loader: str, severity: str | None) -> None:
    (tmp_path / ".git").mkdir()
    if loader:
        (tmp_path / "train.py").write_text(PROGRAM.format(load=LOADERS[loader]), "utf-8")
    found = [each for each in checked(tmp_path, OWN)["findings"] if each["rule"] == "yaml-number-is-text"]
    assert [each["severity"] for each in found] == ([severity] if severity else [])
    for finding in found:
        assert finding["fix"]["safety"] == "safe"  # right for whatever loads it
        assert finding["message"].startswith("If PyYAML reads this file") is (severity == "warning")


def test_what_a_program_of_its_own_may_set_is_no_warning(tmp_path: Path) -> None:
    library = "training:\n  per_device_train_batch_size: 1\n  learning_rate: 1.0e-4\n  eval_steps: 200\n"
    own = library.replace("per_device_train_batch_size", "micro_batch_size")
    named = {
        text: [each["severity"] for each in checked(tmp_path, text)["findings"] if "eval-steps" in each["rule"]]
        for text in (library, own)
    }
    assert named == {library: ["warning"], own: ["info"]}
