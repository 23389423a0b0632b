"""Axolotl, LLaMA-Factory, torchtune, Lightning, Unsloth: what their configs say of a run, and what is found in them."""

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader, Joiner
from kb.core.result import UnitResult
from kb.core.setup import PostTraining
from kb.machine.detect import detect

CATALOG, SHALLOW = load_catalog(), shallow_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
MACHINE = detect(CATALOG.gpus, gpu="a100-80gb", gpu_count=None, host_memory="500GB", cpus="16")
# Models of two layers: what a format says of a run does not depend on depth.
CHECKER = Checker(SHALLOW, MACHINE, versions={"transformers": (5, 23, 0)}.get)

AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
load_in_4bit: true
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
val_set_size: 0.05
output_dir: ./out
adapter: qlora
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 4
"""
ARGUMENTS = "model_name_or_path: gpt2\ndataset_name: a/b\ndo_train: true\noutput_dir: o\nbf16: true\n"
FACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
dataset: identity
template: llama3
cutoff_len: 1024
output_dir: saves/x
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
warmup_ratio: 0.1
bf16: true
"""
TUNE = """\
output_dir: /tmp/x
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: "${output_dir}/t", max_seq_len: 4096}
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: True
  lora_rank: 64
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: False}
batch_size: 2
optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
epochs: 1
gradient_accumulation_steps: 8
enable_activation_checkpointing: True
dtype: bf16
"""
LIGHTNING = """\
seed_everything: 42
trainer:
  {devices: 4, strategy: deepspeed_stage_2, precision: bf16-mixed, max_epochs: 3, accumulate_grad_batches: 2}
model: {class_path: my.Model, init_args: {model_name_or_path: google/mt5-base, learning_rate: 1.0e-4}}
data: {class_path: my.Data, init_args: {batch_size: 8, max_source_length: 512}}
"""
UNSLOTH = """\
model: unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit
data: {dataset: yahma/alpaca-cleaned}
training: {training_type: lora, max_seq_length: 2048, load_in_4bit: true, batch_size: 2, max_steps: 0}
lora: {lora_r: 16, target_modules: "q_proj,k_proj"}
logging: {enable_wandb: false}
"""


def result_of(text: str, files: dict[str, str] | None = None, checker: Checker = CHECKER) -> UnitResult:
    (unit,) = READER.read(text, "c.yaml")
    return checker.check(Joiner(READER, CATALOG.dialects, lambda path, named: (files or {}).get(named)).join(unit))


def peak_of(result: UnitResult) -> int:
    assert result.prediction is not None
    return next(phase.peak_allocated_bytes for phase in result.prediction.phases if phase.name == "train")


def told(text: str, checker: Checker = CHECKER) -> set[str]:
    return {finding.rule for finding in result_of(text, checker=checker).findings}


@pytest.mark.long
def test_axolotl_says_its_run():
    result = result_of(AXOLOTL)
    setup = result.setup
    assert result.unit.dialect == "axolotl" and result.model is not None and result.model.id == "llama-3-8b"
    assert (setup.method, setup.lora_r, setup.lora_target_modules) == ("qlora", 32, ("all-linear",))
    assert (setup.per_device_train_batch_size, setup.per_device_eval_batch_size) == (2, 2)
    assert (setup.max_source_length, setup.attn_implementation, setup.optim) == (2048, "flash", "adamw_bnb_8bit")
    assert (setup.bf16, setup.gradient_checkpointing, setup.use_reentrant, setup.do_eval) == (True, True, True, True)
    assert peak_of(result) > 7 * 2**30


def test_axolotl_is_not_held_to_the_names_of_transformers():
    assert told(AXOLOTL) <= {"under-the-target-range", "no-dataloader-workers", "8bit-adam-keeps-embeddings-in-32bit"}


@pytest.mark.parametrize(
    ("change", "evaluates"),
    [("val_set_size: 0", False), ("val_set_size: 0.0", False), ("val_set_size: 0.05", True), ("output_dir: y", True)],
)
def test_axolotl_evaluates_only_with_a_validation_set(change: str, evaluates: bool):
    text = AXOLOTL.replace("val_set_size: 0.05", change)
    assert result_of(text).setup.do_eval is evaluates


