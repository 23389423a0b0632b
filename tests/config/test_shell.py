"""Shell scripts: every Python run in one, variables where they are plain, and faults of line joining mended."""

import subprocess
from pathlib import Path

import pytest

from config_sample import DIALECTS, EVENTS, FACTS
from kb.config.fixing.fixes import Fixer, Request
from kb.config.shell.command import PROCESSES, RUN_CONFIG, CommandReader, read_shell
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.finding import Fix
from kb.core.text import Text

READER = CommandReader(DIALECTS, FACTS)
FAULTY = r"""python infer.py \
  --experiment_dir experiments/kfold \
  --batch_size 16 \           # ⭐ 최적
  --max_new_tokens 80 \       # 짧게 설정
  --num_beams 5 \
  --resume
"""


def read(text: str) -> tuple[Unit, ...]:
    return read_shell(text, "run.sh", READER)


def values(unit: Unit) -> dict[str, object]:
    return {name: setting.value for name, setting in unit.settings.items()}


def mend(text: str) -> str:
    unit = read(text)[0]
    requests = [
        Request(fix=Fix(safety="safe", title=Text("", ""), edits=event.edits), unit=unit, at=event.span, rule="r")
        for event in unit.events
        if event.edits
    ]
    result = Fixer(DIALECTS, FACTS).apply(text, "run.sh", requests, shell=True)
    assert result.refused == ()
    return result.text


