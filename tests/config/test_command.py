"""Command lines: flags to settings, with the place of each."""

import pytest

from config_sample import DIALECTS, EVENTS, FACTS
from kb.config.shell.command import PROCESSES, CommandReader
from kb.config.shell.flags import read_value
from kb.core.document import Unit
from kb.core.expression import is_unknown

READER = CommandReader(DIALECTS, FACTS)


def read(text: str) -> Unit:
    unit = READER.read(text)
    assert unit is not None
    return unit


def values(text: str) -> dict[str, object]:
    return {name: setting.value for name, setting in read(text).settings.items()}


def test_an_inference_command_gives_its_batch_and_beams_at_their_places() -> None:
    text = "python x.py --batch_size 16 --num_beams 5"
    unit = read(text)
    batch, beams = unit.settings["inference.batch_size"], unit.settings["inference.num_beams"]
    assert (batch.value, beams.value) == (16, 5)
    assert (batch.span.line, batch.span.column) == (1, 26)
    assert text[beams.span.start : beams.span.end] == "5"
    assert text[beams.key_span.start : beams.key_span.end] == "--num_beams"
    assert unit.dialect == "command"


def test_a_training_command_is_read_by_the_flags_of_the_trainer() -> None:
    unit = read(
        "python run_summarization.py --per_device_train_batch_size 8 --num_beams 4 --learning_rate 5e-5 --do_train"
    )
    assert unit.dialect == "hf"
    assert {name: setting.value for name, setting in unit.settings.items()} == {
        "training.per_device_train_batch_size": 8,
        "training.generation_num_beams": 4,
        "training.learning_rate": 5e-5,
        "training.do_train": True,
        PROCESSES: 1,
    }


def test_flags_alone_will_do() -> None:
    assert values("--batch_size 4 --tf32") == {"inference.batch_size": 4, "training.tf32": True}


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("--fp16", True),
        ("--fp16 True", True),
        ("--fp16=true", True),
        ("--fp16 no", False),
        ("--no_fp16", False),
        ("--no-fp16", False),
        ("--fp16 config.yaml", True),
        ("--fp16 --bf16", True),
    ],
)
def test_switches_are_read_in_every_spelling(flags: str, value: bool) -> None:
    assert values(f"python x.py {flags}")["training.fp16"] is value


def test_a_flag_that_begins_with_no_is_itself() -> None:
    assert values("python x.py --no_repeat_ngram_size 3") == {"generation.no_repeat_ngram_size": 3}


@pytest.mark.parametrize("flag", ["--batch_size=16", "--batch-size 16", "--batch_size '16'", '--batch_size="16"'])
def test_a_value_is_read_joined_dashed_or_quoted(flag: str) -> None:
    assert values(f"python x.py {flag}") == {"inference.batch_size": 16}


def test_a_joined_value_has_its_own_place() -> None:
    text = "python x.py --model_name='google/mt5-base'"
    setting = read(text).settings["model.name"]
    assert text[setting.span.start : setting.span.end] == "'google/mt5-base'"
    assert setting.value == "google/mt5-base"


@pytest.mark.parametrize("flags", ["q v wi_0", "q,v,wi_0"])
def test_a_list_is_words_or_parted_by_commas(flags: str) -> None:
    assert values(f"python x.py --lora_target_modules {flags} --fp16")["lora.target_modules"] == ("q", "v", "wi_0")


def test_a_negative_number_is_no_flag() -> None:
    assert values("python x.py --max_steps -1")["training.max_steps"] == -1


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("torchrun --nproc_per_node 4 t.py --fp16", 4),
        ("torchrun --nproc-per-node=4 --nnodes 2 t.py --fp16", 8),
        ("accelerate launch --num_processes 8 --mixed_precision bf16 t.py --fp16", 8),
        ("deepspeed --num_gpus 2 t.py --fp16", 2),
        ("python -m torch.distributed.run --nproc_per_node 2 -m pkg.train --fp16", 2),
        ("uv run torchrun --nproc_per_node 2 t.py --fp16", 2),
        ("python t.py --fp16", None),
    ],
)
def test_the_launcher_says_how_many_processes_there_are(command: str, processes: int | None) -> None:
    found = values(command)
    assert found.get(PROCESSES) == processes
    assert found["training.fp16"] is True


def test_a_launchers_own_flags_are_no_settings() -> None:
    found = values("accelerate launch --num_processes 1 --dynamo_backend no --fp16 t.py --bf16")
    assert found == {"training.bf16": True, PROCESSES: 1}


@pytest.mark.parametrize("command", ["python -c 'print(1)' --fp16", "", "echo hello", "python t.py rows.csv"])
def test_what_has_no_flags_to_read_is_none(command: str) -> None:
    assert READER.read(command) is None