def test_axolotl_without_an_adapter_trains_the_whole_model_whatever_lora_says():
    setup = result_of(AXOLOTL.replace("adapter: qlora", "adapter:").replace("load_in_4bit: true", "")).setup
    assert (setup.method, setup.weights) == ("full", "bf16")


def test_axolotl_runs_that_kb_has_no_form_for_are_not_predicted():
    result = result_of(AXOLOTL + "context_parallel_size: 4\n")
    assert result.prediction is None and result.note == "no_such_run"


@pytest.mark.parametrize("name", ["overrides_of_model_config", "model_config"])
def test_axolotl_of_other_dimensions_than_its_base_model_is_not_that_model(name: str):
    assert result_of(f"{AXOLOTL}{name}: {{rope_theta: 10000.0}}\n").setup.model_name is not None
    for keys in ("hidden_size: 1024, num_hidden_layers: 4", "rope_theta: 10000.0, n_layer: 4", "text_config: {n: 64}"):
        result = result_of(f"{AXOLOTL}{name}: {{{keys}}}\n")
        assert (result.setup.model_name, result.prediction) == (None, None)


def test_axolotl_with_the_config_of_another_model_is_not_its_base_model():
    (line,) = (line for line in AXOLOTL.splitlines() if line.startswith("base_model:"))
    base = line.partition(": ")[2]
    assert result_of(f"{AXOLOTL}base_model_config: {base}\n").setup.model_name == base
    assert result_of(f"{AXOLOTL}base_model_config: other/model\n").setup.model_name is None


def test_axolotl_runs_that_learn_from_preferences_are_predicted_with_two_answers_a_sample():
    plain, preferred = (result_of(text) for text in (AXOLOTL, AXOLOTL + "rl: dpo\n"))
    assert preferred.setup.post == PostTraining("dpo", head="rows", reference="adapter_off")
    assert (
        preferred.prediction.phase("train").peak_allocated_bytes > plain.prediction.phase("train").peak_allocated_bytes
    )
    assert "trl.release" in {each.name for each in preferred.setup.assumed}


@pytest.mark.parametrize("more", ["rl: grpo\ntrl: {beta: 0.001}\n", "rl: bco\n", "reward_model: true\n"])
def test_axolotl_runs_that_learn_from_preferences_or_rewards_are_named_and_not_predicted(more: str):
    result = result_of(AXOLOTL + more)
    note = "trainer_not_predicted" if "bco" in more else "trainer_not_followed"
    assert (result.prediction, result.note) == (None, note)
    assert result.note_values["trainer"] in ("BCO", "GRPO", "Reward")


def test_a_slip_in_axolotl_is_told_with_the_name_that_was_meant():
    unit = result_of(AXOLOTL.replace("sample_packing", "sample_paking")).unit
    assert [event.values["meant"] for event in unit.events if event.kind == "unknown-key"] == ["sample_packing"]
    assert "unknown-argument" in told(AXOLOTL + "favourite_colour: green\n")


@pytest.mark.long
def test_axolotl_shards_over_the_gpus_that_the_user_names():
    text = AXOLOTL + "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true, fsdp_version: 2}\n"
    peaks = []
    for count in (2, 8):
        setup = result_of(text, checker=Checker(SHALLOW, MACHINE._replace(gpu_count=count))).setup
        assert (setup.fsdp, setup.offload_param, setup.world_size) == (True, True, count)
        peaks.append(
            result_of(
                text.replace("true, fsdp", "false, fsdp"),
                checker=Checker(SHALLOW, MACHINE._replace(gpu_count=count)),
            )
        )
    assert peak_of(peaks[1]) < peak_of(peaks[0])


def test_llama_factory_says_its_run():
    result = result_of(FACTORY)
    setup = result.setup
    assert result.unit.dialect == "llamafactory"
    assert (setup.method, setup.lora_r, setup.lora_target_modules) == ("lora", 16, ("q_proj", "v_proj"))
    assert (setup.weights, setup.bf16, setup.gradient_checkpointing, setup.max_source_length) == (
        "bf16",
        True,
        True,
        1024,
    )
    assert told(FACTORY) <= {"under-the-target-range", "no-dataloader-workers"}


