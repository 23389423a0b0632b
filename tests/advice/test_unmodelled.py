"""What kb has no memory model of is named, never counted as the nearest thing that it has one of."""

import json
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.check import Checker
from kb.advice.estimate import estimate
from kb.config.dialect.dialects import Unmodelled
from kb.config.python.reader import PythonReader
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.core.catalog import Catalog
from kb.core.document import Unit
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_words
from kb.machine.detect import detect
from kb.report.words import Words

CATALOG, SHALLOW = load_catalog(), shallow_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
CONFIGS = ConfigReader(CATALOG.dialects, CATALOG.facts)
PYTHON = PythonReader(CATALOG.dialects, CATALOG.facts)
MACHINE = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=None, host_memory="60GB", cpus="8")
CONFIG = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\n"
TRAIN = "--model_name_or_path google/mt5-base --per_device_train_batch_size 4 --learning_rate 1e-4"


def checked(unit: Unit, catalog: Catalog = SHALLOW, **how: Any) -> UnitResult:
    """For a model of two layers; of its own depth (``CATALOG``) where it is what fits that is looked at."""
    return Checker(catalog, MACHINE, **how).check(unit)


def config(more: str) -> UnitResult:
    return checked(CONFIGS.read(CONFIG + more + "\n", "config.yaml")[0])


def command(line: str) -> UnitResult:
    return checked(read_shell(line + "\n", "run.sh", COMMANDS)[0])


def python(text: str) -> UnitResult:
    return checked(PYTHON.read(text, "train.py")[0])


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("lora_dim: 64", "lora_dim"),
        ("peft_method: lora", "peft_method"),
        ("peft: {r: 8}", "peft"),
        ("lora: {enabled: true}", "lora"),
        ("bits: 4", "bits"),
        ("use_quantization: true", "use_quantization"),
    ],
)
def test_a_key_that_speaks_of_an_adapter_leaves_the_method_open(more: str, key: str) -> None:
    result = config(more)
    assert (result.prediction, result.note, result.note_values["named"]) == (None, "method_open", key)
    assert not result.setup.method_known
    assert not [each for each in result.findings if each.rule in ("optimizer-8bit-would-save", "lora-would-save")]


@pytest.mark.parametrize("more", ["lora_dim: 0", "peft: null", "lora: {enabled: false}", "bits: 16"])
def test_a_key_that_says_there_is_none_leaves_full_fine_tuning(more: str) -> None:
    result = config(more)
    assert result.prediction is not None
    assert result.setup.method_known


def test_where_the_format_says_the_method_other_names_change_nothing() -> None:
    assert config("use_peft: true\nlora_r: 8\nlora_bank: 3").setup.method == "lora"
    assert config("use_peft: false\nlora_dim: 8").prediction is not None


@pytest.mark.parametrize("more", ["q_lora: true", "bits: 4", "quant_bit: 8", "lora_bits: 4"])
def test_an_adapter_over_weights_of_an_unknown_width_is_not_predicted(more: str) -> None:
    result = config("use_peft: true\nlora_r: 8\n" + more)
    assert (result.prediction, result.note, result.setup.method_known) == (None, "width_open", False)
    assert config(f"use_peft: true\nlora_r: 8\nload_in_4bit: true\n{more}").setup.method == "qlora"


def test_qlora_by_name_is_four_bits_under_an_adapter() -> None:
    assert config("use_qlora: true\nlora_r: 8").setup.method == "qlora"
    assert config("use_lora: true\nuse_qlora: false\nlora_r: 8").setup.method == "lora"
    assert command(f"python train.py {TRAIN} --use_qlora 1 --lora_r 8").setup.method == "qlora"


def test_a_deepspeed_files_own_offloading_is_modelled(tmp_path: Path) -> None:
    block = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": block}))
    unit = CONFIGS.read((tmp_path / "ds.json").read_text(), "ds.json")[0]
    assert unit.settings["deepspeed.offload_optimizer.device"].value == "cpu"
    assert "run.not_modelled" not in unit.settings