def test_a_value_that_only_a_run_can_tell_is_unknown() -> None:
    setting = read("python x.py --batch_size $BATCH").settings["inference.batch_size"]
    assert is_unknown(setting.value)
    assert setting.value.needs == {"inference.batch_size"}


def test_the_last_of_a_repeated_flag_counts_and_is_told() -> None:
    unit = read("python x.py --batch_size 8 --tf32 --batch_size 4")
    assert unit.settings["inference.batch_size"].value == 4
    (event,) = unit.events
    assert event.kind == "duplicate-key"
    assert event.values == {"key": "--batch_size", "first_line": 1, "used": "4", "dropped": "8"}


def test_names_that_a_program_of_its_own_is_given_one_by_one_are_a_list() -> None:
    assert not read("python evaluate.py --model a --model b --batch_size 8").events


def test_a_misspelt_flag_is_told_with_the_right_one() -> None:
    text = "python x.py --per_device_train_batchsize 4 --do_train"
    (event,) = read(text).events
    assert (event.kind, event.values["meant"]) == ("unknown-key", "--per_device_train_batch_size")
    assert text[event.span.start : event.span.end] == "--per_device_train_batchsize"
    assert [edit.value for edit in event.edits] == ["--per_device_train_batch_size"]


def test_a_flag_of_the_scripts_own_is_no_slip() -> None:
    assert read("python x.py --fp16 --ensemble_method soft_voting --use_solar_api").events == ()


@pytest.mark.parametrize(
    ("flags", "kind"),
    [("--batch_size many", "wrong-type"), ("--batch_size 1.5", "wrong-type"), ("--batch_size", "wrong-type")],
)
def test_a_value_of_the_wrong_type_or_none_is_told(flags: str, kind: str) -> None:
    (event,) = read(f"python x.py {flags}").events
    assert (event.kind, event.values["want"]) == (kind, "integer")


def test_a_bare_flag_that_the_library_wants_a_text_for_is_a_switch_of_the_programs_own() -> None:
    for command in (
        "python infer.py --model gpt2 --batch_size 8 --max_new_tokens 9",
        "python train.py --model_name_or_path gpt2 --do_train --num_train_epochs 3",
    ):
        assert read(f"{command} --debug").events == ()
    for command in ("run_clm.py --model_name_or_path gpt2 --do_train --debug", "eval.py --model_name_or_path"):
        (event,) = read(f"python {command}").events
        assert event.kind == "wrong-type"


def test_a_class_is_no_model() -> None:
    assert "model.name" not in values("python x.py --model_name RobertaForQuestionAnswering --do_train")
    assert values("python x.py --model_name klue/roberta-large --do_train")["model.name"] == "klue/roberta-large"


def test_an_old_name_counts_for_the_new_one() -> None:
    assert values("python x.py --evaluation_strategy epoch --do_train")["training.eval_strategy"] == "epoch"


def test_events_carry_the_values_that_the_vocabulary_promises() -> None:
    unit = read("python x.py --batch_size 8 --batch_size x --no_repeat_ngram_sise 2")
    assert len(unit.events) == 3
    for event in unit.events:
        assert set(event.values) == set(EVENTS[event.kind]["values"])


@pytest.mark.parametrize(
    ("flags", "dialect", "setting"),
    [
        ("--batch_size 16 --fp16", "command-training", "training.per_device_train_batch_size"),
        ("--batch_size 16 --learning_rate 1e-4", "command-training", "training.per_device_train_batch_size"),
        ("--batch-size 16 --epochs 3 --num_beams 4", "command-training", "training.per_device_train_batch_size"),
        ("--batch_size 16 --bf16 --num_train_epochs 3", "command-training", "training.per_device_train_batch_size"),
        ("--train_batch_size 16 --lr 1e-4", "command-training", "training.per_device_train_batch_size"),
        ("--batch_size 16 --fp16 --num_beams 4", "command", "inference.batch_size"),
        ("--batch_size 16 --fp16 --do_predict", "command", "inference.batch_size"),
        ("--batch_size 16", "command", "inference.batch_size"),
        ("--inference_batch_size 16 --learning_rate 1e-4", "command", "inference.batch_size"),
    ],
)
def test_a_bare_batch_size_is_that_of_training_where_the_flags_are(flags: str, dialect: str, setting: str) -> None:
    unit = read(f"python t.py {flags}")
    assert unit.dialect == dialect
    assert unit.settings[setting].value == 16
    assert not {"inference.batch_size", "training.per_device_train_batch_size"} - {setting} & unit.settings.keys()