@pytest.mark.long
def test_llama_factory_quantizes_with_double_quantization_unless_told():
    setup = result_of(FACTORY + "quantization_bit: 4\n").setup
    assert (setup.method, setup.bnb_4bit_use_double_quant) == ("qlora", True)
    assert not result_of(FACTORY + "quantization_bit: 4\ndouble_quantization: false\n").setup.bnb_4bit_use_double_quant


@pytest.mark.long
@pytest.mark.parametrize("stage", ["dpo", "kto"])
def test_llama_factory_widens_whole_logits_of_policy_and_reference(stage: str):
    result = result_of(FACTORY.replace("stage: sft", f"stage: {stage}"))
    assert result.setup.post == PostTraining(stage, head="wide", reference="adapter_off")
    assert result.prediction.phase("train").moment in ("loss", "backward")


def test_a_reference_model_of_its_own_is_not_predicted():
    result = result_of(FACTORY.replace("stage: sft", "stage: dpo\nref_model: org/other"))
    assert (result.prediction, result.note) == (None, "trainer_not_followed")


@pytest.mark.parametrize("stage", ["rm", "ppo"])
def test_a_run_with_two_answers_or_two_models_is_not_predicted_as_one(stage: str):
    result = result_of(FACTORY.replace("stage: sft", f"stage: {stage}"))
    trainer = {"rm": "Reward"}.get(stage, stage.upper())
    note = "trainer_not_predicted" if stage == "ppo" else "trainer_not_followed"
    assert (result.prediction, result.note) == (None, note)
    assert (result.note_values["trainer"], result.note_values["said"]) == (trainer, "stage")


@pytest.mark.parametrize("method", ["freeze", "oft"])
def test_methods_of_llama_factory_that_kb_does_not_know_are_not_predicted(method: str):
    result = result_of(FACTORY.replace("finetuning_type: lora", f"finetuning_type: {method}"))
    assert result.prediction is None and result.note == "no_such_run"


@pytest.mark.parametrize(
    "text",
    [
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\ntemplate: llama3\ninfer_backend: vllm\n",
        "model_name_or_path: meta-llama/Meta-Llama-3-8B\ntemplate: t\nexport_dir: y\nexport_size: 5\n",
    ],
)
def test_a_config_for_inference_or_export_is_no_training_run(text: str):
    result = result_of(text)
    assert result.unit.dialect == "llamafactory" and not result.setup.do_train
    assert result.model is not None and told(text) == set()
    assert result.setup.method == "full"  # its default adapter is made by what trains
    assert result_of(f"{text}adapter_name_or_path: saves/a\n").setup.method == "lora"


@pytest.mark.parametrize("text", [FACTORY, ARGUMENTS, f"{ARGUMENTS}packing: true\n"], ids=["llamafactory", "hf", "trl"])
def test_deepspeed_s_settings_may_stand_in_place_of_its_file(text: str) -> None:
    inline = (
        "deepspeed: {zero_optimization: {stage: 3, offload_optimizer: {device: cpu}, reduce_bucket_size: auto, "
        "stage3_gather_16bit_weights_on_model_save: true}}\n"
    )
    machine = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=2, host_memory="64GB", cpus="16")
    checker = Checker(SHALLOW, machine, versions={"transformers": (5, 23, 0)}.get)
    found = result_of(text + inline, checker=checker)
    setup = found.setup
    assert (setup.zero_stage, setup.offload_optimizer, setup.unresolved) == (3, True, ())
    assert "zero3-checkpoint-without-16bit-gather" not in {finding.rule for finding in found.findings}


def test_a_deepspeed_file_that_is_missing_is_said():
    text = FACTORY + "deepspeed: examples/deepspeed/ds_z3_config.json\n"
    reasons = {each.name: each.reason for each in result_of(text).setup.assumed}
    assert reasons["training.deepspeed"] == "not_read"
    file = '{"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}}'
    joined = result_of(text, {"examples/deepspeed/ds_z3_config.json": file})
    assert joined.setup.zero_stage == 3
    assert "deepspeed-values-disagree-with-trainer" in {finding.rule for finding in joined.findings}


