"""Which trainer makes what of a quantized model: by the config's format, and by the release that the project pins."""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file
from effort import few

MODEL = "model_name_or_path: meta-llama/Llama-3.1-8B\n"
TRL = (
    MODEL + "dtype: bfloat16\nload_in_4bit: true\nuse_peft: true\nlora_r: 16\nlora_target_modules: all-linear\n"
    "lora_modules_to_save: [lm_head, embed_tokens]\nmax_length: 1024\npacking: true\nbf16: true\n"
    "gradient_checkpointing: true\nper_device_train_batch_size: 4\nlearning_rate: 2.0e-4\noutput_dir: out\n"
)
AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\nload_in_4bit: true\nadapter: qlora\nlora_r: 16\nlora_alpha: 16\n"
    "lora_target_linear: true\nsequence_len: 1024\nbf16: true\ngradient_checkpointing: true\nmicro_batch_size: 4\n"
    "num_epochs: 1\noptimizer: adamw_torch\nlearning_rate: 0.0002\ndatasets: [{path: a/b, type: alpaca}]\n"
)
FACTORY = (
    MODEL + "stage: sft\nfinetuning_type: lora\nquantization_bit: 4\nlora_rank: 16\nlora_target: all\ndataset: a\n"
    "template: llama3\ncutoff_len: 1024\nbf16: true\nper_device_train_batch_size: 4\ndo_train: true\noutput_dir: out\n"
)
LORA = (
    MODEL + "torch_dtype: bfloat16\nuse_peft: true\nlora_r: 16\nlora_target_modules: all-linear\nbf16: true\n"
    "per_device_train_batch_size: 1\nlearning_rate: 2.0e-4\noutput_dir: out\n"
)


def checked(folder: Path, config: str, pins: str = "") -> dict[str, Any]:
    """What `kb check` of a project says of its one config, on the GPU of 24 GB."""
    (folder / "train.yaml").write_text(config, "utf-8")
    if pins:
        (folder / "requirements.txt").write_text(pins, "utf-8")
    return checked_file(folder / "train.yaml", "--gpu", "l4")


@pytest.mark.parametrize(
    ("config", "pins", "prepared", "half_tables", "trained_type"),
    few(
        [
            (TRL, "trl==0.12.1\n", True, True, "peft"),
            (TRL, "trl==0.25.0\n", True, True, "peft"),
            (TRL, "trl==0.26.0\n", False, False, "bf16"),
            (TRL, "", False, False, "bf16"),
            (TRL.replace("bf16: true", "fp16: true\nbf16: false"), "trl==0.12.1\n", True, False, "peft"),
            (TRL + "precompute_ref_log_probs: true\n", "trl==0.28.0\n", True, True, "peft"),
            (AXOLOTL, "", False, False, "peft"),
            (FACTORY, "", False, False, "fp32"),
            (FACTORY + "pure_bf16: true\n", "", False, False, "peft"),
            (LORA, "peft==0.11.1\n", False, False, "bf16"),
            (LORA, "peft==0.12.0\n", False, False, "peft"),
            (LORA, "peft>=0.8\n", False, False, "peft"),
            (LORA.replace("bfloat16", "float32"), "peft==0.11.1\n", False, False, "peft"),
        ],
        5,
    ),
)
def test_the_format_and_the_release_say_what_a_trainer_does(
    tmp_path: Path, config: str, pins: str, prepared: bool, half_tables: bool, trained_type: str
) -> None:
    setup = checked(tmp_path, config, pins)["setup"]
    said = setup["prepare_for_kbit"], setup["half_tables"], setup["trained_type"]
    assert said == (prepared, half_tables, trained_type)


def test_a_trl_run_whose_whole_head_trains_fits_the_card_that_its_author_used(tmp_path: Path) -> None:
    """Published by its author for an L4: Llama-3.1-8B, batch 4 of 1,024 with Liger, embeddings and head trained."""
    found = checked(tmp_path, TRL + "use_liger: true\n", "trl==0.12.1\ntransformers==4.46.3\npeft==0.13.2\n")
    assert found["setup"]["fused_loss"]
    assert not [finding for finding in found["findings"] if finding["severity"] == "error"]


def test_where_the_release_is_not_known_the_verdict_says_what_it_rests_on(tmp_path: Path) -> None:
    found = checked(tmp_path, TRL)
    assumed = {each["name"]: each for each in found["prediction"]["assumed"]}
    assert assumed["quantization.prepared"]["reason"] == "release_of_trainer"
    assert assumed["quantization.prepared"]["name"] in {each["name"] for each in found["verdict_assumes"]}