def test_the_project_may_say_what_is_trained() -> None:
    unit = CONFIGS.read(CONFIG + "lora_dim: 64\n", "config.yaml")[0]
    assert checked(unit, given={"lora.enabled": True}).setup.method == "lora"
    assert checked(unit, given={"lora.enabled": False}).prediction is not None


@pytest.mark.parametrize(
    "line",
    [
        f"python main.py {TRAIN} --lora_dim 64 --lora_module_name decoder.",
        f"python main.py {TRAIN} --bits 4",
        f"python qlora.py {TRAIN}",
        f"python train_lora.py {TRAIN}",
    ],
)
def test_a_commands_own_adapter_leaves_the_method_open(line: str) -> None:
    result = command(line)
    assert (result.prediction, result.note) == (None, "method_open")


def test_a_program_may_be_called_like_anything_else() -> None:
    assert command(f"python explora.py {TRAIN}").prediction is not None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("optim: galore_adamw", "galore_adamw (optim)"),
        ("optim: schedule_free_adamw", "schedule_free_adamw (optim)"),
        ("use_galore: true\ndo_train: true\nfinetuning_type: full", "galore_adamw (use_galore)"),
        ("use_lomo: true", "LOMO (use_lomo)"),
        ("fp8: true", "fp8 (fp8)"),
        ("cpu_offload: true", "cpu_offload"),
        ("tensor_parallel_size: 4", "tensor_parallel_size"),
        ("quant_method: hqq", "quant_method"),
        ("attn_implementation: flex_attention", "flex_attention (attn_implementation)"),
        ("torch_dtype: float8_e4m3fn", "float8_e4m3fn (torch_dtype)"),
        ("use_vera: true", "VeRA (use_vera)"),
        ("use_llama_pro: true", "LLaMA Pro (use_llama_pro)"),
        ("use_asft_loss: true", "ASFT (use_asft_loss)"),
        ("spectrum_top_fraction: 0.5", "Spectrum (spectrum_top_fraction)"),
        ("kd_trainer: true", "distillation (kd_trainer)"),
        ("quantize_moe_experts: true", "quantize_moe_experts"),
    ],
)
def test_what_has_no_model_is_named(more: str, named: str) -> None:
    result = config(more)
    assert (result.prediction, result.note, result.note_values) == (None, "not_modelled", {"named": named})


@pytest.mark.parametrize(
    "more",
    [
        "optim: adamw_torch",
        "optim: paged_adamw_8bit",
        "use_galore: false\ndo_train: true\nfinetuning_type: full",
        "fp8: no",
        "tensor_parallel_size: 1",
        "torch_dtype: auto",
        "attn_implementation: flash_attention_2",
        "cpu_offload: none",
    ],
)
def test_what_has_one_is_predicted(more: str) -> None:
    assert config(more).prediction is not None


def test_offload_on_a_command_line_is_not_predicted_but_its_absence_is() -> None:
    run = "python run_model.py --model facebook/opt-1.3b --batch-size 8"
    assert command(run + " --cpu-offload").note_values == {"named": "--cpu_offload"}
    assert command(run).note is None


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "x/Llama-3.1-8B-AWQ", "x/Llama-3.1-8B-FP8"])
def test_a_checkpoint_in_another_format_is_named(name: str) -> None:
    unit = CONFIGS.read(CONFIG.replace("google/mt5-base", name), "config.yaml")[0]
    assert checked(unit, model=CATALOG.models["qwen2.5-7b"]).note == "not_modelled"


@pytest.mark.long
def test_an_optimizer_matters_only_to_training() -> None:
    assert config("optim: galore_adamw\ndo_train: false\ndo_eval: true").prediction is not None