def test_torchtune_says_its_run():
    result = result_of(TUNE)
    setup = result.setup
    assert result.model is not None and result.model.id == "llama-3.1-8b"
    assert setup.lora_target_modules == ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert (setup.method, setup.lora_r, setup.weights, setup.bf16) == ("lora", 64, "bf16", False)
    assert (setup.optim, setup.max_source_length, setup.do_train) == ("adamw_torch_fused", 4096, True)
    assert result.unit.settings["training.output_dir"].value == "/tmp/x"


@pytest.mark.parametrize(
    ("component", "name", "method"),
    [
        ("torchtune.models.llama3_1.lora_llama3_1_8b", "meta-llama/Llama-3.1-8B", "lora"),
        ("torchtune.models.llama2.qlora_llama2_13b", "meta-llama/Llama-2-13b-hf", "qlora"),
        ("torchtune.models.qwen2.qwen2_0_5b", "Qwen/Qwen2-0.5B", "full"),
        ("torchtune.models.qwen2_5.lora_qwen2_5_1_5b_base", "Qwen/Qwen2.5-1.5B", "lora"),
        ("torchtune.models.qwen3.lora_qwen3_0_6b_instruct", "Qwen/Qwen3-0.6B", "lora"),
        ("torchtune.models.code_llama2.code_llama2_7b", "codellama/CodeLlama-7b-hf", "full"),
        ("torchtune.models.gemma2.qlora_gemma2_9b", "google/gemma-2-9b", "qlora"),
        ("torchtune.models.cormorant.lora_cormorant_12b_chat", "cormorant-12b_chat", "lora"),
        ("our_models.lora_heron_1_5b", "heron-1.5b", "lora"),
    ],
)
def test_torchtunes_builders_are_read_by_the_form_of_their_names(component: str, name: str, method: str):
    setup = result_of(TUNE.replace("torchtune.models.llama3_1.lora_llama3_1_8b", component)).setup
    assert (setup.model_name, setup.method) == (name, method)


def test_torchtune_leaves_what_it_does_not_pack_in_half_precision():
    result = result_of(TUNE.replace(".lora_llama3", ".qlora_llama3"))
    assert (result.setup.method, result.setup.prepare_for_kbit) == ("qlora", False)


def test_a_torchtune_config_for_evaluation_is_no_training_run():
    text = "model: {_component_: torchtune.models.llama2.llama2_7b}\ntokenizer: {_component_: t}\nbatch_size: 8\n"
    result = result_of(text)
    assert result.unit.dialect == "torchtune" and not result.setup.do_train


def test_lightning_says_its_run_with_or_without_the_subcommand():
    nested = "fit:\n" + "".join(f"  {line}\n" for line in LIGHTNING.splitlines())
    for text in (LIGHTNING, nested):
        setup = result_of(text).setup
        assert (setup.model_name, setup.bf16, setup.world_size, setup.zero_stage) == ("google/mt5-base", True, 4, 2)
        assert (setup.per_device_train_batch_size, setup.gradient_accumulation_steps, setup.do_train) == (8, 2, True)


@pytest.mark.long
def test_unsloth_says_its_run():
    result = result_of(UNSLOTH)
    setup = result.setup
    assert result.model is not None and result.model.id == "llama-3.1-8b"
    assert (setup.method, setup.lora_target_modules, setup.lora_r) == ("qlora", ("q_proj", "k_proj"), 16)
    assert setup.unsloth and setup.fused_loss and setup.fused_evaluation
    assert told(UNSLOTH) <= {"under-the-target-range", "no-dataloader-workers"}


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_sharded_run_of_unknown_width_is_not_called_too_large():
    text = (
        AXOLOTL.replace("adapter: qlora", "adapter:")
        .replace("load_in_4bit: true", "")
        .replace("Meta-Llama-3-8B", "Meta-Llama-3-70B")
    )
    text = text.replace("adamw_bnb_8bit", "adamw_torch_fused")
    whole = Checker(CATALOG, MACHINE)
    assert "training-peak-exceeds-gpu" in told(text, whole)
    assert "training-peak-exceeds-gpu" not in told(text + "fsdp: [full_shard]\n", whole)