@pytest.mark.parametrize("said", [True, False])
def test_a_project_says_in_its_own_file_whether_its_script_prepares_the_model(tmp_path: Path, said: bool) -> None:
    (tmp_path / "kb.toml").write_text(f"[facts]\nquantization.prepared = {str(said).lower()}\n", "utf-8")
    found = checked(tmp_path, TRL)
    assert found["setup"]["prepare_for_kbit"] is said
    assert "quantization.prepared" not in {each["name"] for each in found["prediction"]["assumed"]}


SCRIPT = """from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
{prepare}
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
args = TrainingArguments("out", bf16=True, per_device_train_batch_size=1, learning_rate=2e-4)
Trainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize("called", [True, False])
def test_a_script_that_prepares_the_model_says_so(tmp_path: Path, called: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(prepare="model = prepare_model_for_kbit_training(model)" if called else ""), "utf-8")
    file = checked_file(path, "--gpu", "l4")
    assert file["setup"]["prepare_for_kbit"] is called
    assumed = {each["name"] for each in file["prediction"]["assumed"]}
    assert ("quantization.prepared" in assumed) is not called


FALCON = SCRIPT.replace("meta-llama/Llama-3.1-8B", "tiiuae/falcon-7b").replace('q_proj", "v_proj', "query_key_value")


@pytest.mark.parametrize(
    ("prepare", "loads", "weights", "assumed"),
    [
        ("", "", 13, ["not_prepared_here"]),
        ("model = prepare_model_for_kbit_training(model)", "", 26, []),
        ("", ", torch_dtype='float32'", 26, []),
    ],
)
def test_where_nothing_is_packed_preparation_counts_where_the_script_calls_it(
    tmp_path: Path, prepare: str, loads: str, weights: int, assumed: list[str]
) -> None:
    path = tmp_path / "train.py"
    text = FALCON.format(prepare=prepare).replace("load_in_4bit=True)", f"load_in_4bit=True){loads}")
    path.write_text(text, "utf-8")
    file = checked_file(path, "--gpu", "rtx-3090", "--transformers", "5.23.0")
    terms = {each["name"]: each["bytes"] for each in file["prediction"]["phases"]["train"]["terms"]}
    assert terms["parameters"] / 2**30 == pytest.approx(weights, rel=0.03)
    made = file["prediction"]["assumed"]
    assert [each["reason"] for each in made if each["name"] == "quantization.prepared"] == assumed
    assert not [each for each in made if each["name"] == "quantization.load_in_4bit"]


def test_that_a_config_is_taken_to_be_prepared_is_said_where_it_doubles_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "model_name_or_path: tiiuae/falcon-7b\nload_in_4bit: true\nlora_r: 8\nbf16: true\n"
        "per_device_train_batch_size: 1\nlearning_rate: 1.0e-4\nmax_source_length: 64\n",
        "utf-8",
    )
    file = checked_file(path, "--gpu", "rtx-3090", "--transformers", "5.23.0")
    assert {"quantization.prepared"} <= {each["name"] for each in file["verdict_assumes"]}


TRAINED_BY_TRL = (
    SCRIPT.replace("Trainer, TrainingArguments", "Trainer")
    .replace("TrainingArguments(", "SFTConfig(")
    .replace("\nTrainer(", "\nSFTTrainer(")
    .replace("from peft", "from trl import SFTConfig, SFTTrainer\nfrom peft")
)


@pytest.mark.parametrize(
    ("release", "called", "prepared", "half_tables", "trained_type"),
    [
        ("0.18.1", True, True, False, "peft"),
        ("0.18.1", False, False, False, "peft"),  # TRL left a model that has its adapters as it was
        ("0.22.0", False, True, True, "peft"),
        ("1.0.0", True, True, False, "bf16"),
        ("1.0.0", False, False, False, "bf16"),
    ],
)
def test_adapters_that_a_script_adds_itself_are_prepared_by_it_or_by_some_releases_of_trl(
    tmp_path: Path, release: str, called: bool, prepared: bool, half_tables: bool, trained_type: str
) -> None:
    text = TRAINED_BY_TRL.format(prepare="model = prepare_model_for_kbit_training(model)" if called else "")
    (tmp_path / "train.py").write_text(text, "utf-8")
    (tmp_path / "requirements.txt").write_text(f"trl=={release}\n", "utf-8")
    setup = checked_file(tmp_path / "train.py", "--gpu", "l4")["setup"]
    said = setup["prepare_for_kbit"], setup["half_tables"], setup["trained_type"]
    assert said == (prepared, half_tables, trained_type)


@pytest.mark.parametrize(
    ("given", "release", "half_tables", "trained_type"),
    [
        ("config", "0.18.1", True, "peft"),
        ("LoraConfig(r=16)", "1.0.0", False, "bf16"),
        ("config if True else None", "1.0.0", False, "bf16"),
    ],
)
def test_packed_weights_whose_adapters_the_trainer_makes_are_predicted(
    tmp_path: Path, given: str, release: str, half_tables: bool, trained_type: str
) -> None:
    text = TRAINED_BY_TRL.format(prepare="").replace("model = get_peft_model(model, ", "config = (")
    (tmp_path / "train.py").write_text(text.replace("train_dataset=data", f"peft_config={given}"), "utf-8")
    (tmp_path / "requirements.txt").write_text(f"trl=={release}\n", "utf-8")
    file = checked_file(tmp_path / "train.py", "--gpu", "l4")
    assert file["setup"]["unresolved"] == [] and file["prediction"] is not None
    assert (file["setup"]["half_tables"], file["setup"]["trained_type"]) == (half_tables, trained_type)


@pytest.mark.parametrize(
    ("pins", "prepared", "trained_type", "packed_on"),
    [
        ("transformers==4.46.3\ntrl==0.12.1\n", False, "peft", "host"),
        ("transformers==4.57.6\ntrl==0.25.0\n", False, "peft", "warmed"),
        ("transformers==5.23.0\ntrl==1.0.0\n", False, "bf16", "gpu"),
    ],
)
def test_packed_weights_that_fsdp_shards_wait_where_the_release_leaves_them_and_are_not_prepared(
    tmp_path: Path, pins: str, prepared: bool, trained_type: str, packed_on: str
) -> None:
    config = TRL.replace("lora_modules_to_save: [lm_head, embed_tokens]\n", "")
    setup = checked(tmp_path, config + "bnb_4bit_quant_storage: bfloat16\nfsdp: full_shard auto_wrap\n", pins)["setup"]
    said = setup["prepare_for_kbit"], setup["trained_type"], setup["spread"]["packed_on"]
    assert said == (prepared, trained_type, packed_on)
    assert setup["bnb_4bit_quant_storage"] == "bf16"


WHOLE = SCRIPT.replace(
    ", quantization_config=BitsAndBytesConfig(load_in_4bit=True))", ', torch_dtype="bfloat16"{given})'
)
PREPARE = "model = prepare_model_for_kbit_training(model)"
RULE = "kbit-preparation-without-quantization"


def of_script(folder: Path, text: str) -> tuple[dict[str, Any], set[str]]:
    (folder / "train.py").write_text(text, "utf-8")
    file = checked_file(folder / "train.py", "--gpu", "l4")
    return file["setup"], {each["rule"] for each in file["findings"]}


@pytest.mark.parametrize(
    ("prepare", "weights", "checkpointing"),
    [
        ("", "bf16", False),
        (PREPARE, "fp32", False),
        (PREPARE + "\nmodel.gradient_checkpointing_enable()", "fp32", True),
    ],
)
def test_a_model_that_nothing_quantizes_is_made_fp32_by_preparation_and_not_checkpointed(
    tmp_path: Path, prepare: str, weights: str, checkpointing: bool
) -> None:
    setup, found = of_script(tmp_path, WHOLE.format(prepare=prepare, given=""))
    assert (setup["weights"], setup["gradient_checkpointing"]) == (weights, checkpointing)
    assert (RULE in found) is bool(prepare)


def test_a_quantization_that_is_made_elsewhere_leaves_the_run_open(tmp_path: Path) -> None:
    setup, found = of_script(tmp_path, WHOLE.format(prepare=PREPARE, given=", quantization_config=settings.packed"))
    assert "quantization.load_in_4bit" in setup["unresolved"] and RULE not in found
    setup, found = of_script(tmp_path, WHOLE.format(prepare=PREPARE, given=", quantization_config=None"))
    assert not setup["unresolved"] and RULE in found


def test_a_checkpoint_that_is_stored_in_4_bits_is_trained_so(tmp_path: Path) -> None:
    text = WHOLE.format(prepare=PREPARE, given="").replace(
        "meta-llama/Llama-3.1-8B", "unsloth/Meta-Llama-3.1-8B-bnb-4bit"
    )
    setup, found = of_script(tmp_path, text)
    assert (setup["method"], setup["load_in_4bit"], setup["gradient_checkpointing"]) == ("qlora", True, True)
    assert RULE not in found


def test_ms_swift_leaves_what_it_does_not_pack_in_its_type(tmp_path: Path) -> None:
    """It never calls PEFT's preparation, by which both tables of a 7B would take 2 GiB more in fp32."""
    (tmp_path / "run.sh").write_text(
        "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --torch_dtype bfloat16 --quant_method bnb "
        "--quant_bits 4 --max_length 2048 --per_device_train_batch_size 1 --dataset a\n"
    )
    said = checked_file(tmp_path / "run.sh", "--gpu", "l4")
    assert said["setup"]["prepare_for_kbit"] is False
    assert "quantization.prepared" not in [each["name"] for each in said["prediction"]["assumed"]]