HEAD = "from transformers import *\nfrom peft import *\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
TAIL = "args = TrainingArguments('out', per_device_train_batch_size=4)\nTrainer(model=model, args=args).train()\n"


@pytest.mark.parametrize(
    ("between", "note"),
    [
        ("model = get_peft_model(model, make())\n", "method_open"),
        ("model = PeftModel.from_pretrained(model, 'a', is_trainable=True)\n", "method_open"),
        ("config = IA3Config(task_type='CAUSAL_LM')\nmodel = get_peft_model(model, config)\n", "no_such_run"),
        ("quantization = GPTQConfig(bits=4)\n", "not_modelled"),
    ],
)
def test_adapters_in_python_are_seen_where_they_are_made(between: str, note: str) -> None:
    assert python(HEAD + between + TAIL).note == note


def test_a_lora_config_in_the_same_file_is_lora() -> None:
    assert python(HEAD + "model = get_peft_model(model, LoraConfig(r=8))\n" + TAIL).setup.method == "lora"
    assert python(HEAD + TAIL).setup.method == "full"


@pytest.mark.parametrize(("given", "method"), [("None", True), ("config", False)])
def test_a_trainer_that_is_given_an_adapter_from_elsewhere_leaves_the_method_open(given: str, method: bool) -> None:
    text = f"SFTTrainer(model='gpt2', args=SFTConfig(per_device_train_batch_size=4), peft_config={given})\n"
    assert python(text).setup.method_known is method


def test_unsloth_told_to_train_all_weights_loads_them_whole() -> None:
    load = "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen3-0.6B'{})\n"
    adapt = "model = FastLanguageModel.get_peft_model(model, r=16, target_modules=['Wqkv'])\n"  # has no effect then
    train = "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=4, learning_rate=1e-4)).train()\n"
    whole = python(load.format(", full_finetuning=True") + adapt + train)
    assert (whole.setup.method, whole.setup.load_in_4bit) == ("full", False)
    assert not {"quantized-without-adapter", "lora-targets-match-nothing"} & {each.rule for each in whole.findings}
    assert python(load.format("") + train).setup.load_in_4bit
    for told, known in ((train, True), (train.replace("SFTConfig(", "TrainingArguments('out', "), False)):
        setup = python(load.format(", load_in_4bit=False, dtype=torch.bfloat16") + told).setup
        assert ("training.gradient_checkpointing" not in setup.unresolved) is known


def test_what_unsloth_puts_in_the_place_of_trl_s_classes_has_defaults_of_its_own() -> None:
    load = "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen3-0.6B', load_in_4bit=True)\n"
    text = load + "model = FastLanguageModel.get_peft_model(model, r=16)\nSFTTrainer(model=model, args={}).train()\n"
    own = python(text.format("SFTConfig('out', learning_rate=1e-4)")).setup
    assert (own.per_device_train_batch_size, own.gradient_accumulation_steps, own.optim) == (4, 2, "adamw_8bit")
    assert own.lora_target_modules == ("all-linear",)
    before = "from trl import SFTConfig\nfrom unsloth import FastLanguageModel\n"  # TRL's own, by then
    for start, config in (("", "TrainingArguments"), (before, "SFTConfig")):
        plain = python(start + text.format(f"{config}('out', learning_rate=1e-4)")).setup
        assert (plain.per_device_train_batch_size, plain.optim) == (8, "adamw_torch_fused"), config
    older = Checker(SHALLOW, MACHINE, versions={"unsloth": "2024.8", "trl": "0.8.6"}.get)
    (unit,) = PYTHON.read(text.format("SFTConfig('out', learning_rate=1e-4)"), "train.py")
    assert older.check(unit).setup.per_device_train_batch_size == 8


