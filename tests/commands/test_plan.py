"""`kb plan`: what is short, and the steps that mend it: GPU and host memory apart, the effective batch held."""

import itertools
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from catalog_sample import CATALOG, load_guide, machine, shallow, shallow_catalog
from command_runs import ROOT
from command_runs import run_kb as kb
from effort import EXHAUSTIVE, few
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.plan import Plan, combined, steps_from
from kb.advice.fit.plan_unit import plan_gpu, plan_host
from kb.core.catalog import Catalog
from kb.core.setup import TrainingSetup
from output_schemas import answers_to

sys.path.insert(0, str(ROOT / "bench"))
from plan_check import tried

RUN = ROOT / "tests" / "data" / "check" / "summary_run.yaml"
TWO = ROOT / "tests" / "data" / "check" / "two_models.yaml"
SHALLOW = shallow_catalog()
EIGHT_LAYERS = CATALOG._replace(models={"llama-3.1-8b": shallow(CATALOG.models["llama-3.1-8b"], 8)})
STEPS = steps_from(load_guide(), CATALOG.facts)
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
WORKERS, EVALUATION = "training.dataloader_num_workers", "training.per_device_eval_batch_size"
TRAIN, ACCUMULATION = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"


LOOP = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

ROUNDS = 4
ROWS = 32
model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-xl")
loader = DataLoader(rows, batch_size=ROWS)
max_length = 1024
half = ROUNDS // 2
optimizer = torch.optim.AdamW(model.parameters())
for step, batch in enumerate(loader):
    loss = model(**batch).loss
    loss.backward()
    if (step + 1) % ROUNDS == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def plan_json(*arguments: object) -> dict:
    return json.loads(planned(*arguments))


@cache
def planned(*arguments: object) -> str:
    """The report of a command, which several tests look at."""
    run = kb(*arguments, "--format", "json", module="kb.plan")
    assert run.returncode == 0, run.stderr
    return run.stdout


def plan(setup: TrainingSetup, model: str, gpu: str, catalog: Catalog = SHALLOW, **values: int) -> Plan:
    """Of a model of two layers; of its own depth (``CATALOG``) where it is what is short that is looked at."""
    estimator = Estimator(catalog.models[model], machine(gpu, **values), CATALOG.constants)
    gpu = plan_gpu(setup, estimator, CATALOG.gpus, STEPS)
    return combined(gpu, plan_host(setup, gpu.setup, estimator), setup)


def test_the_two_ledgers_stay_apart() -> None:
    (found,) = plan_json(RUN, *BOX)["plans"]
    assert found["short"] == ["gpu", "host"]
    assert all(not any("workers" in name for name in step["set"]) for step in found["gpu"]["steps"])
    assert all(list(step["set"]) == [WORKERS] for step in found["host"]["steps"])
    assert found["host"]["other_resource_change_bytes"] == 0


def test_half_the_workers_are_let_go_first() -> None:
    (found,) = plan_json(RUN, *BOX)["plans"]
    first = found["host"]["steps"][0]
    assert first["set"] == {WORKERS: {"before": 32, "after": 16}}
    assert round((first["before"]["expected_bytes"] - first["after"]["expected_bytes"]) / 1e9) == 37  # 16 × 2.3
    assert found["host"]["after"]["high_bytes"] <= 48e9


def test_batches_are_said_not_to_free_host_memory() -> None:
    text = kb(RUN, *BOX, "--lang", "en", module="kb.plan").stdout
    assert "dataloader_num_workers" in text
    assert "Smaller training or evaluation batches would not free host memory." in " ".join(text.split())


def test_after_the_steps_the_config_fits() -> None:
    (found,) = plan_json(RUN, *BOX)["plans"]
    assert found["reached"]
    assert found["prediction"]["verdict"]["status"] == "fits"
    assert found["effective_batch"] == {"before": 40, "after": 40}
    assert found["set"][EVALUATION] < 32


def test_the_steps_put_into_the_config_pass_the_linter(tmp_path: Path) -> None:
    (found,) = plan_json(RUN, *BOX)["plans"]
    text = RUN.read_text("utf-8")
    for name, value in found["set"].items():
        key = name.rpartition(".")[2]
        lines = [f"  {key}: {value}" if line.strip().startswith(f"{key}:") else line for line in text.splitlines()]
        text = "\n".join(lines)
    path = tmp_path / "planned.yaml"
    path.write_text(text + "\n", "utf-8")
    report = json.loads(kb(path, *BOX, "--format", "json", module="kb.check").stdout)
    assert report["files"][0]["prediction"]["verdict"]["status"] == "fits"
    assert not [f for f in report["files"][0]["findings"] if f["rule"].endswith(("exceeds-gpu", "over-limit"))]