@pytest.mark.parametrize("flag", ["model_id", "pretrained_model_name_or_path", "base_model", "model"])
def test_a_training_command_names_its_model_in_one_of_the_usual_ways(flag: str) -> None:
    unit = read(f"python train.py --{flag} org/model --batch_size 16 --lr 1e-4 --epoch 3")
    assert unit.settings["model.name"].value == "org/model"
    assert unit.settings["training.num_train_epochs"].value == 3


def test_the_trainers_own_batch_leaves_a_bare_one_aside() -> None:
    unit = read("python t.py --per_device_train_batch_size 4 --batch_size 16 --learning_rate 1e-4")
    assert unit.dialect == "hf"
    assert unit.settings["training.per_device_train_batch_size"].value == 4


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("python train.py --fp16", "python"),
        ("torchrun --nproc_per_node 2 train.py --fp16", "torchrun"),
        ("python -m torch.distributed.run train.py --fp16", "torchrun"),
        ("accelerate launch train.py --fp16", "accelerate"),
        ("deepspeed --num_gpus 2 train.py --fp16", "deepspeed"),
        ("srun python train.py --fp16", None),
        ("CUDA_VISIBLE_DEVICES=0 python train.py --fp16", None),  # one process need not mean all GPUs
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py --fp16", "torchrun"),
        ("--fp16 --batch_size 4", None),
    ],
)
def test_what_starts_the_script_is_known_unless_a_wrapper_may_start_several(command: str, launcher: str | None) -> None:
    assert read(command).launcher == launcher


def test_the_switches_of_accelerate_launch_are_settings_at_their_places() -> None:
    text = "accelerate launch --multi_gpu --num_processes 2 --use_fsdp train.py --use_deepspeed --bf16"
    settings = read(text).settings
    assert {name for name in settings if name.startswith("launch.")} == {
        "launch.multi_gpu",
        "launch.use_fsdp",
        "launch.num_processes",
    }
    assert text[settings["launch.use_fsdp"].span.start :].startswith("--use_fsdp")


@pytest.mark.parametrize(
    ("again", "told"),
    [("--bf16 false", True), ("--bf16", False), ('--bf16 "$X"', False), ("--seed 2", True), ("--seed 1", True)],
)
def test_a_flag_given_twice_is_told_where_its_values_are_known(again: str, told: bool) -> None:
    unit = read(f"python t.py --do_train --output_dir o --seed 1 --bf16 {again}")
    assert any(event.kind == "duplicate-key" for event in unit.events) is told


def test_what_accelerate_launch_says_of_fsdp_is_read() -> None:
    settings = read(
        "accelerate launch --use_fsdp --fsdp_version 1 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
        "--fsdp_offload_params true train.py --bf16"
    ).settings
    said = {name: each.value for name, each in settings.items() if name.startswith("accelerate.")}
    assert said == {
        "accelerate.fsdp_version": 1,
        "accelerate.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "accelerate.fsdp_offload_params": True,
    }


def test_a_json_object_says_the_settings_inside_of_it_and_nothing_there_is_mended() -> None:
    text = "python t.py --bf16 --do_train --output_dir o --gradient_checkpointing_kwargs '{\"use_reentrant\": false}'"
    setting = read(text).settings["training.gradient_checkpointing_kwargs.use_reentrant"]
    assert setting.value is False
    assert setting.inherited
    broken = text.replace("false}", "false")
    assert "training.gradient_checkpointing_kwargs.use_reentrant" not in read(broken).settings


@pytest.mark.parametrize("program", ["dpo.py", "-m dpo", "-m train.run_dpo", "scripts/train_dpo.py"])
def test_a_module_says_its_trainer_as_its_file_does(program: str) -> None:
    unit = read(f"torchrun --nproc_per_node 8 {program} --model_name_or_path x --max_length 8192 --bf16")
    assert unit.settings["script.trainer"].value == "dpo"


def test_the_flags_of_a_trl_script_are_read_as_trls() -> None:
    unit = read("python grpo.py --model_name_or_path x --num_generations 8 --max_completion_length 256 --bf16")
    assert unit.dialect == "trl"
    assert unit.settings["trl.num_generations"].value == 8


@pytest.mark.parametrize(
    "text", ["1_000", "８", " 8 ", "+4", "inf", "1e-4", ".5", "5.", "1e999", "0x10", "8.0", "1__0", "²"]
)
def test_a_number_is_what_argparse_makes_of_it(text: str) -> None:
    for kind, convert in (("integer", int), ("number", float)):
        try:
            wanted = convert(text)
        except ValueError:
            wanted = None
        assert read_value(text, kind) == wanted