def test_experts_that_unsloth_packs_are_not_counted_in_16_bits() -> None:
    text = "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen3-30B-A3B', load_in_4bit={})\n"
    text += (
        "model = FastLanguageModel.get_peft_model(model, r=16)\nSFTTrainer(model=model, args=SFTConfig('o')).train()\n"
    )
    packed, whole = (python(text.format(each)) for each in (True, False))
    assert (packed.prediction, packed.note_values["named"]) == (None, "Unsloth + MoE (load_in_4bit)")
    assert whole.prediction is not None


def test_a_packed_checkpoint_is_predicted_only_as_the_program_unpacks_it() -> None:
    text = "quantization_config = Mxfp4Config({})\nmodel = AutoModelForCausalLM.from_pretrained({!r}, {})\n"
    text += "model = get_peft_model(model, LoraConfig(r=8, {}))\nSFTTrainer(model=model, args=SFTConfig('o')).train()\n"
    name, handed = "openai/gpt-oss-20b", "quantization_config=quantization_config"
    wide = python(text.format("dequantize=True", name, handed, ""))
    assert wide.prediction is not None and (wide.setup.method, wide.setup.weights) == ("lora", "bf16")
    for unpacks, more in (("", handed), ("dequantize=True", handed + ", load_in_4bit=wide")):
        assert python(text.format(unpacks, name, more, "")).prediction is None
    left = python(text.format("dequantize=True", name, "", "").partition("\n")[2])
    assert (left.prediction, left.note_values["named"]) == (None, f"mxfp4 ({name})")
    assert python(text.format("", "unsloth/gpt-oss-20b-BF16", "", "").partition("\n")[2]).prediction is not None
    on_experts = python(text.format("dequantize=True", name, handed, "target_parameters=['mlp.experts.down_proj']"))
    assert (on_experts.prediction, on_experts.note_values["named"]) == (None, "target_parameters")


def test_a_kernel_of_the_hub_is_no_sdpa_and_torchaos_blocks_are_not_followed_in_shards() -> None:
    run = config("attn_implementation: kernels-community/vllm-flash-attn3\noptim: adamw_torch_8bit")
    assert (run.setup.attn_implementation, run.setup.optim) == ("flash", "adamw_torch_8bit") and run.prediction
    shared = config("optim: adamw_torch_8bit\nfsdp: full_shard\n")
    assert (shared.prediction, shared.note_values["named"]) == (None, "adamw_torch_8bit (optim)")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r".*self_attn\.(q|v)_proj", ("q_proj", "v_proj")),
        (r"^model\.layers\.\d+\.mlp\.(up|down)_proj", ("up_proj", "down_proj")),
        (r".*layers\.(0|1)\..*q_proj|model\.layers\.0\.mlp\.up_proj", None),  # of some layers
        (r".*self_attn.*", None),  # PEFT wraps no attention
        (r".*\.query", None),
        ("(", None),
    ],
)
def test_one_expression_for_all_targets_is_the_names_that_match_the_same(pattern: str, names: Any) -> None:
    head = HEAD.replace("gpt2", "Qwen/Qwen2.5-0.5B")
    run = python(f"{head}model = get_peft_model(model, LoraConfig(r=8, target_modules={pattern!r}))\n{TAIL}")
    assert run.setup.lora_target_modules == names
    assert (run.prediction is None) is (names is None)


def test_what_nobody_writes_is_not_among_what_cannot_be_told() -> None:
    text = "if fast:\n    model, tok = FastLanguageModel.from_pretrained(name, load_in_4bit=True)\n"
    text += "    model = FastLanguageModel.get_peft_model(model, r=16)\n"
    run = python(text + "SFTTrainer(model=model, args=SFTConfig('out', per_device_train_batch_size=4)).train()\n")
    said = run.note_values["settings"]
    assert said.startswith("lora.enabled, load_in_4bit, model_name") and "loader" not in said


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=4", True),
        ("per_device_train_batch_size=1, gradient_accumulation_steps=1, num_generations=4", False),
        ("gradient_accumulation_steps=1, num_generations=8", False),  # of its default, 4
    ],
)
def test_a_batch_that_unsloth_makes_whole_groups_of_is_not_the_written_one(given: str, known: bool) -> None:
    load = "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen3-0.6B', load_in_4bit=True)\n"
    setup = python(f"{load}GRPOTrainer(model=model, args=GRPOConfig('out', {given})).train()\n").setup
    assert setup.batch_known is known