def test_a_smaller_training_batch_holds_the_effective_batch() -> None:
    setup = TrainingSetup(
        per_device_train_batch_size=384, gradient_accumulation_steps=2, bf16=True, gradient_checkpointing=True
    )
    found = plan(setup, "t5-base", "rtx-3080-10gb")
    (step,) = [step for step in found.gpu.steps if step.name == "train_batch"]
    assert step.set[TRAIN][1] * step.set[ACCUMULATION][1] == 768
    assert found.effective == (768, 768)


def test_what_costs_least_of_the_result_comes_first() -> None:
    found = plan(TrainingSetup(per_device_train_batch_size=8, max_source_length=1024), "llama-3.1-8b", "rtx-3080-10gb")
    names = [step.name.replace("precision_bf16", "autocast") for step in found.gpu.steps]
    assert names == sorted(names, key=STEPS.order.index) and "checkpointing" in names
    alone = plan(TrainingSetup(per_device_train_batch_size=64, max_source_length=512), "t5-base", "rtx-3080-10gb")
    assert [step.name for step in alone.gpu.steps] == ["checkpointing"]


@pytest.mark.exhaustive
def test_several_gpus_share_a_model_before_something_else_is_trained() -> None:
    setup = TrainingSetup(max_source_length=1024, per_device_train_batch_size=2, bf16=True, world_size=8)
    found = plan(setup, "llama-3.1-8b", "a100-80gb", CATALOG)
    assert found.gpu.reached and found.setup.fsdp and found.setup.method == "full"


@pytest.mark.parametrize("seed", few([11, 12, 13, 14]))
def test_a_plan_pasted_into_the_file_does_what_it_says(seed: int) -> None:
    """A sample, of models of two layers; bench/plan_check.py draws as many as one likes, in five formats."""
    for each in itertools.islice(tried(seed, SHALLOW), 4 if EXHAUSTIVE else 1):
        assert each.kept, (each.text, each.pasted, each.new_errors)


@pytest.mark.exhaustive
def test_other_faults_are_mended_first_and_counted_with(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "model_name_or_path: google-t5/t5-large\nper_device_train_batch_size: 64\nbf16: true\nfp16: true\n"
        "max_source_length: 1024\noutput_dir: out\ndo_train: true\n",
        "utf-8",
    )
    box = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
    found = plan_json(path, *box)
    assert found["faults"]["mended"] and found["faults"]["left"] == []
    assert "-fp16: true" in found["faults"]["diff"] and found["plans"][0]["reached"]
    text = kb(path, *box, "--lang", "en", module="kb.plan").stdout
    assert "-fp16: true" in text and "gradient_checkpointing: true" in text


def test_evaluation_comes_before_training_and_options_last() -> None:
    setup = TrainingSetup(
        do_eval=True,
        predict_with_generate=True,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=128,
        generation_num_beams=8,
        generation_max_length=128,
    )
    found = plan(setup, "t5-large", "v100-16gb")
    names = [step.name for step in found.gpu.steps]
    order = ["eval_batch", "beams", "train_batch", "checkpointing", "optimizer_8bit", "lora", "qlora"]
    assert names == sorted(names, key=order.index)
    assert found.gpu.state_after == "enough"


@pytest.mark.exhaustive
def test_beams_are_cut_only_where_one_sample_does_not_fit() -> None:
    wide = TrainingSetup(do_eval=True, predict_with_generate=True, generation_num_beams=2000, generation_max_length=512,
                         per_device_eval_batch_size=4, per_device_train_batch_size=1)  # fmt: skip
    names = [step.name for step in plan(wide, "t5-base", "rtx-3080-10gb").gpu.steps]
    assert names[:2] == ["eval_batch", "beams"]
    narrow = wide._replace(generation_num_beams=4, per_device_eval_batch_size=512)
    assert [step.name for step in plan(narrow, "t5-base", "rtx-3080-10gb").gpu.steps] == ["eval_batch"]