def arguments_in_bash(script: str, tmp_path: Path) -> list[list[str]]:
    """What bash hands to each ``python`` of the script, with a program that writes its arguments down."""
    log = tmp_path / "log"
    stand_in = tmp_path / "python"
    stand_in.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >> {log}; printf "\\n" >> {log}\n')
    stand_in.chmod(0o755)
    file = tmp_path / "run.sh"
    file.write_text(script, encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", str(file)], env=environment, cwd=tmp_path, capture_output=True, check=False)
    lines = log.read_text(encoding="utf-8").split("\n")
    return [line.split("\0")[:-1] for line in lines if line]


def test_a_continued_command_is_one_run_with_places_in_the_file() -> None:
    (unit,) = read("#!/bin/bash\nset -e\npython x.py \\\n  --batch_size 16 \\\n  --num_beams 5\n")
    assert values(unit) == {"inference.batch_size": 16, "inference.num_beams": 5}
    assert (unit.span.line, unit.span.end_line, unit.section) == (3, 5, None)
    span = unit.settings["inference.num_beams"].span
    assert (span.line, span.column) == (5, 15)


def test_each_run_is_a_unit_named_after_its_script_and_line() -> None:
    units = read("python a.py --fp16\necho done\npython b.py --bf16\n")
    assert [unit.section for unit in units] == ["a.py:1", "b.py:3"]


def test_commands_that_set_nothing_known_are_left_out() -> None:
    assert read("pip install --upgrade pip\npython setup.py --quiet\npython -m venv --clear env\n") == ()


def test_environment_prefixes_wrappers_and_redirections_are_passed_over() -> None:
    (unit,) = read("CUDA_VISIBLE_DEVICES=1 nohup python -u x.py --batch_size 16 > run.log 2>&1 &\n")
    assert values(unit) == {"inference.batch_size": 16}


@pytest.mark.parametrize(
    ("script", "batch"),
    [
        ("BATCH=16\npython x.py --batch_size $BATCH", 16),
        ("export BATCH='16'\npython x.py --batch_size ${BATCH}", 16),
        ("python x.py --batch_size ${BATCH:-16}", 16),
        ("BATCH=8\npython x.py --batch_size ${BATCH:-16}", 8),
        ("A=1\nB=${A}6\npython x.py --batch_size=$B", 16),
        ("BATCH=8\nBATCH=16\npython x.py --batch_size $BATCH", 16),
        ('ARGS="--batch_size 16 --tf32"\npython x.py $ARGS', 16),
        ('args=(\n  --batch_size 16  # 배치\n  --tf32\n)\npython x.py "${args[@]}"', 16),
        ('args=(--tf32)\nargs+=(--batch_size 16)\npython x.py "${args[@]}"', 16),
        ("python x.py --batch_size $((8 * 2))", 16),
        ('A=3\nB=$(( (A + 1) * 8 / 2 ))\npython x.py --batch_size "$B"', 16),
        ("A=5\npython x.py --batch_size=$(($A % 3 + ${A} * 3 - 1))", 16),
        ("python x.py --batch_size $((-7 / 2 + 19))", 16),
        ("n=4\npython x.py --batch_size $(expr 64 / $n)", 16),
        ("n=4 nodes=2\npython x.py --batch_size $(expr $n \\* $nodes + 8)", 16),
        ('A=${A:-"--batch_size 16"}\npython x.py $A', 16),  # blanks of a quoted default part where the variable is used
        ("$PYTHON x.py --batch_size ${B:-'16'}", 16),
        ("$PYTHON -m pack.train --batch_size 16", 16),
        ('python x.py --batch_size 16 --note ${M:-"a --batch_size 8"}', 16),  # one word where it stands itself
    ],
)
def test_plain_variables_are_filled_in(script: str, batch: int) -> None:
    (unit,) = read(script + "\n")
    assert unit.settings["inference.batch_size"].value == batch


@pytest.mark.parametrize(
    "script",
    [
        "python x.py --batch_size $1",
        "python x.py --batch_size $(cat batch)",
        "python x.py --batch_size $(expr 64 / $UNKNOWN)",
        "python x.py --batch_size $(expr length word)",
        "python x.py --batch_size `cat batch`",
        "python x.py --batch_size $BATCH",
        "python x.py --batch_size $((NODES * 2))",
        "python x.py --batch_size \"${B:-'16'}\"",  # between double quotes the single ones belong to the value
        "N=08\npython x.py --batch_size $((N * 2))",
        "python x.py --batch_size $((8 / 0))",
        "python x.py --batch_size $((8 > 2))",
        "python x.py --batch_size $((2 ** 99999))",
        f"N={'9' * 5000}\npython x.py --batch_size $((N + 1))",  # more digits than Python makes a number of
        "BATCH=$(nproc)\npython x.py --batch_size $BATCH",
        'BATCH=8\nif [ -n "$BIG" ]; then BATCH=16; fi\npython x.py --batch_size $BATCH',
        "for BATCH in 8 16; do\n  python x.py --batch_size $BATCH\ndone",
        "BATCH=8\nread BATCH\npython x.py --batch_size $BATCH",
    ],
)
def test_what_only_a_run_can_tell_is_unknown(script: str) -> None:
    (unit,) = read(script + "\n")
    assert is_unknown(unit.settings["inference.batch_size"].value)


BRANCH = """\
MORE="--bf16 True"
LESS="--seed 1"
if [ "$BIG" = 1 ]; then MORE="$MORE --gradient-checkpointing"; fi
python run_clm.py --model_name_or_path gpt2 --output_dir o --per_device_train_batch_size 8 --do_train {}
"""


@pytest.mark.parametrize(
    ("end", "hidden"),
    [
        ("$MORE", ("training.gradient_checkpointing",)),
        ("${MORE[@]}", ("training.gradient_checkpointing",)),
        ("$MORE --bf16 False", ("training.gradient_checkpointing",)),
        ("$LESS", ()),
        ("$UNSET", ()),
    ],
)
def test_flags_in_a_variable_that_a_branch_sets_may_be_given(end: str, hidden: tuple[str, ...]) -> None:
    (unit,) = read(BRANCH.format(end))
    assert unit.hidden == unit.maybe == hidden
    assert ("training.bf16" in unit.settings) == ("MORE" in end)


def test_flags_of_an_array_that_a_branch_adds_to_may_be_given() -> None:
    array = 'A=(--fp16)\nif [ "$BIG" ]; then A+=(--optim adafactor); fi\nB=("${A[@]}" --tf32 True)\n'
    command = 'python run_clm.py --model_name_or_path gpt2 --output_dir o --do_train --learning_rate 1e-4 "${B[@]}"\n'
    (unit,) = read(array + command)
    assert ("training.optim" in unit.hidden, unit.settings["training.fp16"].value) == (True, True)


@pytest.mark.parametrize(
    "script",
    [
        'C=(vllm serve m --max-model-len 2048 --dtype half)\nif [ "$L" ]; then C+=({}); fi\nexec "${{C[@]}}"',
        'C="vllm serve m --max-model-len 2048 --dtype half"\n[ "$L" ] && C+=" {}"\neval "$C"',
        'C="vllm serve m --max-model-len 2048 --dtype half"\nif [ "$L" ]; then C="$C {}"; fi\n$C',
    ],
)
def test_a_command_that_a_branch_adds_to_is_known_but_for_what_is_added(script: str) -> None:
    (unit,) = read(script.format("--max-num-seqs 4") + "\n")
    assert {name: values(unit)[name] for name in ("serving.max_model_len", "model.name")} == {
        "serving.max_model_len": 2048,
        "model.name": "m",
    }
    assert "serving.max_num_seqs" in unit.hidden
    (unit,) = read(script.format("--max-model-len 4096") + "\n")
    assert is_unknown(unit.settings["serving.max_model_len"].value)


@pytest.mark.parametrize(
    "script",
    [
        'B=4\nif [ "$X" ]; then B=${B}8; fi\npython x.py --batch_size $B',
        'B=4\n[ "$X" ] && B+=8\npython x.py --batch_size $B',
        'A="--batch_size 4"\nif [ "$X" ]; then A+=0; fi\npython x.py $A --fp16',
        'A="--batch_size"\nif [ "$X" ]; then A="$A 8"; else A="$A 4"; fi\npython x.py $A --fp16',
        'A=(--batch_size)\nif [ "$X" ]; then A+=(8); else A+=(4); fi\npython x.py "${A[@]}" --fp16',
    ],
)
def test_what_a_branch_lengthens_is_unknown(script: str) -> None:
    (unit,) = read(script + "\n")
    found = unit.settings.get("inference.batch_size")
    assert "inference.batch_size" in unit.hidden if found is None else is_unknown(found.value)


def test_flags_of_a_launcher_that_a_branch_sets_may_be_given() -> None:
    branch = 'if [ "$ALL" ]; then L="--num_processes 4 --use_fsdp"; fi\naccelerate launch $L train.py '
    (unit,) = read(branch + "--model_name_or_path gpt2 --output_dir o --do_train --learning_rate 1e-4\n")
    assert unit.hidden == ("launch.use_fsdp",) and is_unknown(unit.settings[PROCESSES].value)


@pytest.mark.parametrize(
    "launch",
    [
        'if [ "$BIG" ]; then N="--nproc_per_node 8"; else N="--nproc_per_node 1"; fi\ntorchrun $N',
        'if [ "$BIG" ]; then N="--nnodes 4"; fi\ntorchrun --nproc-per-node 2 $N',
        'if [ "$BIG" ]; then N="--include localhost:0"; fi\ndeepspeed $N',
    ],
)
def test_processes_that_a_branch_counts_may_be_given(launch: str) -> None:
    (unit,) = read(launch + " run_clm.py --model_name_or_path gpt2 --output_dir o --do_train --learning_rate 1e-4\n")
    assert PROCESSES in unit.hidden and PROCESSES not in unit.settings


def test_a_config_that_a_branch_names_may_be_given() -> None:
    branch = 'if [ "$C" ]; then X="--config c.yaml"; fi\n'
    (unit,) = read(branch + "trl sft --model_name_or_path gpt2 --dataset_name d --output_dir o --max_length 512 $X\n")
    assert is_unknown(unit.settings[RUN_CONFIG].value)


def test_a_value_from_a_variable_stands_where_it_is_used_and_says_so() -> None:
    text = "BATCH=16\npython x.py --batch_size $BATCH\n"
    setting = read(text)[0].settings["inference.batch_size"]
    assert (text[setting.span.start : setting.span.end], setting.inherited) == ("$BATCH", True)


def test_flags_in_a_variable_stand_where_they_are_written() -> None:
    text = 'ARGS="--tf32 \\\n  --batch_size 16"\npython x.py $ARGS "$@"\n'
    setting = read(text)[0].settings["inference.batch_size"]
    assert (setting.span.line, text[setting.span.start : setting.span.end]) == (2, "16")


def test_here_documents_and_comments_hold_no_commands() -> None:
    script = "# python a.py --fp16\ncat <<EOF\npython b.py --fp16\nEOF\npython c.py --bf16\n"
    assert [values(unit) for unit in read(script)] == [{"training.bf16": True}]


def test_a_launcher_in_a_script_says_its_processes() -> None:
    (unit,) = read("NPROC=4\ntorchrun --nproc_per_node $NPROC t.py --per_device_train_batch_size 2 --do_train\n")
    assert unit.settings[PROCESSES].value == 4


def test_a_script_that_chooses_its_gpus_does_not_say_that_python_drives_all_of_them() -> None:
    (alone,) = read("python t.py --per_device_train_batch_size 2 --do_train\n")
    (chosen,) = read("export CUDA_VISIBLE_DEVICES=0\npython t.py --per_device_train_batch_size 2 --do_train\n")
    assert (alone.launcher, chosen.launcher) == ("python", None)


def test_the_fault_of_a_comment_after_the_backslash_is_what_bash_makes_of_it(tmp_path: Path) -> None:
    (broken,) = arguments_in_bash(FAULTY, tmp_path)
    assert broken[-2:] == ["16", " "]  # the rest of the flags never reaches the program


def test_a_comment_after_a_backslash_is_told_at_its_line_and_the_flags_read_as_meant() -> None:
    (unit,) = read(FAULTY)
    assert [(event.kind, event.span.line, event.span.column) for event in unit.events] == [
        ("comment-after-backslash", 3, 20),
        ("comment-after-backslash", 4, 24),
    ]
    assert values(unit)["inference.num_beams"] == 5
    assert all(set(event.values) == set(EVENTS[event.kind]["values"]) for event in unit.events)


def test_the_mended_script_hands_over_every_argument(tmp_path: Path) -> None:
    mended = mend(FAULTY)
    assert mended.startswith("# ⭐ 최적\n# 짧게 설정\npython infer.py \\\n")
    (arguments,) = arguments_in_bash(mended, tmp_path)
    expected = "infer.py --experiment_dir experiments/kfold --batch_size 16 --max_new_tokens 80 --num_beams 5 --resume"
    assert arguments == expected.split()
    assert read(mended)[0].events == ()
    assert values(read(mended)[0]) == values(read(FAULTY)[0])


@pytest.mark.parametrize(
    "script",
    [
        "python x.py \\\n  --batch_size 16 \\  \n  --num_beams 5\n",
        "python x.py \\\n  --batch_size 16 \\\n  # --fp16 \\\n  --num_beams 5\n",
        "if true; then\n  python x.py \\ # 첫 줄\n    --batch_size 16 \\\t# 둘째\n    --num_beams 5\nfi\n",
        "true && python x.py --batch_size 16 \\ # 배치\n  --num_beams 5\n",
        "python x.py --batch_size 16\\ # 배치\n  --num_beams 5\n",
    ],
)
def test_every_form_of_the_fault_is_mended(script: str, tmp_path: Path) -> None:
    kinds = {event.kind for event in read(script)[0].events}
    assert kinds <= {"comment-after-backslash", "space-after-backslash"} and kinds
    (arguments,) = arguments_in_bash(mend(script), tmp_path)
    assert arguments == ["x.py", "--batch_size", "16", "--num_beams", "5"]
    for comment in ("--fp16", "첫 줄", "둘째", "# 배치"):
        assert (comment in mend(script)) == (comment in script)


@pytest.mark.parametrize(
    "script",
    [
        "python x.py --model_name my\\ model --batch_size 16\n",
        "python x.py --batch_size 16 \\\n  --fp16  # the end\n",
        "python x.py --batch_size 16 \\\n  # --fp16 \\\n\necho done\n",
        "echo 'a \\ # b'\npython x.py --batch_size 16\n",
        "# a note \\ # of a kind\npython x.py --batch_size 16\n",
    ],
)
def test_sound_continuations_are_no_fault(script: str) -> None:
    assert [event.kind for unit in read(script) for event in unit.events] == []


def test_a_fault_of_another_command_is_told_too() -> None:
    (unit,) = read("docker run \\ # here\n  --gpus all image\npython x.py --fp16\n")
    assert [event.kind for event in unit.events] == ["comment-after-backslash"]


def test_a_script_of_faults_alone_is_a_unit_without_settings() -> None:
    (unit,) = read("docker run \\ # here\n  --gpus all image\n")
    assert (unit.dialect, dict(unit.settings), len(unit.events)) == (None, {}, 1)


@pytest.mark.parametrize(
    "script",
    [
        "python x.py --a '",
        'python x.py --a "',
        "python x.py --a ${",
        "python x.py --a $(",
        "cat <<EOF\nx",
        "((",
        "a=(" * 2000,
        "$(" * 2000,
        "python " + "\\ " * 5000,
        "\\\n#\n" * 5000,
        "`",
        "\\",
        "python x.py --fp16 \\ ",
        "X=ab\n" + "X=$X$X\n" * 99 + "python x.py --fp16 --output_dir $X",
        "X=ab\n" + "X+=$X\n" * 99 + "python x.py --fp16 --output_dir $X",
        "A=(--fp16)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 99 + 'python x.py "${A[@]}"',
        "A=(--fp16)\n" + 'A+=("${A[@]}")\n' * 99 + 'python x.py "${A[@]}"',
    ],
)
def test_text_that_is_hardly_shell_is_read_without_an_error(script: str) -> None:
    read(script)


EVALUATED = """\
data="--data_dir $DATA --seed 3"
args="--learning_rate 1e-4 --output_dir $OUT --prompt 'two words' --per_device_train_batch_size 4"
cmd="torchrun --nproc_per_node 2 train.py \\
    $data \\
    $args"
echo $cmd
eval $cmd
"""


def test_what_a_variable_of_several_words_holds_is_known_but_for_its_unknown_parts() -> None:
    (unit,) = read(EVALUATED)
    assert unit.settings["training.per_device_train_batch_size"].value == 4
    assert unit.settings["training.seed"].value == 3
    assert is_unknown(unit.settings["training.output_dir"].value)
    assert unit.settings[PROCESSES].value == 2


def test_one_unknown_word_stays_unknown() -> None:
    (unit,) = read("RATE=$BASE$MORE\npython train.py --learning_rate $RATE --seed 3\n")
    assert is_unknown(unit.settings["training.learning_rate"].value)


@pytest.mark.parametrize(
    ("script", "open_to_change"),
    [
        ("python x.py --batch_size ${BATCH:-16}", True),
        ("python x.py --batch_size=${BATCH:-16}", True),
        ("python x.py --batch_size ${BATCH-16}", True),
        ("BATCH=${BATCH:-16}\npython x.py --batch_size $BATCH", True),
        ('FLAGS="--batch_size ${BATCH:-16}"\npython x.py $FLAGS', True),
        ("FLAGS=(--batch_size ${BATCH:-16})\npython x.py ${FLAGS[@]}", True),
        ("BATCH=16\npython x.py --batch_size ${BATCH:-8}", False),
        ('NAME=${NAME:-a}\nFLAGS="--name $NAME --batch_size 16"\npython x.py $FLAGS', False),
        ('BATCH=${BATCH:-16}\nFLAGS="--seed 3"\nFLAGS="$FLAGS --batch_size $BATCH"\npython x.py $FLAGS', True),
        ('NAME=${NAME:-a}\nFLAGS="--name $NAME"\nFLAGS+=" --batch_size 16"\npython x.py $FLAGS', False),
        ("python x.py --batch_size 16 --name ${NAME:-a}", False),
    ],
)
def test_a_default_that_the_environment_may_change_is_marked(script: str, open_to_change: bool) -> None:
    (unit,) = read(script + "\n")
    found = unit.settings["inference.batch_size"]
    assert (found.value, found.by_default) == (16, open_to_change)


FLOW = r"""
B=2; [ -n "$1" ] && B=4; python x.py --seed 1 --batch_size $B
B=2; [ -n "$1" ] && { B=4; }; python x.py --seed 2 --batch_size $B
B=2; (B=4; python x.py --seed 3 --batch_size $B); python x.py --seed 4 --batch_size $B
B=2; unused() { B=4; python x.py --seed 5 --batch_size 8; }; python x.py --seed 6 --batch_size $B
train() { local B=4 name=${2:-16}; python x.py --seed 7 --batch_size "$1"; python x.py --seed 8 --batch_size $name; }
B=2; train 8; python x.py --seed 9 --batch_size $B
raise() { B=4; }; B=2; raise; python x.py --seed 10 --batch_size $B
twice() { python x.py --seed 11 --batch_size $B --max_new_tokens 5 $1; }; B=2; twice; B=4; twice --fp16
B=2; for each in a b; do python x.py --seed 12 --batch_size $B; B=$((B * 2)); done
B=2; ((B *= 2)); python x.py --seed 13 --batch_size $B
B=2; IFS=, read -r B C <<< "4,8"; python x.py --seed 14 --batch_size $B
B=2; printf -v B 4; python x.py --seed 15 --batch_size $B
A=(2 4); A[0]=8; python x.py --seed 16 --batch_size ${A[@]}
echo B=4 > more.sh; B=2; . ./more.sh; python x.py --seed 17 --batch_size $B
B=2; if [ -z "$1" ]; then B=4; python x.py --seed 18 --batch_size $B; fi; python x.py --seed 19 --batch_size $B
train=2; case "$1" in train) B=3 ;; *) B=5; python x.py --seed 20 --batch_size $B ;; esac
N=; python x.py --seed 21 --batch_size 4 $N --max_new_tokens 5
python x.py --seed 22 --batch_size {2..4}
python x.py --seed 23 --batch_size ${1:-4}
timeout 5 python x.py --seed 24 --batch_size 4
B="2 4"; python x.py --seed 25 --prefix ./$B --batch_size 8
first() { shift; python x.py --seed 28 --batch_size $1 --max_new_tokens "$@"; }; first 2 8 --fp16
set -- 16; python x.py --seed 29 --batch_size ${1:-4}; set --
save() { B=4; }; B=2; save | cat; python x.py --seed 30 --batch_size $B
B=2; { B=4; } | cat; python x.py --seed 31 --batch_size $B
shown() { python x.py --seed 32 --batch_size $B; }; B=2; B=4 shown
again() { python x.py --seed 33 --batch_size 4; return; python x.py --seed 34 --batch_size 4; }; again
again() { python x.py --seed 35 --batch_size 4; }
apart() (B=16; python x.py --seed 36 --batch_size 4); B=2; python x.py --seed 37 --batch_size $B
each() { while [ $# -gt 0 ]; do python x.py --seed 38 --batch_size $1; shift; done; }; each 4 8
early() { [ -z "$1" ] && return; B=8; }; B=4; early; python x.py --seed 39 --batch_size $B
echo B=8 > more.env; B=4; export $(cat more.env); python x.py --seed 40 --batch_size $B
B=4; eval "$(echo B=8)"; python x.py --seed 41 --batch_size $B
named() { local -n other=B; other=16; }; B=4; named; python x.py --seed 42 --batch_size $B
last() { exit; }; last | cat
false && exit; exit
python x.py --seed 26 --batch_size 2
"""
"""Each start has a seed of its own; which of them bash makes, and with which batch, is asked of bash."""
NOT_TOLD = {
    1,
    2,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    19,
    22,
    30,
    38,
    *range(39, 43),
}  # of these the reading says that only a run can tell


def test_what_is_read_of_a_script_is_what_bash_makes_of_it(tmp_path: Path) -> None:
    made: dict[int, set[int]] = {}
    for words in arguments_in_bash(FLOW, tmp_path):
        made.setdefault(int(words[2]), set()).add(int(words[words.index("--batch_size") + 1]))
    said = {unit.settings["training.seed"].value: unit.settings["inference.batch_size"].value for unit in read(FLOW)}
    assert said.keys() == made.keys() == {*range(1, 26), *range(28, 43)} - {5, 34, 35, 36}
    assert {seed for seed, batch in said.items() if is_unknown(batch)} == NOT_TOLD
    assert {seed: {batch} for seed, batch in said.items() if not is_unknown(batch)}.items() <= made.items()


def test_a_function_has_the_arguments_that_it_is_called_with() -> None:
    (unit,) = [unit for unit in read(FLOW) if unit.settings["training.seed"].value == 28]
    assert (unit.keys["max_new_tokens"].value, unit.keys["fp16"].value) == ("8", True)


def test_a_function_that_runs_twice_is_one_run_of_what_both_have_alike() -> None:
    (unit,) = [unit for unit in read(FLOW) if unit.settings["training.seed"].value == 11]
    assert is_unknown(unit.settings["inference.batch_size"].value)
    assert (unit.keys["max_new_tokens"].value, unit.maybe) == ("5", ("training.fp16",))


def test_a_word_that_looks_like_arguments_may_be_a_value() -> None:
    (unit,) = read("python x.py --model_name_or_path gpt2 --optim $OPTIMIZER --lora_target_modules $TARGETS --fp16\n")
    assert (unit.events, unit.settings["training.fp16"].value) == ((), True)
    assert is_unknown(unit.settings["training.optim"].value)


def test_a_backslash_that_ends_the_file_is_no_word() -> None:
    assert read("python x.py --batch_size 2 --lora_target_modules q v \\")[0].keys["lora_target_modules"].value == (
        "q",
        "v",
    )


def test_a_readme_is_typed_in_more_shells_than_one() -> None:
    text = "python x.py --batch_size 2\nexit\npython x.py --batch_size 4\n"
    assert [len(read_shell(text, name, READER)) for name in ("run.sh", "README.md")] == [1, 2]


RUN = "python -m trl.scripts.sft --per_device_train_batch_size"


@pytest.mark.parametrize(
    ("script", "batches"),
    [
        (f'BS=8\nbash -c "BS=2; ls"\n{RUN} $BS\n', [8]),  # that shell's own
        (f'bash -euo pipefail -xc "{RUN} 3; {RUN} 4"\n', [None]),  # one place, two runs of a program
        (f"BS=8\nsbatch -p gpu <<EOF\n#!/bin/bash\nBS=2\n{RUN} \\$BS\nEOF\n{RUN} $BS\n", [2, 8]),
        (f"BS=8\nbash <<'EOF'\n{RUN} $BS\nEOF\n", [None]),  # not exported
        (f"BS=8\nbash <<EOF\n{RUN} $BS\nEOF\n", [8]),  # the script fills it in
        (f"export BS=8\nsbatch --export=ALL,BS=4 <<'EOF'\n{RUN} $BS\nEOF\n", [None]),
        (f"BS=8\nBS=4 bash -c '{RUN} $BS'\n", [4]),
        (f"export BS=8\nbash -c '{RUN} $BS'\n", [8]),
        (f"BS=8\nsbatch -p gpu --wrap=\"{RUN} $BS\"\nsbatch --wrap '{RUN} 2' -p gpu\n", [8, 2]),
        (f"sbatch job.sh --wrap '{RUN} 2'\n{RUN} 4\n", [4]),  # an argument of job.sh
        (f"set -- 9\nbash -c '{RUN} $1' _ 3\n", [None]),
        (f"bash -c 'export BS=2'\nBS=8\nbash -c '{RUN} $BS'\n", [None]),  # exported there alone
        (f"echo bash -c '{RUN} 2'\n", []),
        (f"bash prepare.sh <<EOF\n{RUN} 2\nEOF\n{RUN} 4\n", [4]),  # what that script makes of it is not told
        (f"BS=8\ncat > $N.job <<EOF\n#!/bin/bash\nBS=2\n{RUN} \\$BS\nEOF\n{RUN} $BS\nsbatch $N.job\n", [2, 8]),
        (f"cat > a/b.sh <<EOF\n#!/bin/bash\n{RUN} 2\nEOF\ncat <<EOF\n#!/bin/bash\n{RUN} 4\nEOF\n{RUN} 8\n", [8]),
        (f"cat <<EOF >config.yaml\n{RUN} 2\nEOF\n{RUN} 4\n", [4]),  # no script
    ],
)
def test_a_shell_within_a_script_has_variables_of_its_own(script: str, batches: list[object]) -> None:
    found = [values(unit).get("training.per_device_train_batch_size") for unit in read(script)]
    assert [None if is_unknown(each) else each for each in found] == batches


def test_a_wrapped_job_has_its_own_machines_and_no_other_run_has_them() -> None:
    text = f"#SBATCH --gres=gpu:2\nsrun {RUN} 4\nsbatch --nodes=2 --ntasks-per-node=8 --wrap='srun {RUN} 2'\n"
    assert [values(unit).get("launch.num_processes") for unit in read(text)] == [1, 16]
    assert [values(unit).get("launch.num_processes") for unit in read(text.replace("sbatch", "X=1 sbatch"))] == [1, 16]
    typed = f"sbatch <<'EOF'\n#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8\nsrun {RUN} 4\nEOF\n"
    assert [values(unit).get("launch.num_processes") for unit in read(typed)] == [16]


@pytest.mark.parametrize(
    ("batch", "starts"),
    [
        (8, "|nohup|timeout 5|srun -n 1 -e err.log|srun -N $N --export=ALL|env A=1|env -u A|xargs -n 1"),
        (8, "apptainer exec --nv --env A=1 docker://x|time singularity exec $IMAGE|conda run -n e|sudo -E"),
        (
            None,
            "env BS=5|timeout 5 env BS=$N|env -u BS|env -i|env - A=1|env $SETS|srun --export=NONE|srun --export=A=1",
        ),
        (None, "srun --export=ALL,BS=$N|srun --export ALL,BS=5|srun $SRUN_ARGS|sudo|sudo --preserve-env=A|BS=5 sudo"),
        (None, "docker run img|docker run -eBS=5 img|time docker-compose exec a|srun podman run img|ssh h"),
        (None, "apptainer exec --env A=1,BS=5 x.sif|apptainer exec --env A=1,BS=$N x.sif|singularity exec -e x.sif"),
        (
            None,
            "singularity exec --cleanenv x.sif|apptainer run --env-file f x.sif|./start.sh|$START|kubectl exec p --",
        ),
    ],
)
def test_a_shell_behind_another_program_has_the_exported_where_that_hands_it_on(batch: object, starts: str) -> None:
    for start in starts.split("|"):
        (unit,) = read(f"export BS=8\n{start} bash -c '{RUN} $BS'\n")
        found = unit.settings["training.per_device_train_batch_size"].value
        assert (None if is_unknown(found) else found) == batch, start


@pytest.mark.parametrize(
    ("script", "folder"),
    [
        ("{ cd a &\nRUN\n}\n", ""),
        ("{ cd a | cat\nRUN\n}\n", ""),
        ("{ cd a & cd b; }\nRUN\n", "b"),
        ("{ cd a\nRUN\n} | cat\n", "a"),
        ("{ cd a\n} &\nRUN\n", ""),
        ("{ f() {\ncd a\nRUN\n}\nf\nf; }\n", "*"),
        ("cd b\n{ f() { cd a; }\n}\nf\nRUN\n", "b/a"),
    ],
)
def test_what_stands_first_in_a_group_runs_as_its_own_end_says(script: str, folder: str) -> None:
    (unit,) = read(script.replace("RUN", "python train.py --learning_rate 1e-4 --bf16 --output_dir o"))
    assert unit.folder == folder


@pytest.mark.parametrize(
    ("script", "program", "folder"),
    [
        ('if true; then\n  S="$HOME/tuning/train.py"\n  python $S {}\nfi\n', "tuning/train.py", ""),
        ("cat > x <<EOF\nS=a/b.py\nEOF\nD=$HOME/work\nS=$D/train.py\npython $S {}\n", "work/train.py", ""),
        ("D=$HOME/work\ncd $D\nA=(python $D/train.py {})\n${{A[@]}}\n", "work/train.py", "*/work"),
    ],
)
def test_of_a_variable_known_in_part_what_is_known_counts(script: str, program: str, folder: str) -> None:
    flags = 'L=--learning_rate=$1\nB="--per_device_train_batch_size=$2 --bf16"\n'
    (unit,) = read(flags + script.format("$L $B --output_dir out"))
    assert (unit.program, unit.folder) == (program, folder)
    said = values(unit)
    assert is_unknown(said["training.learning_rate"]) and is_unknown(said["training.per_device_train_batch_size"])
    assert said["training.bf16"] is True