def test_the_batch_of_an_older_ppo_config_is_not_the_trainer_s_default() -> None:
    text = "config = PPOConfig(model_name='gpt2', learning_rate=1e-5{})\nPPOTrainer(model=model, config=config)\n"
    assert not python(text.format("")).setup.batch_known
    assert python(text.format(", per_device_train_batch_size=2")).setup.batch_known


@pytest.mark.parametrize(("trainer", "length"), [("512", 512), ("4096", 1024), ("", 1024), ("rows", 1024)])
def test_with_unsloth_rows_are_cut_to_the_less_of_loader_and_trainer(trainer: str, length: int) -> None:
    load = "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen3-0.6B', max_seq_length=1024)\n"
    cut = f", max_seq_length={trainer}" if trainer else ""
    given = f"args=SFTConfig(per_device_train_batch_size=4{cut})"
    assert python(f"{load}SFTTrainer(model=model, {given}).train()\n").setup.max_source_length == length


def test_a_switch_that_is_off_silences_its_whole_row() -> None:
    table = Unmodelled([{"to": "run.not_modelled", "name": "X", "keys": ["use_x", "x_*"]}])
    assert [each.text for each in table.among([("x_rank", 8, False)])] == ["X (x_rank)"]
    assert table.among([("x_rank", 8, False), ("use_x", "false", False)]) == []


def test_a_share_for_vllm_says_nothing_where_unsloth_is_told_not_to_use_it() -> None:
    share = "fast_inference: {}\ngpu_memory_utilization: 0.7"
    assert config(share.format("false")).note_values.get("named") is None
    assert config(share.format("true")).note_values["named"] == "vLLM (gpu_memory_utilization)"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("lora_dim: 8", "method_open"),
        ("optim: lomo", "not_modelled"),
        ("fsdp: full_shard", "gpus_not_said"),
        ("do_train: false", "runs_nothing"),
    ],
)
def test_an_estimate_that_cannot_be_made_says_why_in_the_same_words(more: str, key: str) -> None:
    checker = Checker(CATALOG, MACHINE)
    with pytest.raises(UserError) as raised:
        estimate(checker.prepare(CONFIGS.read(f"{CONFIG}{more}\n", "config.yaml")[0]), CATALOG)
    assert raised.value.key == f"note.{key}"


def test_a_run_on_a_tpu_is_not_predicted_for_a_gpu() -> None:
    result = config("tpu_num_cores: 8")
    assert (result.prediction, result.note_values["named"]) == (None, "TPU (tpu_num_cores)")
    assert config("tpu_num_cores: null").prediction is not None


@pytest.mark.parametrize("said", ["use_cpu", "no_cuda"])
def test_a_run_that_keeps_to_the_cpu_takes_nothing_of_a_gpu(said: str) -> None:
    result = config(f"{said}: true")
    assert (result.prediction, result.note, result.note_values["said"]) == (None, "cpu_only", said)
    assert not [each for each in result.findings if each.rule.endswith("-gpu")]
    assert config(f"{said}: false").prediction is not None