def test_an_option_that_is_not_needed_is_not_switched_on() -> None:
    setup = TrainingSetup(per_device_train_batch_size=8, max_source_length=1024)
    found = plan(setup, "mt5-xlsum", "rtx-3080-10gb")
    names = [step.name for step in found.gpu.steps]
    assert found.gpu.reached
    for step in found.gpu.steps:
        assert step.after is None or step.after.high < step.before.high, names


@pytest.mark.exhaustive
def test_where_no_step_helps_a_larger_gpu_is_named() -> None:
    found = plan(TrainingSetup(do_eval=True), "llama-3.1-8b", "rtx-2060-6gb", EIGHT_LAYERS)
    assert not found.gpu.reached
    assert found.gpu.larger_gpu is not None
    assert found.gpu.larger_after is not None
    assert found.gpu.larger_after.memory_total < found.gpu.larger_gpu.memory_total


def test_a_container_smaller_than_the_process_itself_is_not_reached_by_workers() -> None:
    found = plan(TrainingSetup(dataloader_num_workers=8), "t5-base", "a100-80gb", host_memory_bytes=4 * 10**9)
    assert found.host.setup.dataloader_num_workers == 0
    assert not found.host.reached


def test_no_workers_take_persistent_workers_with_them() -> None:
    setup = TrainingSetup(dataloader_num_workers=8, dataloader_persistent_workers=True)
    host = plan(setup, "t5-base", "a100-80gb", host_memory_bytes=4 * 10**9).host
    assert not host.setup.dataloader_persistent_workers


def test_what_the_gpus_steps_free_on_the_host_is_not_cut_again() -> None:
    setup = TrainingSetup(per_device_train_batch_size=8, dataloader_num_workers=12)
    found = plan(setup, "llama-3.1-8b", "rtx-3090", EIGHT_LAYERS, host_memory_bytes=48 * 10**9)
    first = found.host.steps[0]
    assert first.name == "gpu_steps"
    assert first.after.high < first.before.high
    assert found.host.setup.dataloader_num_workers > 0
    assert found.setup.method in ("lora", "qlora")


def test_what_fits_has_no_steps() -> None:
    found = plan(TrainingSetup(per_device_train_batch_size=1), "t5-small", "a100-80gb")
    assert found.short == ()
    assert found.gpu.steps == found.host.steps == ()


def test_every_section_with_a_known_model_is_planned() -> None:
    sections = [one["section"] for one in plan_json(TWO, "--gpu", "t4")["plans"]]
    assert len(sections) > 1
    (one,) = plan_json(TWO, "--gpu", "t4", "--section", sections[-1])["plans"]
    assert one["section"] == sections[-1]


@pytest.mark.exhaustive
def test_without_a_gpu_only_the_host_is_planned() -> None:
    (found,) = plan_json(RUN, "--gpu", "none", "--host-memory", "60GB", "--cpus", "48")["plans"]
    assert found["gpu"]["state"] == "unknown"
    assert found["gpu"]["steps"] == []
    assert found["host"]["steps"]


@pytest.mark.parametrize("gpu", few(["rtx-3090", "rtx-3080-10gb"]))
def test_json_keeps_its_schema(gpu: str) -> None:
    answers_to("plan", plan_json(RUN, "--gpu", gpu, *BOX[2:]))


def test_both_languages_say_the_plan() -> None:
    ko, en = (kb(RUN, *BOX, "--lang", language, module="kb.plan").stdout for language in ("ko", "en"))
    assert "호스트 메모리" in ko
    assert "Host memory" in en
    numbers = [sorted(re.findall(r"\d+(?:\.\d+)?", text)) for text in (ko, en)]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("general: {model_name: acme/mt5-xlsun}\ntraining: {fp16: false}\n", (), "kb does not know the model"),
        ("general: {seed: 1}\ntraining: {per_device_train_batch_size: 2}\n", (), "--model-config"),
        ("a: 1\n", (), "no format"),
        ("general: {model_name: t5-base}\ntraining: {bf16: true}\n", ("--section", "other"), "no sections"),
        ("general: [\n", (), "plan.yaml:"),
        ("", (), "empty"),
    ],
)
def test_bad_input_is_said_with_exit_code_2(tmp_path: Path, text: str, arguments: tuple[str, ...], said: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text, "utf-8")
    run = kb(path, "--gpu", "t4", *arguments, "--lang", "en", module="kb.plan")
    assert run.returncode == 2, run.stdout
    assert said in run.stderr


