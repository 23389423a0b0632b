"""A program or a config is predicted on as many GPUs, and sharded, as the project's scripts start it."""

from pathlib import Path

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.question import Question
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.session.around import Checking
from kb.session.file import FileChecker
from kb.session.lookups import LOOKUPS, still
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult, Input, check_input

TRAIN = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args, train_dataset=load()).train()
"""
CONFIG = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\nbf16: true\nmax_length: 512\n"
FSDP = "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_version: 1}\n"
SHARDED = "accelerate launch --config_file fsdp.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sft.yaml").write_text(CONFIG)
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checker(catalog: Catalog | None = None, **options: object) -> FileChecker:
    """Of models of two layers, but where it is looked at whether a run fits."""
    question = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16")
    return file_checker(catalog or shallow_catalog(), Project(**options), question, Checking(notes=False))


def result_of(path: str, ready: FileChecker) -> UnitResult:
    found = check_input(Input(path), ready)
    assert isinstance(found, FileResult)
    return found.results[0]


def gpus(result: UnitResult) -> int:
    assert result.setup is not None
    return result.setup.world_size


def peak(result: UnitResult) -> int:
    assert result.prediction is not None
    return max(phase.peak_allocated_bytes for phase in result.prediction.phases)


def told(result: UnitResult) -> set[str]:
    return {finding.rule for finding in result.findings if finding.certainty == "certain"}


def test_alone_it_runs_on_one_gpu(project: Path) -> None:
    result = result_of("train.py", checker(load_catalog()))
    assert gpus(result) == 1
    assert "training-peak-exceeds-gpu" in told(result)


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("train.py", f"{SHARDED} train.py\n"),
        ("train.py", f"cd $HOME/project\n{SHARDED} ./train.py > log 2>&1\n"),
        ("sft.yaml", f"{SHARDED} -m trl.scripts.sft --config sft.yaml\n"),
    ],
)
def test_of_a_sharded_run_each_gpu_is_told_of(project: Path, path: str, script: str) -> None:
    (project / "run.sh").write_text(script)
    result = result_of(path, checker())
    assert gpus(result) == 4
    assert result.setup is not None
    assert result.setup.fsdp
    assert (result.unit.dialect == "trl") == (path == "sft.yaml")  # by the program that reads it, not by its keys
    peak = [finding for finding in result.findings if finding.rule == "training-peak-exceeds-gpu"]
    assert all(finding.facts["batch.gpus"] == 4 for finding in peak)
    assert all(finding.span.end > 0 for finding in result.findings)  # none about what the script says


@pytest.mark.parametrize(
    "script",
    [
        f"{SHARDED} other/train.py\n",  # another program
        f"# {SHARDED} train.py\n",
        "python train.py\n",
    ],
)
def test_what_starts_something_else_says_nothing(project: Path, script: str) -> None:
    (project / "run.sh").write_text(script)
    result = result_of("train.py", checker(load_catalog()))
    assert gpus(result) == 1
    assert "training-peak-exceeds-gpu" in told(result)


def test_started_in_two_ways_nothing_is_certain(project: Path) -> None:
    (project / "run.sh").write_text(f"{SHARDED} train.py\npython train.py\n")
    assert "training-peak-exceeds-gpu" not in told(result_of("train.py", checker(load_catalog())))


@pytest.mark.parametrize("file", ["run.sh", "README.md"])
def test_beside_programs_of_several_gpus_nothing_is_certain(project: Path, file: str) -> None:
    (project / "dpo.py").write_text(TRAIN)
    (project / file).write_text("torchrun --nproc_per_node 2 \\\n  dpo.py --batch 1\n")
    result = result_of("train.py", checker(load_catalog()))
    assert [each.severity for each in result.findings if each.rule == "training-peak-exceeds-gpu"] == ["warning"]
    (project / file).write_text("torchrun --nproc_per_node 1 dpo.py\ntorchrun --nproc_per_node 2 other.py\n")
    assert "training-peak-exceeds-gpu" in told(result_of("train.py", checker(load_catalog())))


def test_the_projects_own_word_counts_more(project: Path) -> None:
    (project / "run.sh").write_text(f"{SHARDED} train.py\n")
    assert gpus(result_of("train.py", checker(facts={"launch.launcher": "python"}))) == 1


def test_the_answer_is_not_kept_where_a_script_changed(project: Path) -> None:
    (project / "run.sh").write_text(f"{SHARDED} train.py\n")
    ready = checker()
    result_of("train.py", ready)
    rows = ready.seen.take()
    assert still(rows, LOOKUPS | checker().lookups)
    (project / "run.sh").write_text("python train.py\n")
    assert not still(rows, LOOKUPS | checker().lookups)


@pytest.fixture
def twice(project: Path) -> Path:
    for folder in ("one", "two"):
        (project / folder).mkdir()
        (project / folder / "train.py").write_text(TRAIN)
        (project / folder / "sft.yaml").write_text(CONFIG)
        (project / folder / "fsdp.yaml").write_text(FSDP)
    for each in ("train.py", "sft.yaml"):
        (project / each).unlink()
    return project


@pytest.mark.parametrize("path", ["train.py", "sft.yaml"])
@pytest.mark.parametrize(
    ("script", "command", "started"),
    [
        ("two/run.sh", "{}", {"two"}),
        ("two/scripts/run.sh", "cd ..\n{}", {"two"}),
        ("one/run.sh", "{above}", {"two"}),
        ("run.sh", "cd two\n{}", {"two"}),
        ("run.sh", "cd two && {}", {"two"}),
        ("run.sh", "(cd one && ls)\ncd two; {}", {"two"}),
        ("run.sh", "cd one/..\npushd two\n{}", {"two"}),
        ("run.sh", "cd $HERE/two\n{}", {"two"}),
        ("run.sh", 'cd "$(dirname "$0")/two"\n{}', {"two"}),
        ("run.sh", 'HERE="$(cd "$(dirname "$0")" && pwd)"\ncd two\n{}', {"two"}),
        ("jobs/run.sh", "cd two\n{}", {"two"}),
        ("run.sh", "(cd two && ls)\n{}", set()),  # which one is not told
        ("run.sh", "# cd two\n{}", set()),
        ("run.sh", "cd two\ncd -\n{}", set()),
        ("run.sh", "cd $THERE\n{}", set()),
        ("run.sh", "cd $HOME/project\n{below}", {"two"}),
        ("run.sh", "pushd one; ls; popd; {}", set()),
        ("run.sh", "cd gone; {}", set()),
        ("run.sh", "prep() {{ cd one; }}\n{}", set()),
        ("run.sh", "for d in one two; do (cd two && {}); done", {"two"}),
        ("run.sh", "cd /workspace/two\n{}", {"two"}),
        ("run.sh", "cd one\n{below}", {"two"}),
    ],
)
def test_a_script_starts_what_lies_beside_it_not_what_has_the_same_name(
    twice: Path, path: str, script: str, command: str, started: set[str]
) -> None:
    def start(named: str) -> str:
        return f"{SHARDED} {named}" if path == "train.py" else f"{SHARDED} -m trl.scripts.sft --config {named}"

    (twice / script).parent.mkdir(exist_ok=True)
    (twice / script).write_text(
        command.format(start(path), above=start(f"../two/{path}"), below=start(f"two/{path}")) + "\n"
    )
    ready = checker()
    assert {folder for folder in ("one", "two") if gpus(result_of(f"{folder}/{path}", ready)) == 4} == started


def test_the_answer_is_not_kept_where_a_file_of_the_same_name_came(twice: Path) -> None:
    (twice / "two" / "train.py").unlink()
    (twice / "run.sh").write_text(f"{SHARDED} train.py\n")
    ready = checker()
    assert gpus(result_of("one/train.py", ready)) == 4
    rows = ready.seen.take()
    assert still(rows, LOOKUPS | checker().lookups)
    (twice / "two" / "train.py").write_text(TRAIN)
    assert not still(rows, LOOKUPS | checker().lookups)
    assert gpus(result_of("one/train.py", checker())) == 1


FULL = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\ntorch_dtype: float32\nbf16: false\nmax_length: 1024\n"
    "per_device_train_batch_size: 64\ngradient_checkpointing: false\n"
)
IN_HALF = "accelerate launch --num_processes 1 --mixed_precision bf16 -m trl.scripts.sft --config full.yaml\n"


def test_a_config_is_told_of_in_the_precision_that_it_is_started_in(project: Path) -> None:
    (project / "full.yaml").write_text(FULL)
    alone = peak(result_of("full.yaml", checker()))
    (project / "run.sh").write_text(IN_HALF)
    assert peak(result_of("full.yaml", checker())) == peak(result_of("run.sh", checker())) != alone


def test_in_several_precisions_none_is_known(project: Path) -> None:
    (project / "full.yaml").write_text(FULL)
    (project / "run.sh").write_text(IN_HALF + IN_HALF.replace("bf16", "no"))
    result = result_of("full.yaml", checker())
    assert (result.prediction, result.note) == (None, "several_ways")
    assert result.note_values == {"settings": "--mixed_precision"}


def test_started_in_two_ways_it_is_said_so(project: Path) -> None:
    (project / "run.sh").write_text(f"{SHARDED} train.py\n")
    (project / "alone.sh").write_text("python train.py\n")
    result = result_of("train.py", checker())
    assert (result.note, result.note_values) == ("several_ways", {"settings": "--config_file"})


def test_a_programs_own_default_that_a_script_gives_otherwise_is_not_the_runs(project: Path) -> None:
    flag = 'p = __import__("argparse").ArgumentParser()\np.add_argument("--accum", type=int, default=4)\n'
    flag += 'p.add_argument("--lr", type=float, default=1e-5)\na = p.parse_args()\n'
    taken = TRAIN.replace("bf16=True", "gradient_accumulation_steps=a.accum, learning_rate=a.lr")
    (project / "train.py").write_text(flag + taken)
    run = "torchrun --nproc_per_node 7 train.py --accum {}\n"
    for given, batch in (((4,), 28), ((3,), 21), (("$ACCUM",), None), ((3, 4), None)):
        (project / "run.sh").write_text("".join(map(run.format, given)))
        result = result_of("train.py", checker())
        assert result.setup is not None
        assert (result.setup.effective_batch_size if result.setup.batch_known else None) == batch
    assert result.note == "several_ways"


def test_a_script_is_read_once_for_all_configs_that_it_names(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kb.config.shell import command

    read, reads = command.read_shell, list[str]()
    monkeypatch.setattr(command, "read_shell", lambda text, path, *rest: reads.append(path) or read(text, path, *rest))
    names = [f"sft{number}.yaml" for number in range(3)]
    for name in names:
        (project / name).write_text(CONFIG)
    (project / "run.sh").write_text("".join(f"{SHARDED} -m trl.scripts.sft --config {name}\n" for name in names))
    ready = checker()
    assert [gpus(result_of(name, ready)) for name in names] == [4, 4, 4]
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("config", "launched", "stage"),
    [
        ("distributed_type: DEEPSPEED\nnum_processes: 4\n", SHARDED.replace("fsdp", "ds"), 2),
        ("distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 1}\n", SHARDED, 1),
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", SHARDED, 0),
        ("", "accelerate launch --use_deepspeed --num_processes 4", 2),
    ],
)
def test_deepspeed_of_accelerate_is_of_stage_two_where_nothing_says_one(
    project: Path, config: str, launched: str, stage: int
) -> None:
    (project / "ds.yaml").write_text(config)
    (project / "run.sh").write_text(launched.replace("fsdp.yaml", "ds.yaml") + " train.py\n")
    setup = result_of("train.py", checker()).setup
    assert setup is not None and setup.zero_stage == stage
    assumed = {each.name: each.value for each in setup.assumed}
    assert assumed.get("deepspeed.zero_stage") == (2 if stage == 2 else None)


README = "# Training\n\nDon't run it on one GPU:\n\n```yaml\nnum: 1\n```\n\n```bash\n$ {} sft.yaml\n```\n"
TRL = "-m trl.scripts.sft --config"


def test_a_readme_says_how_a_config_is_started(project: Path) -> None:
    (project / "README.md").write_text(README.format(f"{SHARDED} {TRL}"))
    ready = checker()
    result = result_of("sft.yaml", ready)
    assert gpus(result) == 4
    assert result.unit.settings["launch.num_processes"].joined == "fsdp.yaml"
    rows = ready.seen.take()
    (project / "README.md").write_text("")
    assert not still(rows, LOOKUPS | checker().lookups)


def test_a_readme_that_tells_of_several_ways_leaves_the_run_as_it_is(project: Path) -> None:
    text = README.format(f"{SHARDED} {TRL}") + README.format(f"python {TRL}")
    (project / "README.md").write_text(text)
    assert gpus(result_of("sft.yaml", checker())) == 1


def test_a_script_counts_before_the_readme(project: Path) -> None:
    (project / "README.md").write_text(README.format(f"{SHARDED} {TRL}"))
    (project / "run.sh").write_text(f"accelerate launch --num_processes 2 {TRL} sft.yaml\n")
    assert gpus(result_of("sft.yaml", checker())) == 2


def test_what_starts_a_run_counts_before_a_comment_in_its_head(project: Path) -> None:
    (project / "sft.yaml").write_text(f"# for a node of 8 x H100\n{CONFIG}")
    assert result_of("sft.yaml", checker()).note == "gpus_not_counted"
    (project / "run.sh").write_text(f"{SHARDED} {TRL} sft.yaml\n")
    assert gpus(result_of("sft.yaml", checker())) == 4
    assert gpus(result_of("run.sh", checker())) == 4


def test_the_commands_of_a_readme_are_checked_where_it_is_named(project: Path) -> None:
    text = README.format(f"{SHARDED} {TRL}")
    (project / "README.md").write_text(text)
    result = result_of("README.md", checker())
    assert gpus(result) == 4
    assert text.splitlines()[result.unit.span.line - 1].startswith("$ accelerate launch")


def test_which_file_starts_a_post_training_run_is_said(project: Path) -> None:
    (project / "sft.yaml").write_text(f"{CONFIG}beta: 0.1\n")
    (project / "README.md").write_text(README.format("python scripts/align.py"))
    result = result_of("sft.yaml", checker())
    assert (result.note, result.note_values["script"]) == ("preference_not_predicted", "README.md")


STARTED = "torchrun --nproc_per_node=4 -m trl.scripts.sft --config sft.yaml"


@pytest.mark.parametrize(
    "text",
    [
        f"```bash\n# {STARTED}\n```\n",  # a comment
        f"```bash\n{STARTED}\n```\nOn one GPU: `python -m trl.scripts.sft --config sft.yaml`.\n",
        f"<!--\n```bash\n{STARTED}\n```\n-->\n",
        f"```bash\ngit clone https://example.org/other && cd other\n{STARTED}\n```\n",  # another project's
        f"```python\n{STARTED}\n```\n",
        f"```console\n$ cat out.txt\n{STARTED}\n```\n",  # what a command printed
    ],
)
def test_what_only_looks_like_a_start_is_none(project: Path, text: str) -> None:
    (project / "README.md").write_text(text)
    assert gpus(result_of("sft.yaml", checker())) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"1. ~~~sh\n   {STARTED}\n   ~~~\nThat's all\n",
        f"```bash\n# don't forget\n{STARTED}\n```\n",
        f"```bash\n(cd data && make)\n{STARTED}\ncd results && ls\n```\n",
        f"```text\nIt isn't done\n```\n> ```\n> {STARTED}\n> ```\n",
    ],
)
def test_a_start_is_found_in_blocks_of_every_form(project: Path, text: str) -> None:
    (project / "README.md").write_text(text)
    result = result_of("sft.yaml", checker())
    assert gpus(result) == 4
    assert "training-peak-exceeds-gpu" not in told(result)  # a README tells how its author runs it


def test_a_fix_in_a_readme_changes_the_command_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "python train.py --model_name_or_path google/mt5-base --fp16 True --bf16 False --do_train --output_dir o"
    (project / "README.md").write_text(f"It's so:\n\n```bash\n$ {command}\n```\n")
    from kb.commands.check import main

    main(["README.md", "--fix", "--gpu", "rtx-3090"])
    changed = command.replace("--fp16 True --bf16 False", "--fp16 False --bf16 True")
    assert (project / "README.md").read_text() == f"It's so:\n\n```bash\n$ {changed}\n```\n", capsys.readouterr().out


def test_a_config_is_sharded_by_the_file_that_its_command_names(project: Path) -> None:
    command = "torchrun --nproc_per_node=4 train_it.py sft.yaml --deepspeed zero3.json\n"
    (project / "run.sh").write_text(command)
    assert "training.deepspeed" in {each.name for each in result_of("sft.yaml", checker(load_catalog())).if_so}
    (project / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    setup = result_of("sft.yaml", checker()).setup
    assert setup is not None
    assert (setup.zero_stage, setup.world_size) == (3, 4)