def test_vllm_inside_unsloth_shares_the_weights_and_is_not_counted_as_trls() -> None:
    result = python(
        """
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Phi-4", load_in_4bit=True, fast_inference=True)
args = GRPOConfig(output_dir="out", use_vllm=True, per_device_train_batch_size=1, num_generations=6)
GRPOTrainer(model=model, args=args).train()
"""
    )
    assert (result.prediction, result.note) == (None, "not_modelled")
    assert result.note_values["named"] == "Unsloth + vLLM (use_vllm)"
    assert not [each for each in result.findings if each.rule.startswith("colocated-vllm")]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("vllm_server_host='0.0.0.0'", None),
        ("use_vllm=False, vllm_model_impl='vllm'", None),
        ("use_vllm=True, vllm_mode='server', vllm_server_host='0.0.0.0', vllm_server_port=8000", None),
        ("use_vllm=True, vllm_mode='server', vllm_model_impl='transformers'", "vLLM (vllm_model_impl)"),
    ],
)
def test_where_a_server_is_says_nothing_of_a_run_and_nothing_else_does_while_vllm_is_off(
    given: str, named: str | None
) -> None:
    result = python(
        f"""
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig("out", {given}, per_device_train_batch_size=4, num_generations=4, bf16=True)
GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", args=args).train()
"""
    )
    assert result.note_values.get("named") == named


MIXTURE = (
    "model_name_or_path: Qwen/Qwen1.5-MoE-A2.7B\nper_device_train_batch_size: 1\nlearning_rate: 1.0e-4\n"
    "use_peft: true\nload_in_4bit: true\nlora_target_modules: [q_proj, v_proj]\n"
    "dataset_text_field: text\nmax_length: 512\n"
)


def mixture(transformers: tuple[int, ...] | None = None, catalog: Catalog = SHALLOW) -> UnitResult:
    known = (lambda library: {"transformers": transformers}.get(library)) if transformers else None
    return checked(CONFIGS.read(MIXTURE, "sft.yaml")[0], catalog, versions=known)


def test_experts_are_packed_before_transformers_5() -> None:
    older, newer = mixture((4, 46, 3)), mixture((5, 23, 0))
    assert older.prediction is not None and newer.prediction is not None
    packed, whole = (
        next(phase for phase in each.prediction.phases if phase.name == "load").peak_allocated_bytes
        for each in (older, newer)
    )
    assert packed < whole * 2 / 3  # of two layers: embeddings are as they were
    assert "transformers.release" not in [each.name for each in newer.setup.assumed]


@pytest.mark.long
def test_which_release_packs_experts_is_assumed_where_nothing_says_it() -> None:
    (assumed,) = [each for each in mixture().setup.assumed if each.name == "transformers.release"]
    assert assumed.reason == "experts_left_whole"
    loud = [each for each in mixture(catalog=CATALOG).findings if each.rule == "training-peak-exceeds-gpu"]
    assert all(each.severity != "error" for each in loud)


@pytest.mark.parametrize(
    "more",
    ["activation_offloading: true", "optimizer_in_bwd: true", "train_group_size: 8", "query_max_len: 512"],
)
def test_offloaded_activations_and_groups_of_texts_are_named(more: str) -> None:
    result = config(more)
    assert (result.prediction, result.note, result.note_values["named"]) == (
        None,
        "not_modelled",
        more.partition(":")[0],
    )
    assert config(more.partition(":")[0] + ": false").prediction is not None


RECIPE = (
    "model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: [q_proj], lora_rank: 8}\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}\n"
    "optimizer: {_component_: torch.optim.AdamW, lr: 3e-4}\nbatch_size: 2\nepochs: 1\ndtype: bf16\n"
)


def test_a_recipe_for_one_device_is_a_run_on_one_gpu() -> None:
    one, several = (checked(CONFIGS.read(RECIPE, f"1B_{name}.yaml")[0]) for name in ("lora_single_device", "lora"))
    assert one.prediction is not None
    assert not one.setup.fsdp
    assert (several.prediction, several.note) == (None, "gpus_not_said")


def test_of_a_recipe_that_only_generates_nobody_asks_how_many_gpus_train() -> None:
    recipe = "".join(line + "\n" for line in RECIPE.splitlines() if "optimizer" not in line)
    recipe += (
        "checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: out}\nprompt: Hello\n"
    )
    result = checked(CONFIGS.read(recipe.replace("epochs: 1\n", ""), "generation.yaml")[0])
    assert (result.prediction, result.note, result.setup.do_train) == (None, None, False)