def test_a_missing_file_and_an_unknown_section_are_said() -> None:
    assert kb("missing.yaml", "--gpu", "t4", module="kb.plan").returncode == 2
    run = kb(TWO, "--gpu", "t4", "--section", "nothing", "--lang", "en", module="kb.plan")
    assert run.returncode == 2
    assert "nothing" in run.stderr


def test_nothing_known_to_fit_into_is_said() -> None:
    run = kb(RUN, "--gpu", "none", "--host-memory", "none", "--lang", "en", module="kb.plan")
    assert run.returncode == 2
    assert "--host-memory" in run.stderr


SHELL = """accelerate launch --num_processes 2 run_summarization.py \\
  --model_name_or_path google/mt5-base --do_train --train_file a.json --output_dir out \\
  --per_device_train_batch_size 64 --max_source_length 1024 --max_target_length 128
"""
CODE = """from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
from transformers import AutoModelForCausalLM
import torch
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)
args = SFTConfig(output_dir="o", per_device_train_batch_size=8, max_length=4096, bf16=True, gradient_checkpointing=True)
SFTTrainer(model, args=args, train_dataset=data, peft_config=LoraConfig(r=8, target_modules="all-linear")).train()
"""
AXOLOTL = """base_model: Qwen/Qwen2.5-7B
adapter: lora
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 4
bf16: true
datasets: [{path: x}]
"""
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
do_train: true
finetuning_type: full
dataset: alpaca
template: qwen
cutoff_len: 1024
per_device_train_batch_size: 4
bf16: true
output_dir: out
"""
FULL = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
args = TrainingArguments("o", per_device_train_batch_size=1, bf16=True)
Trainer(model, args, train_dataset=data.map(lambda row: tok(row["text"], truncation=True, max_length=64))).train()
"""


@pytest.mark.parametrize(
    ("name", "text", "line"),
    few(
        [
            ("train.sh", SHELL, r"  --gradient_checkpointing true  # was false"),
            ("sft.py", CODE, r"  per_device_train_batch_size=[1-7],  # was 8"),
            ("sft.py", CODE, r"  use_liger_kernel=True,  # was false"),
            ("full.py", FULL, r"  before the optimizer is made: model = peft.get_peft_model\(model,.*"),
            ("axolotl.yaml", AXOLOTL, r"  gradient_checkpointing: true"),
            ("factory.yaml", FACTORY, r"  finetuning_type: lora"),
        ]
    ),
)
def test_what_to_change_is_written_as_the_file_writes_it(tmp_path: Path, name: str, text: str, line: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "requirements.txt").write_text("transformers==4.57.1\ntrl==0.24.0\npeft==0.17.1\n")
    run = kb(tmp_path / name, "--gpu", "rtx-4090", "--lang", "en", module="kb.plan")
    steps, _, changes = run.stdout.partition("Settings to change")
    assert "finetuning_type" not in text or "finetuning_type full → lora" in steps
    lines = changes.splitlines()
    assert [each for each in lines if re.fullmatch(line, each)], run.stdout
    assert not re.search(r"\b(training|data|quantization)\.\w+", run.stdout)


def test_check_names_the_command_that_makes_a_run_fit(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SHELL)
    found = kb(tmp_path / "train.sh", "--gpu", "rtx-4090", "--lang", "en", module="kb.check").stdout
    said = "".join(found.split())  # a long path is broken over lines
    assert f"Steps that make it fit: kb plan {tmp_path}/train.sh --gpu rtx-4090".replace(" ", "") in said
    (tmp_path / "train.sh").write_text(SHELL.replace("size 64", "size 1"))
    found = kb(tmp_path / "train.sh", "--gpu", "h200", "--lang", "en", module="kb.check").stdout
    assert "kb plan" not in found and "fits" in found


def test_a_training_loops_plan_names_the_line_and_what_to_write_there(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    run = kb(path, "--gpu", "rtx-3090", module="kb.plan")
    settings = run.stdout.partition("Settings to change\n")[2]
    assert "line 7: ROWS = 4 # was 32" in settings
    assert "line 16: gradient_accumulation_steps (ROUNDS): 4 → 32" in settings
    assert "line 12: an optimizer of 8 bits" in settings and "gradient_checkpointing_enable()" in settings
    assert "optim=" not in settings and "batch_size=" not in settings