ADAPTED = """from peft import LoraConfig, get_peft_model
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-3B")
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], MORE))
Trainer(model, TrainingArguments("out", per_device_train_batch_size=4, bf16=True)).train()
"""
SWIFT = "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --max_length 2048 --per_device_train_batch_size 1"
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
finetuning_type: lora
template: qwen
cutoff_len: 2048
"""
AXOLOTL = """base_model: Qwen/Qwen2.5-7B
datasets: [{path: a/b, type: alpaca}]
sequence_len: 2048
micro_batch_size: 1
adapter: lora
lora_target_linear: true
"""


@pytest.mark.parametrize(
    "more",
    [
        "layers_to_transform=[26, 27]",
        "layers_to_transform=list(range(28))",
        "layer_replication=[[0, 20], [8, 28]]",
        "rank_pattern={'q_proj': 256}",
        "exclude_modules='.*v_proj'",
    ],
)
def test_adapters_on_other_layers_weights_or_ranks_than_the_targets_say_are_not_counted_as_usual(more: str) -> None:
    """``layers_to_transform`` keeps activations of few layers, ``layer_replication`` of more than the model has."""
    result = python(ADAPTED.replace("MORE", more))
    assert (result.prediction, result.note, result.note_values["named"]) == (
        None,
        "not_modelled",
        more.partition("=")[0],
    )


def test_so_are_those_that_a_format_has_under_a_name_of_its_own() -> None:
    assert python(ADAPTED.replace("MORE", "lora_dropout=0.1")).prediction is not None
    patterned = command(SWIFT + " --target_regex 'model.layers.2[0-7].*q_proj'")
    assert (patterned.prediction, patterned.setup.unresolved) == (None, ("lora.target_modules",))
    for more in ("resize_vocab: true", "add_tokens: <a>"):  # both tables train
        trained = checked(CONFIGS.read(f"{FACTORY}do_train: true\n{more}\n", "f.yaml")[0])
        assert (trained.prediction, trained.setup.unresolved) == (None, ("lora.modules_to_save",))
        assert "not-as-written" not in {each.rule for each in trained.findings}
    assert checked(CONFIGS.read(AXOLOTL, "a.yaml")[0]).prediction is not None
    for key, value in (("peft_layer_replication", "[[0, 20], [8, 28]]"), ("lora_rank_pattern", "{q_proj: 256}")):
        assert checked(CONFIGS.read(f"{AXOLOTL}{key}: {value}\n", "a.yaml")[0]).note_values["named"] == key


@pytest.mark.parametrize(
    ("more", "usual"),
    [
        ("", True),
        ("lora_qkv_kernel: true\n", True),
        ("lora_mlp_kernel: false\n", False),
        ("trust_remote_code: true\n", False),
        ("load_in_8bit: true\n", False),
    ],
)
def test_kernels_that_axolotl_puts_in_lora_s_place_are_told_as_counted_like_peft_s_code(more: str, usual: bool) -> None:
    assumed = checked(CONFIGS.read(AXOLOTL + more, "a.yaml")[0]).prediction.assumed
    assert ("adapters_as_usual" in [each.reason for each in assumed]) is usual


def test_an_adapter_of_another_kind_is_not_called_lora() -> None:
    saved = {
        "peft_type": "VERA",
        "base_model_name_or_path": "meta-llama/Llama-3.2-3B",
        "r": 256,
        "target_modules": ["q"],
    }
    other, lora = (
        checked(CONFIGS.read(json.dumps({**saved, "peft_type": kind}), "adapter_config.json")[0]).setup.method
        for kind in ("VERA", "LORA")
    )
    assert (other, lora) == ("full", "lora")


@pytest.mark.parametrize("more", ["optimizer_in_bwd", "enable_activation_offloading"])
@pytest.mark.parametrize("value", ["True", "yes", "on", "YES"])
def test_a_recipe_that_frees_gradients_or_activations_is_not_called_too_large(more: str, value: str) -> None:
    one, other = (
        checked(CONFIGS.read(RECIPE + f"{more}: {each}\n", "1B_full_single_device.yaml")[0]) for each in (value, "off")
    )
    assert (one.prediction, one.note, one.note_values["named"]) == (None, "not_modelled", more)
    assert other.prediction is not None


def test_what_goes_into_checkpointed_layers_is_sent_away_with_the_other_activations() -> None:
    recipe = RECIPE + "enable_activation_offloading: true\nenable_activation_checkpointing: true\n"
    tuned = checked(CONFIGS.read(recipe, "1B_lora_single_device.yaml")[0])
    call = "SFTConfig('out', max_length=1024, bf16=True, activation_offloading=True, gradient_checkpointing={})"
    text = "trainer = SFTTrainer(model='Qwen/Qwen3-0.6B', args=" + call + ")\n"
    kept, away = (python(text.format(each)) for each in (False, True))
    for result in (tuned, away):
        assert result.setup.offloads_checkpoints
        assert "checkpoints_away" in {each.reason for each in result.prediction.assumed}
    assert (kept.prediction, kept.note_values["named"]) == (None, "activation_offloading")


FUSED = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
per_device_train_batch_size: 8
learning_rate: 1.0e-4
max_length: 2048
packing: false
bf16: true
gradient_checkpointing: true
use_liger_kernel: true
use_peft: true
lora_r: 16
lora_target_modules: all-linear
lora_modules_to_save: [lm_head]
fsdp: full_shard auto_wrap
fsdp_config: {fsdp_version: 1, transformer_layer_cls_to_wrap: Qwen2DecoderLayer}
"""


@pytest.mark.long
@pytest.mark.parametrize("language", ["ko", "en"])
def test_what_only_raises_a_figure_is_never_called_the_least(language: str) -> None:
    """Liger's loss of an output layer that trains beside adapters is, under FSDP, counted with whole logits: more than
    the run takes, so that no low end is known."""
    machine = detect(CATALOG.gpus, gpu="a100-40gb", gpu_count=8, host_memory="600GB", cpus="64")
    result = Checker(CATALOG, machine).check(CONFIGS.read(FUSED, "x.yaml")[0])
    assert result.prediction is not None and result.prediction.verdict.status == "likely_oom"
    assert "whole_logits" in {each.reason for each in result.prediction.assumed}
    (finding,) = [each for each in result.findings if each.rule == "training-peak-exceeds-gpu"]
    assert (finding.severity, "memory.train.low" in finding.facts) == ("warning", False)
    said = Words(language, load_words(language), CATALOG.facts).message(finding)
    assert not any(words in said for words in ("at least", "최소", "{", "( "))
    assert ("is predicted to need 42.9 GiB; of" if language == "en" else "학습에 42.9 GiB 메모리가 필요할") in said


def test_a_batch_that_is_not_followed_leaves_its_fact_open() -> None:
    """Of BigBird on several GPUs, which only an assumption asks about, DDP would stop: no check ends in that."""
    text = (
        "general: {model_name: google/bigbird-roberta-base}\ntokenizer: {encoder_max_len: 128, decoder_max_len: 32}\n"
        "training: {per_device_train_batch_size: 1, do_eval: true, do_train: false, gradient_checkpointing: true, "
        "gradient_accumulation_steps: 2, eval_accumulation_steps: 1, predict_with_generate: false}\n"
    )
    machine = detect(CATALOG.gpus, gpu="a10", gpu_count=None, host_memory="12.7GB", cpus="16")
    result = Checker(CATALOG, machine).check(CONFIGS.read(text, "config.yaml")[0])
    assert result.prediction is not None and result.prediction.verdict.status == "fits"
