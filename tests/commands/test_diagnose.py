"""kb diagnose: a log to its cause, its resource and the steps; ordinary logs give nothing."""

import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from effort import EXHAUSTIVE
from every_row import for_every
from kb.advice.diagnosis import Diagnosis, diagnose
from kb.advice.log_scan import BLOCK, WINDOW, LogLine, contexts_of, evidence_of
from kb.commands.diagnose import main
from kb.config.files import ConfigError
from kb.config.log import log_lines as read_log
from kb.core.facts import Facts
from kb.knowledge import load_catalog, load_guide
from output_schemas import answers_to
from rules_copy import few_rules
from warm_runs import ENVIRON, run_text
from yaml_file import read_yaml

ROOT = Path(__file__).resolve().parents[2]
REMEDIES: Mapping[str, Any] = load_guide()["remedies"]
EXCERPTS = read_yaml(ROOT / "tests" / "data" / "logs" / "excerpts.yaml")
EXAMPLES = {
    f"{name}-{at}": (name, example) for name, data in REMEDIES.items() for at, example in enumerate(data["examples"])
}
OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 23.70 GiB total capacity; "
    "22.41 GiB already allocated; 40.50 MiB free; 22.62 GiB reserved in total by PyTorch)"
)

CONFIG = """\
general: {model_name: google/mt5-base}
tokenizer: {encoder_max_len: 512, decoder_max_len: 128}
training:
  per_device_train_batch_size: 16
  per_device_eval_batch_size: 32
  gradient_accumulation_steps: 2
  dataloader_num_workers: 32
"""
SMALLER = CONFIG.replace("mt5-base", "mt5-small")


def lines(text: str) -> Iterator[LogLine]:
    for number, line in enumerate(text.split("\n"), 1):
        yield from ((number, part) for part in line.split("\r") if part)


def of(text: str) -> Diagnosis:
    return diagnose(lines(text), REMEDIES)


def first(text: str) -> tuple[str | None, str]:
    causes = of(text).causes
    return (causes[0].id, causes[0].resource) if causes else (None, "none")


# --- what logs say ----------------------------------------------------------------------------------------------------


@for_every({row["id"]: row for row in EXCERPTS})
def test_an_excerpt_is_put_down_to_its_resource(row: dict[str, Any]) -> None:
    cause, resource = first(row["log"])
    assert resource == row["resource"], cause
    if "cause" in row:
        assert cause == row["cause"]


@for_every(EXAMPLES)
def test_every_example_of_a_remedy_comes_out_as_it_says(given: tuple[str, dict[str, str]]) -> None:
    name, example = given
    found = [cause.id for cause in of(example["log"]).causes]
    assert (found[:1] == [name]) if example["expect"] == "found" else name not in found


def test_pytorchs_own_numbers_are_read_in_both_wordings() -> None:
    old = of(OOM).causes[0].numbers
    assert old["tried"] == 96 * 2**20
    assert old["reserved"] == round(22.62 * 2**30)
    assert old["idle"] == old["reserved"] - old["allocated"]
    new = (
        of(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
            "24.00 GiB "
            "of which 0 bytes is free. Including non-PyTorch memory, this process has 23.00 GiB memory in use. Of the "
            "allocated memory 21.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
        )
        .causes[0]
        .numbers
    )
    assert new["free"] == 0
    assert new["reserved"] == 21 * 2**30 + 512 * 2**20
    assert new["process"] == 23 * 2**30
    assert new["others"] == 2**30


def test_of_torch_1_1_cached_is_what_lies_unused() -> None:
    numbers = (
        of(
            "RuntimeError: CUDA out of memory. Tried to allocate 92.00 MiB (GPU 3; 12.00 GiB total capacity; "
            "10.00 GiB already allocated; 91.00 MiB free; 512.00 MiB cached)"
        )
        .causes[0]
        .numbers
    )
    assert numbers["idle"] == 512 * 2**20
    assert numbers["reserved"] == 10 * 2**30 + 512 * 2**20


def test_a_counter_that_went_below_zero_is_no_free_memory() -> None:
    wrapped = OOM.replace("40.50 MiB free", "17179869183.96 GiB free")
    assert "free" not in of(wrapped).causes[0].numbers and "free" in of(OOM).causes[0].numbers


def test_an_error_that_two_processes_wrote_through_each_other_is_read_once() -> None:
    frame = '  File "/v/site-packages/transformers/modeling_utils.py", line 4774, in _finalize\n'
    said = "'KoSum' object has no attribute 'all_tied_weights_keys'"
    assert first(f"{frame}{frame}AttributeErrorAttributeError: : {said}{said}")[0] == "model-code-older"
    (unknown,) = of("KeyErrorKeyError: : 'rows''cols'").unexplained
    assert unknown.text == "KeyErrorKeyError: : 'rows''cols'", "two errors are left as they are"


def test_pytorch_on_a_mac_writes_gb_for_powers_of_1024() -> None:
    cause = of("RuntimeError: MPS backend out of memory (MPS allocated: 8.50 GB, max allowed: 9.07 GB).").causes[0]
    assert cause.numbers["total"] == round(9.07 * 2**30)


def test_numbers_that_a_terminal_wrapped_are_put_together() -> None:
    rows = OOM.replace(" total capacity", "\ntotal capacity").replace(" reserved in", "\nreserved in")
    assert of(rows).causes[0].numbers["reserved"] == round(22.62 * 2**30)


@pytest.mark.parametrize(
    ("frames", "phase", "named"),
    [
        ("evaluation_loop\n    logits = gather(logits)", "evaluation", "eval_accumulation_steps"),
        ("_sample\n    outputs = self(", "generation", "num_beams"),
        ("backward\n    loss.backward()", "backward-pass", "training.per_device_train_batch_size"),
        ("ForCausalLMLoss\n    logits = logits.float()", "loss", "training.use_liger_kernel"),
    ],
)
def test_the_traceback_says_which_batch_to_lower(frames: str, phase: str, named: str) -> None:
    cause = of(f'Traceback (most recent call last):\n  File "t.py", line 3, in {frames}\n{OOM}').causes[0]
    assert cause.phase == phase
    assert named in cause.steps[0].changes[0].name


def test_the_cause_is_named_and_its_echoes_are_not() -> None:
    log = (
        "Indexing.cu:662: indexSelectLargeIndex: block: [1,0,0], thread: [2,0,0] Assertion `srcIndex < n` failed.\n"
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled cuda error\n"
    )
    assert [cause.id for cause in of(log).causes] == ["device-assert"]


def test_context_far_away_does_not_count() -> None:
    near = "    sl = self._semlock = _multiprocessing.SemLock(\n"
    full = "OSError: [Errno 28] No space left on device\n"
    assert first(near + "ok\n" * (WINDOW - 2) + full)[1] == "shm"
    assert first(near + "ok\n" * (WINDOW + 2) + full)[1] == "filesystem"


def test_a_context_that_says_how_near_it_has_to_stand_counts_no_farther() -> None:
    end = "(TaskRunner pid=41) Training Progress: 100%|####| {} [05:24<00:00, 36.00s/it]\n"
    died = (
        "(raylet) Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error "
        "code 2.\n"
    )
    assert of(end.format("9/9") + "saving\n" * 3 + died).causes[0].phase == "training-complete"
    assert of(end.format("9/9") + "step\n" * 20 + died).causes[0].phase == "unknown"
    assert of(end.format("2490/2500") + died).causes[0].phase == "unknown"  # tqdm rounds up


@pytest.mark.parametrize(
    ("log", "never"),
    [
        ("Error: listen EADDRINUSE: address already in use :::6006\n", "29500"),
        ("Error: listen EADDRINUSE :::6006\n", "vllm"),
        (f'  File "/v/transformers/modeling_utils.py", line 4000, in from_pretrained\n{OOM}', "training."),
        (
            "slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2025-03-04T05:06:07 DUE TO TIME LIMIT ***\n",
            "checkpoint True",
        ),
        ("SignalException: Process 22 got signal: 15\n", "checkpoint True"),
        ("EL0004: [PID: 4112] Failed to allocate memory.\n", "expandable_segments"),  # of sizes the log tells nothing
        ("llama_model_load: error loading model: missing tensor 'blk.9.ffn_norm.weight'\n", "names no architecture"),
        (
            "torch._inductor.exc.GPUTooOldForTriton: Found Tesla P40 which is too old to be supported by the triton "
            "GPU compiler\n",
            "triton",
        ),
        ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in x\n", "CUDA_HOME"),
        (
            '  File "C:\\w\\t.py", line 1, in f\ntorch._inductor.exc.TritonMissing: Cannot find a working triton\n',
            "pip uninstall",
        ),
    ],
)
def test_what_does_not_help_there_is_not_advised(log: str, never: str) -> None:
    cause = of(log).causes[0]
    advised = [f"{step.text.en} {step.run} {[change.name for change in step.changes]}" for step in cause.steps]
    assert advised and not any(never in each for each in advised)


def test_where_a_projects_own_datasets_may_hide_the_library_that_is_looked_at_first() -> None:
    for log in ("module 'datasets' has no attribute 'load_dataset'", "module 'datasets' has no attribute 'of_later'"):
        cause = of(f"AttributeError: {log}\n").causes[0]
        assert cause.confidence == "medium"
        assert "datasets.__file__" in (cause.steps[0].run or "")


def test_what_settles_a_fault_counts_however_far_after_it_and_not_before_it() -> None:
    waits = "  Warning  FailedScheduling  9m  default-scheduler  0/2 nodes are available: 2 Insufficient memory.\n"
    placed = "  Normal   Scheduled  4m  default-scheduler  Successfully assigned default/train to gpu-1\n"
    assert not of(waits + "ok\n" * (WINDOW + 2) + placed).causes
    assert [cause.id for cause in of(placed + waits).causes] == ["kubernetes-not-scheduled"]


def test_evidence_is_found_on_either_side_of_a_block_of_lines() -> None:
    for before in (BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1):
        cause = of("step\n" * before + OOM).causes[0]
        assert cause.evidence[0][0] == before + 1


def test_a_retry_that_runs_to_its_end_is_no_cause_but_one_that_dies_at_last_is() -> None:
    retries = f"{OOM}\nretrying with a smaller batch\n" * 20
    progress = "{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.9, 'epoch': 0.2}\n"
    assert first(retries + progress + "{'train_runtime': 9.1, 'epoch': 1.0}\n") == (None, "none")
    assert first(retries + progress + OOM) == ("gpu-oom", "gpu")
    bare = "torch.OutOfMemoryError\n"  # a wording that has to stand at the line's start
    assert first(bare + progress + "{'train_runtime': 9.1, 'epoch': 1.0}\n") == (None, "none")
    assert first(bare)[0] == "gpu-oom"


def test_a_server_that_was_killed_and_serves_after_a_new_start_is_no_cause() -> None:
    killed = "[2026-02-11 03:10:44] Child process unexpectedly failed with exitcode=9. pid=331\n"
    answered = '[2026-02-11 03:12:03] INFO:     127.0.0.1:513 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    started = "[2026-02-11 03:12:01] The server is fired up and ready to roll!\n"
    assert first(killed + started + answered) == (None, "none")
    # without a start after it, another process may have answered; and so after the last answer
    for log in (started + killed + answered, started + answered + killed):
        assert first(log)[0] == "killed-from-outside"


def test_a_process_that_died_stays_dead_whatever_another_run_writes_after_it() -> None:
    died = f'Traceback (most recent call last):\n  File "train.py", line 4, in <module>\n    main()\n{OOM}\n'
    assert first(died + "{'train_runtime': 9.1, 'epoch': 1.0}\n") == ("gpu-oom", "gpu")


def test_a_few_infinite_gradients_are_normal_and_many_are_not() -> None:
    row = "{'loss': 3.1, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    assert first(row * 2) == (None, "none")
    assert first(row * 3) == ("nan-loss", "numerics")


@pytest.mark.parametrize(
    "lead",
    [
        "", "RuntimeError: ", "torch.OutOfMemoryError: ", "[rank0]: ", "2024-01-02T03:04:05.678Z stderr F ",
        "trainer-1  | ", "(train_fn pid=812, ip=10.0.0.4) ", "Jan  2 03:04:05 node7 train[311]: ", "ERROR:__main__:",
        "Error during training: ",
        "  5%|▌         | 12/240 [00:05<01:32,  2.46it/s]", "Steps:   0% 0/15000 [00:03<?, ?it/s] RuntimeError: ",
        "[task 2026-07-01T05:06:30.004+00:00] [train] [gpu(stdout)] ",
        "Exception training model: '", "  what():  ", '{"level": "error", "msg": "', "[오류] 학습 실패: ",
    ],
)  # fmt: skip
def test_a_message_is_heard_behind_what_loggers_put_before_it(lead: str) -> None:
    assert first(lead + OOM.removeprefix("RuntimeError: "))[1] == "gpu"


@pytest.mark.parametrize(
    "lead",
    [
        "# ", "> ", "text: ", "Q: ", "target 12: ", "{'document': '", '{"instruction": "Explain: ', "how to fix ",
        "I get this error: ", "We avoid ", "H-3\t", "+ echo '", 'raise RuntimeError("', "['a question', '",
        "the loader of that day was so full that it said ", "질문: ", "prediction = ",
    ],
)  # fmt: skip
def test_a_message_that_is_quoted_is_not_heard(lead: str) -> None:
    assert first(lead + OOM) == (None, "none")


# --- the knowledge ----------------------------------------------------------------------------------------------------


def test_remedies_name_only_what_exists() -> None:
    catalog = load_catalog()
    contexts = {context.name for context in contexts_of(REMEDIES)}
    for name, data in REMEDIES.items():
        assert set(data.get("echo_of", ())) <= REMEDIES.keys() - {name}, name
        assert data.get("variant_of", name) in REMEDIES, name
        assert set(data.get("phase", ())) <= contexts, name
        for row in data.get("patterns", ()):
            named = {each for key in ("near", "also_near", "not_near", "unless_later") for each in row.get(key, ())}
            assert named <= contexts, name
        for step in data["steps"]:
            for setting in step.get("set", {}):
                assert catalog.facts[setting].setting, f"{name}: {setting}"


def test_no_cause_is_an_echo_of_itself_by_way_of_others() -> None:
    def follows(name: str, seen: tuple[str, ...]) -> None:
        assert name not in seen, " → ".join((*seen, name))
        for other in REMEDIES[name].get("echo_of", ()):
            follows(other, (*seen, name))

    for name in REMEDIES:
        follows(name, ())


def test_every_resource_has_a_remedy_and_every_cause_of_the_notes_is_there() -> None:
    assert {data["resource"] for data in REMEDIES.values()} == {
        "gpu", "host", "shm", "threads", "filesystem", "network", "config", "numerics", "driver", "none",
    }  # fmt: skip
    said = {claim["lines"] for data in REMEDIES.values() for claim in data.get("claims", ()) if "lines" in claim}
    assert {"140", "141", "142", "142-143"} <= said  # the signs that the notes list


def test_a_pattern_that_is_no_expression_is_said_at_its_place(tmp_path: Path) -> None:
    from kb.knowledge import KnowledgeError

    path = few_rules(tmp_path, remedies={"broken-pipe"}) / "remedies" / "broken-pipe.yaml"
    path.write_text(path.read_text("utf-8").replace("'BrokenPipeError: |", "'(BrokenPipeError: |"), "utf-8")
    with pytest.raises(KnowledgeError, match=r"broken-pipe\.yaml:\d+:\d+: patterns\.0\.match"):
        load_guide(str(tmp_path / "rules"))


# --- time and memory --------------------------------------------------------------------------------------------------


def expressions() -> dict[str, tuple[re.Pattern[str], tuple[str, ...]]]:
    found: dict[str, tuple[re.Pattern[str], tuple[str, ...]]] = {}
    for wording in (*contexts_of(REMEDIES), *evidence_of(REMEDIES)):
        for key in ("match", "unless"):
            if key in wording.row:
                found[f"{wording.name} {wording.row[key]}"] = (re.compile(wording.row[key]), wording.holds)
    for name, data in REMEDIES.items():
        for variable, row in data.get("variables", {}).items():
            if "find" in row:
                found[f"{name} {variable}"] = (re.compile(row["find"]), ("1.50 GiB ", "free "))
    return found


def growth(expression: re.Pattern[str], line: str) -> float:
    """How much longer the whole line takes than its first quarter, in processor time."""
    times = []
    for text in (line, line[: len(line) // 4]):
        start = time.process_time()
        expression.search(text)
        times.append(time.process_time() - start)
    return times[0] / max(times[1], 1e-6)


@pytest.mark.exhaustive
def test_no_expression_takes_more_than_linear_time_on_a_line_made_to_slow_it() -> None:
    """On 30,000 characters; what is over in 30 ms cannot be told from noise, and is fast enough as it is."""
    slow = []
    for name, (expression, holds) in expressions().items():
        runs = {*holds, *re.findall(r"[A-Za-z :_./]{3,}", expression.pattern), "a", " ", "1", "0.", "(", "[", ": ", "_"}
        for run in runs:
            line = run * (30_000 // len(run)) + "!"
            start = time.process_time()
            expression.search(line)
            if time.process_time() - start < 0.03:
                continue
            # linear time grows by 4, quadratic by 16; a busy machine blurs one measurement, not all
            if all(growth(expression, line) > 10 for _ in range(3)):
                slow.append((name, run))
    assert slow == []


@pytest.mark.exhaustive
def test_a_long_log_is_read_in_less_memory_than_it_has(tmp_path: Path) -> None:
    """14 MB, a line of 3 MB among them, in 9 MB above what a short log took."""
    writer = (
        "import sys\n"
        "row = b\"{'loss': 2.3117, 'grad_norm': 1.22, 'learning_rate': 1e-05, 'epoch': 0.11}\" + b' ' * 900 + b'\\n'\n"
        "bar = b'\\r'.join(b' 14%%|#4   | %d/2650 [14:04<85:52, 13.9s/it]' % n for n in range(2000)) + b'\\n'\n"
        "for _ in range(110): sys.stdout.buffer.write(row * 50 + bar[:50_000])\n"
        "sys.stdout.buffer.write(b'x' * 3_000_000 + b'\\n')\n"
        f"sys.stdout.buffer.write({(OOM + chr(10)).encode()!r})\n"
    )
    limited = (
        "import contextlib, io, resource, sys\n"
        "from kb.diagnose import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main([sys.argv[1], '--format', 'json'])\n"
        "with open('/proc/self/statm') as stream: pages = int(stream.read().split()[0])\n"
        "most = pages * resource.getpagesize() + (9 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "sys.exit(main(['-', '--format', 'json']))\n"
    )
    short = tmp_path / "short.log"
    short.write_text(OOM + "\n", "utf-8")
    with subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE) as source:
        run = subprocess.run(
            [sys.executable, "-c", limited, short],
            stdin=source.stdout,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=ENVIRON,
        )
    assert run.returncode == 1, run.stderr
    (cause,) = json.loads(run.stdout)["causes"]
    assert cause["cause"] == "gpu-oom"
    assert cause["evidence"][0]["line"] > 5_000


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp949"])
def test_a_log_in_any_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(f"학습을 시작합니다\r\nstep 1\r\n{OOM}\r\n".encode(encoding))
    cause = diagnose(read_log(str(path)), REMEDIES).causes[0]
    assert cause.evidence == ((3, OOM),)


def test_a_progress_bar_and_colours_do_not_hide_the_line(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(
        b" 10%|# | 1/10\r 20%|## | 2/10\r\x1b[31mRuntimeError\x1b[0m: CUDA error: out of\x1b[1m memory\x1b[0m\n"
    )
    result = diagnose(read_log(str(path)), REMEDIES)
    assert result.lines == 1
    assert result.causes[0].evidence == ((1, "RuntimeError: CUDA error: out of memory"),)


def test_holes_of_null_bytes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"started\n" + b"step 1 of many more steps to come\n" * 40 + b"\x00" * 3000 + OOM.encode() + b"\n")
    assert diagnose(read_log(str(path)), REMEDIES).causes[0].id == "gpu-oom"


@pytest.mark.parametrize(
    ("content", "key"),
    [(gzip.compress(OOM.encode()), "diagnose.compressed"), (bytes(range(32)) * 300, "diagnose.binary")],
    ids=["compressed", "binary"],
)
def test_what_is_no_text_is_refused(content: bytes, key: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as fault:
        list(read_log(str(path)))
    assert fault.value.key == key


# --- the command ------------------------------------------------------------------------------------------------------


def piped(log: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb.diagnose", "--lang", "en", *arguments, stdin=log)


def test_a_killed_worker_means_host_memory_and_fewer_workers_first() -> None:
    run = piped("DataLoader worker (pid 12) is killed by signal: Killed.")
    assert run.returncode == 1
    assert "host memory" in run.stdout
    assert "dataloader_num_workers" in run.stdout.partition("1. ")[2].partition("2. ")[0]


def test_a_thread_limit_is_threads_and_not_the_gpu() -> None:
    run = piped("RuntimeError: unable to create new native thread\n")
    assert "resource: threads" in run.stdout
    assert "resource: GPU" not in run.stdout


def test_an_ordinary_log_gives_no_cause_and_exit_code_0() -> None:
    run = piped("{'loss': 2.1, 'epoch': 0.1}\n{'train_runtime': 10.0, 'epoch': 1.0}\n", "--format", "json")
    assert (run.returncode, json.loads(run.stdout)) == (0, {"causes": [], "unexplained": []})
    assert "2 lines" in piped("{'loss': 2.1}\nok\n").stdout


UNKNOWN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 88, in <module>
[rank1]:     main()
[rank1]:   File "/w/train.py", line 60, in main
[rank1]:     x = row["text"]
[rank1]: KeyError: 'text'
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_an_error_whose_cause_is_unknown_is_shown_and_said_to_be_unknown() -> None:
    run = piped(UNKNOWN)
    assert run.returncode == 0
    assert "An error whose cause kb does not know" in run.stdout
    assert "6 | KeyError: 'text'" in run.stdout
    assert "ChildFailedError" not in run.stdout, "it only says that another process failed"
    shown = json.loads(piped(UNKNOWN, "--format", "json").stdout)
    frame = {"file": "/w/train.py", "line": 60, "function": "main", "library": "", "source": 'x = row["text"]'}
    frame["cloned"] = False
    assert shown == {"causes": [], "unexplained": [{"line": 6, "text": "KeyError: 'text'", "raised": frame}]}
    answers_to("diagnose", shown)


IN_LIBRARY = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 88, in <module>
[rank0]:     trainer.train()
[rank1]:   File "/w/other.py", line 3, in main
[rank0]:   File "/v/lib/python3.12/site-packages/peft/tuners/new.py", line 214, in update
[rank0]:     rank = table.rank
[rank0]:            ^^^^^^^^^^
[rank0]: AttributeError: 'Table' object has no attribute 'rank'
"""


@pytest.mark.parametrize(("language", "said"), [("en", "Memory is not the matter."), ("ko", "메모리 문제가 아닙니다.")])
def test_that_memory_is_not_the_matter_is_said_only_where_the_log_shows_no_shortage(language: str, said: str) -> None:
    """A step that one rank left for want of memory is why another's reduction was not finished."""
    unfinished = (
        "[rank1]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
    )
    for log, expected in ((unfinished, True), (f"[rank0]: {OOM}\n{unfinished}", False)):
        report = " ".join(run_text("kb.diagnose", "--lang", language, stdin=log).stdout.split())
        assert "DDP" in report and (said in report) is expected


def test_an_unknown_error_is_told_with_its_package_and_the_projects_line_that_led_there() -> None:
    (row,) = of(IN_LIBRARY).unexplained
    assert row.raised is not None and (row.raised.library, row.raised.line) == ("peft", 214)
    assert row.called is not None and (row.called.file, row.called.line) == ("/w/train.py", 88)
    said = " ".join(piped(IN_LIBRARY).stdout.split())
    assert "at peft/tuners/new.py:214 (update) · rank = table.rank" in said
    assert "AttributeError itself asks for no memory" in said and "came up in peft" in said
    assert "pip freeze | grep -i -E 'peft|torch'" in said
    korean = " ".join(run_text("kb.diagnose", "--lang", "ko", stdin=IN_LIBRARY).stdout.split())
    assert "발생 위치: peft/tuners/new.py:214 (update)" in korean and "메모리를 요청하지 않으며" in korean


@pytest.mark.parametrize(
    ("before", "error", "library", "of_code"),
    [
        ("", "AttributeError: 'Table' object has no attribute 'rank'", True, True),
        (
            "step 3: CUDA out of memory, no loss\n",
            "AttributeError: 'NoneType' object has no attribute 'rank'",
            True,
            False,
        ),
        ("step 3\n", "ImportError: libgomp.so.1: cannot allocate memory in static TLS block", True, False),
        ("", "KeyError: 'text'", False, True),
        ("", "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'", False, True),
        ("", "RuntimeError: the two tables differ in width (4x10 and 12x5)", True, False),
        ("", "api.ValidationError: requested 80GB", True, False),
    ],
)
def test_what_is_said_of_an_unknown_error_is_true_of_its_class(
    before: str, error: str, library: bool, of_code: bool
) -> None:
    frame = '  File "/v/site-packages/tables/base.py", line 5, in get\n    return one(rows)\n'
    said = " ".join(piped(f"{before}Traceback (most recent call last):\n{frame}{error}\n").stdout.split())
    assert ("came up in tables" in said, "asks for no memory" in said) == (library, of_code)
    assert ("releases that do not go together" in said) == error.startswith(("AttributeError", "ImportError"))


_BEGUN = "UserWarning: 'pin_memory' argument is set as true but no accelerator is found\n"
_BEGUN += 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    trainer.train()\n'
_LACKS = """\
  File "/v/site-packages/unsloth/models/a.py", line 10, in batches
    f = model.inner.forward
  File "/v/site-packages/torch/nn/modules/module.py", line 1931, in __getattr__
    raise AttributeError(
AttributeError: 'LlamaModel' object has no attribute 'inner'
"""
_REFUSED = """\
  File "/v/site-packages/trl/trainer/reward_trainer.py", line 415, in __init__
    raise ValueError(
ValueError: The model has `num_labels=2`, but reward models require `num_labels=1`
"""
_HANDED_ON = _REFUSED.replace("raise ValueError(", 'raise ValueError(f"bad: {e}") from e')
_OF_MEMORY = "Not enough VRAM: 3.1 GB needed\n" + _REFUSED.replace("trl", "loads")
_FIELDS = """\
(APIServer pid=6)   File "/v/site-packages/vllm/engine/arg_utils.py", line 963, in create_model_config
(APIServer pid=6)     return ModelConfig(
(APIServer pid=6)   File "/v/site-packages/pydantic/_internal/_dataclasses.py", line 127, in __init__
(APIServer pid=6)     s.__pydantic_validator__.validate_python(args)
(APIServer pid=6) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=6) runner
(APIServer pid=6)   Input should be 'auto' or 'generate'
"""


_BY_PYTHON = """\
  File "/v/lib/python3.12/site-packages/axolotl/core/trainers/grpo.py", line 170, in get_reward_func
    names = signature(reward_func)
  File "/usr/lib/python3.12/inspect.py", line 2443, in _signature_from_callable
    raise TypeError('{!r} is not a callable object'.format(obj))
TypeError: None is not a callable object
"""
_LOOKED_UP = """\
  File "/v/lib/python3.12/site-packages/vllm/config/model.py", line 40, in head_size
    return self.hf_config.hidden_dims
  File "/v/lib/python3.12/site-packages/transformers/configuration_utils.py", line 211, in __getattribute__
    return super().__getattribute__(key)
AttributeError: 'ToyConfig' object has no attribute 'hidden_dims'
"""
_REFUSED_CONFIG = """\
  File "/v/lib/python3.12/site-packages/transformers/configuration_utils.py", line 340, in __init__
    raise ValueError(
ValueError: The config parameter `problem_type` was not understood: received x but only 'regression'
"""
_HANDED = """\
File ~/v/lib/python3.12/site-packages/transformers/trainer.py:3102, in Trainer.evaluation_loop(self, dataloader)
   3101     if losses:
-> 3102         metrics["eval_loss"] = losses.mean().item()
   3103     return metrics

TypeError: 'float' object does not support item assignment
"""


@pytest.mark.parametrize(
    ("log", "library", "title", "text"),
    [
        (_BEGUN + _LACKS, "unsloth", "An error whose cause kb does not know", "attribute 'inner'"),
        (_BEGUN + _REFUSED, "trl", "trl stopped by a check of its own, and says why", "require `num_labels=1`"),
        (_HANDED, "transformers", "where a plain float stands in place of what it takes", "item assignment"),
        (_BEGUN + _BY_PYTHON, "axolotl", "An error whose cause kb does not know", "not a callable object"),
        (_BEGUN + _LOOKED_UP, "vllm", "An error whose cause kb does not know", "attribute 'hidden_dims'"),
        (_BEGUN + _REFUSED_CONFIG, "transformers", "transformers stopped by a check of its own", "only 'regression'"),
        (_FIELDS, "vllm", "vllm stopped by a check of its own", "runner Input should be 'auto' or 'generate'"),
    ],
)  # fmt: skip
def test_an_unknown_error_is_told_of_what_met_it_not_of_what_handed_it_on(
    log: str, library: str, title: str, text: str
) -> None:
    (row,) = of(log).unexplained
    assert (row.library, row.text.endswith(text)) == (library, True)
    said = " ".join(piped(log).stdout.split())
    assert title in said and ("speaks of memory" in said) == (row.of_code == "")
    assert row.raised is not None and not row.raised.source.startswith("3101")


# a framework that is run from its repository, with another program's log line before each of its own
_CLONED = """\
2026-02-11 03:11:02,475 - runner - INFO - [rank7]:   File "/root/verl/verl/trainer/ppo/ray_trainer.py", line 479, in fit
2026-02-11 03:11:02,475 - runner - INFO - [rank7]:     assert estimator == "grpo", "only GRPO is tested with tools"
2026-02-11 03:11:02,476 - runner - INFO - [rank7]: AssertionError: only GRPO is tested with tools
"""


def test_a_check_of_a_framework_run_from_its_repository_is_told_as_that() -> None:
    (row,) = of(_CLONED).unexplained
    assert row.of_a_check and row.raised is not None and row.raised.file == "verl/trainer/ppo/ray_trainer.py"
    assert row.library == ""  # what pip installed is not the matter
    (row,) = of(_CLONED.replace("only GRPO is tested with tools\n", "{'id': 3, 'status': 'free'}\n")).unexplained
    assert not row.of_a_check  # a dump gives no reason
    for own in ("/root/verl/jobs/", "/home/me/project/src/peft/", "/home/me/vllm/engine/"):
        (row,) = of(_CLONED.replace("/root/verl/verl/trainer/", own)).unexplained
        assert not row.of_a_check


@pytest.mark.parametrize(
    ("error", "said", "never"),
    [
        ("RuntimeError: CUDA driver error: device not ready", "CUDA_LAUNCH_BLOCKING=1", "search"),
        ("RuntimeError: CUDA error: peer access is not supported between them", "came up in tables", "LAUNCH_BLOCKING"),
        (
            "joblib.externals.loky.process_executor.TerminatedWorkerError: A worker stopped",
            "another process",
            "pip freeze",
        ),
        ("ERROR 07-04 17:35:16 [m.py:1] Worker proc V-1 died unexpectedly, shutting down.", "another process", "pip"),
        ("ValueError: no memory for slot 3", "The line speaks of memory", "asks for no memory"),
        ('RuntimeError: ASSERT FAILED at "CachingAllocator.cpp":427', "came up in tables", "speaks of memory"),
    ],
)
def test_what_an_unknown_error_is_about_decides_where_to_look(error: str, said: str, never: str) -> None:
    frame = '  File "/v/site-packages/tables/base.py", line 5, in get\n    return one(rows)\n'
    shown = " ".join(piped(f"Traceback (most recent call last):\n{frame}{error}\n").stdout.split())
    assert said in shown and never not in shown
    later = f"Traceback (most recent call last):\n{frame.replace('tables', 'rows')}Exception: off\n"
    assert "LAUNCH_BLOCKING" not in piped(f"Traceback (most recent call last):\n{frame}{error}\n{later}").stdout


@pytest.mark.parametrize(("log", "said"), [(_HANDED_ON, "a check of its own"), (_OF_MEMORY, "speaks of memory")])
def test_what_is_not_so_is_not_said_of_an_unknown_error(log: str, said: str) -> None:
    assert of(log).unexplained and said not in " ".join(piped(log).stdout.split())


def test_a_frame_of_another_process_is_not_where_an_error_was_raised() -> None:
    other = '[rank0]: RuntimeError: off\n[rank1]:   File "/w/a.py", line 2, in f\n[rank0]: RuntimeError: on\n'
    assert [row.raised for row in of(other).unexplained] == [None, None]


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ("File ~/v/lib/python3.11/site-packages/trl/a.py:2245, in T.train(self, x)", ("trl/a.py", 2245, "T.train")),
        ("[/usr/lib/python3/dist-packages/trl/a.py](https://localhost:8080/#) in f(x)", ("trl/a.py", None, "f")),
        ("Cell In[8], line 14", ("Cell In[8]", 14, "")),
    ],
)
def test_frames_of_notebooks_are_read(frame: str, place: tuple[str, int | None, str]) -> None:
    (row,) = of(f"{frame}\n     13 x\n---> 14 y\n\nRuntimeError: it is off\n").unexplained
    assert row.raised is not None and row.raised[:3] == place


def test_an_error_where_a_library_looks_whether_it_has_another_is_an_answer() -> None:
    shown = '  File "/v/site-packages/a/b.py", line 57, in _is_triton_available\n    import triton\n'
    assert not of(
        f"{shown}ModuleNotFoundError: No module named 'triton._C'\nPrompt executed in 13 seconds\n"
    ).unexplained


def test_a_line_that_only_hands_on_a_failure_is_told_as_such() -> None:
    said = " ".join(piped("(APIServer pid=6) RuntimeError: Engine core initialization failed.\n").stdout.split())
    assert "only says that another process" in said and "grep" not in said


def test_what_a_log_ends_with_is_shown_where_nothing_raises_an_error() -> None:
    (row,) = of("step 1\nserver: the device failed\n").unexplained
    assert row.spoken and row.line == 2
    assert "Lines that speak of a failure" in piped("[ERROR] 2026-01-02 call of acl api is off\n").stdout
    known = of("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch\nfatal: off\n")
    assert known.causes and not known.unexplained
    assert not of("server: the device failed\n" + "step\n" * 30).unexplained
    assert not of('ERROR 06-30 Error in the prompt\nINFO: - "POST /v1/chat HTTP/1.1" 400 Bad Request\n').unexplained
    assert not of("WARNING: the device failed\nUserWarning: it failed\nINFO: 0 tests failed\n").unexplained
    assert not of("ggml_x: failed to allocate pinned memory\nmain: server is listening on http://x\n").unexplained


def test_an_error_that_the_run_went_on_after_is_not_shown() -> None:
    caught = UNKNOWN.replace("in <module>", "in step")
    assert not of(caught + "{'train_runtime': 3.0, 'epoch': 1.0}\n").unexplained
    assert of(caught).unexplained


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("requests.exceptions.ReadTimeout: Read timed out. (read timeout=5)", True),
        ("_queue.Empty", True),
        ("click.exceptions.Exit: 0", False),
        ("w.models.Net: 3 layers", False),  # not under the frames
    ],
)
def test_a_class_of_any_name_is_an_error_under_the_frames_of_a_traceback(raised: str, shown: bool) -> None:
    frame = '  File "/w/a.py", line 3, in <module>\n    ask(timeout=5)\n'
    between = "" if "w.models" not in raised else "gone on\n" * 4
    found = of(f"Traceback (most recent call last):\n{frame}{between}{raised}\n").unexplained
    assert [row.text for row in found] == [raised] * shown


def test_an_error_that_python_ignores_is_none() -> None:
    ignored = (
        "Exception ignored in: <function Tracker.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.12/tracker.py", line 77, in __del__\nChildProcessError: [Errno 10] No child\n'
    )
    assert of(ignored).unexplained == ()
    (row,) = of(ignored + UNKNOWN).unexplained
    assert row.text == "KeyError: 'text'"


def test_of_a_chain_with_the_same_words_the_one_with_the_projects_line_is_shown() -> None:
    inner = '  File "/v/site-packages/tables/base.py", line 5, in get\n    return at[key]\nKeyError: 1\n'
    outer = '  File "/w/data.py", line 12, in <module>\n    x = rows[1]\n' + inner
    begin = "Traceback (most recent call last):\n"
    (row,) = of(begin + inner + "\nThe above exception was the direct cause of:\n\n" + begin + outer).unexplained
    assert row.called is not None and row.called.file == "/w/data.py"


@pytest.mark.parametrize(
    "line",
    ["check: 0 shards failed, 12 ok", "upload: 3 files, failed 0", "sync: done, failed: 0", "tests: nothing failed",
     "Error: no answer of the host, continuing without it", "Error: 503 for url, retrying in 5s"],
)  # fmt: skip
def test_a_count_of_no_failures_and_what_is_gone_on_after_are_no_failure(line: str) -> None:
    assert of(line + "\n").unexplained == ()
    assert of("check: 10 shards failed\n").unexplained


def test_a_metric_that_is_called_error_is_none() -> None:
    assert not of("epoch 1\nError: 0.0123\nFailure: 0\nException\ndone\n").unexplained
    assert of(UNKNOWN.replace("KeyError: 'text'", "Exception")).unexplained
    assert of("Error: it cannot be placed\n").unexplained


def test_an_error_line_that_ends_with_a_colon_goes_on_in_the_next() -> None:
    text = "RuntimeError: Error(s) in packing state_dict for PeftModel:\n\tsize mismatch for lm_head.weight\n"
    (row,) = of(text).unexplained
    assert row.text.endswith("PeftModel: size mismatch for lm_head.weight")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("main: loading model\nsrv    load_model: failed to load model\n", 2),
        ("Unsupported conversion\nLLVM ERROR: Unsupported rounding mode for conversion.\n#blocked = 3\n", 2),
        ("0.00.307.807 E llama_model_load: error loading model: missing tensor\n", 1),
        ("run.sh: line 4:  8156 Aborted                 (core dumped) ./train --lr 1e-4\n", 1),
        ("  3%|▎         | 3/100 [00:02<01:15,  1.44it/s]\nAborted (core dumped)\n", 2),
        (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\nException: cublasLt ran into an error!\n',
            3,
        ),
        ("pyarrow.lib.ArrowInvalid: Could not convert 'a' with type str: tried to convert to int64\n", 1),
        ("Error named symbol not found at line 74 in file /src/bitsandbytes/csrc/ops.cu\n", 1),
        ("'train-all' is not recognized as an internal or external command,\noperable program\n", 1),
        ("'train-all'은(는) 내부 또는 외부 명령, 실행할 수 있는 프로그램, 또는\n배치 파일이 아닙니다.\n", 1),
        ("  exitcode  : -6 (pid: 1424)\n  traceback : Signal 6 (SIGABRT) received by PID 1424\n", 2),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 991) of a\n", 1),
        ("terminate called after throwing an instance of 'sycl::exception'\n  what():  No device available\n", 2),
        ('time=2025-02-20T12:24 level=ERROR msg="x" error="llama runner process has terminated: exit status 2"\n', 1),
        (
            'panic: unable to load model: /m\ntime=2025-02-20T12:24:52 level=ERROR msg="x" '
            'error="llama runner process has terminated: exit status 2"\n',
            1,
        ),
        ("2024-07-24T02:39:20.704629Z  INFO launcher: Shutting down\nError: ShardCannotStart\n", 2),
    ],
)
def test_what_programs_that_raise_nothing_die_with_is_shown(log: str, line: int) -> None:
    (row,) = of(log).unexplained
    assert row.line == line


def test_what_llama_cpp_goes_on_without_is_no_error() -> None:
    assert not of("srv  load_model: failed to load draft model\nmain: server is listening\n").unexplained


def test_what_a_person_stopped_is_no_error() -> None:
    assert not of("Traceback (most recent call last):\nKeyboardInterrupt\n").unexplained


def test_a_known_cause_leaves_nothing_unexplained() -> None:
    assert not of("Error invalid device function at line 224 in file /src/csrc/ops.hip\n").unexplained
    assert not of(f'  File "a.py", line 3, in <module>\n{OOM}\n').unexplained


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            '  File "/x/torch/serialization.py", line 9, in save\nOSError: [Errno 28] No space left on device',
            "disk-full",
        ),
        (
            '  File "/x/watchdog/observers/inotify_c.py", line 9, in f\nOSError: [Errno 28] No space left on device',
            "watch-limit",
        ),
        ("RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)", "shared-memory-full"),
    ],
)
def test_one_error_number_is_told_apart_by_what_was_written(log: str, cause: str) -> None:
    assert first(log)[0] == cause
    assert len(of(log).causes) == 1


def test_what_github_actions_writes_before_a_line_is_no_part_of_it() -> None:
    line = "2026-03-04T10:11:52.1234567Z ##[error]Process completed with exit code 137."
    assert first(line)[0] == "killed-from-outside"
    assert first(f"# {line}")[0] is None, "a heading of a page is quoted"


def test_a_step_whose_condition_is_not_known_is_shown_with_it() -> None:
    text = piped(OOM).stdout
    assert "if gradient_checkpointing is off: Turn on gradient_checkpointing" in " ".join(text.split())
    (cause,) = json.loads(piped(OOM, "--format", "json").stdout)["causes"]
    conditions = [step["if"] for step in cause["remedies"]]
    assert "gradient_checkpointing is off" in conditions
    assert None in conditions, "what always helps has no condition"


@pytest.mark.exhaustive
def test_a_condition_that_the_config_answers_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(with_config(tmp_path, OOM, SMALLER, "--gpu", "v100-16gb", "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert {step["if"] for step in cause["remedies"]} == {None}


@pytest.mark.parametrize("log", ["", "\n", "\r", "\n\n"])
def test_an_empty_log_gives_no_cause(log: str) -> None:
    assert piped(log).returncode == 0


def test_the_json_answers_to_its_published_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    for row in EXCERPTS if EXHAUSTIVE else EXCERPTS[::40]:
        path.write_text(row["log"], "utf-8")
        main([str(path), "--format", "json", "--lang", "ko"])
        answers_to("diagnose", json.loads(capsys.readouterr().out))


def test_without_a_config_the_settings_are_named_and_their_values_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_text(OOM, "utf-8")
    main([str(path), "--format", "json"])
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert cause["remedies"][0]["set"] == {
        "training.per_device_train_batch_size": None,
        "training.gradient_accumulation_steps": None,
    }
    assert "per_device_train_batch_size" in cause["remedies"][0]["step"]


def with_config(tmp_path: Path, log: str, config: str, *arguments: str) -> list[str]:
    (tmp_path / "train.log").write_text(log, "utf-8")
    (tmp_path / "config.yaml").write_text(config, "utf-8")
    return [str(tmp_path / "train.log"), "--config", str(tmp_path / "config.yaml"), "--lang", "en", *arguments]


def test_with_a_config_the_steps_carry_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(with_config(tmp_path, OOM, CONFIG)) == 1
    out = capsys.readouterr().out
    assert "per_device_train_batch_size: 16 → 8, gradient_accumulation_steps: 2 → 4" in out
    assert "encoder_max_len: 512 → 256" in out
    assert "config.yaml" in "".join(out.split()), "a long path is broken where the line ends"


def test_the_length_of_a_trl_config_is_the_one_that_is_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/Capybara\noutput_dir: out\nmax_length: 4096\n"
    )
    main(with_config(tmp_path, OOM, config))
    assert "\n     max_length: 4096 → 2048" in capsys.readouterr().out


def test_with_a_gpu_the_largest_batch_that_fits_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG.replace("train_batch_size: 16", "train_batch_size: 64")
    main(with_config(tmp_path, OOM, config, "--gpu", "rtx-3090", "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    batches = [step["set"].get("training.per_device_train_batch_size") for step in cause["remedies"]]
    steps = [step["set"].get("training.gradient_accumulation_steps") for step in cause["remedies"]]
    assert batches[0] * steps[0] == 128
    assert batches[0] < batches[1] == 32


@pytest.mark.exhaustive
def test_workers_fit_the_host_memory_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed."
    main(with_config(tmp_path, log, CONFIG, "--host-memory", "60GB", "--gpu", "rtx-3090", "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    workers = [step["set"].get("training.dataloader_num_workers") for step in cause["remedies"]]
    assert 0 < workers[0] < 32
    assert workers[1] == 16


MPS_OOM = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB). Tried to allocate 2 GB"
)


@pytest.mark.parametrize("log", [OOM, "RuntimeError: NPU out of memory. Tried to allocate 2.50 GiB", MPS_OOM])
@pytest.mark.parametrize(("batch", "accumulation"), [(5, 1), (5, 2), (6, 1), (7, 3), (2, 1), (16, 2), (3, 1)])
def test_halving_holds_the_effective_batch(
    batch: int, accumulation: int, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"training: {{per_device_train_batch_size: {batch}, gradient_accumulation_steps: {accumulation}}}\n"
    main(with_config(tmp_path, log, config, "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    name = "training.per_device_train_batch_size"
    new = next(step["set"] for step in cause["remedies"] if name in step["set"])
    size, steps = new["training.per_device_train_batch_size"], new["training.gradient_accumulation_steps"]
    assert (steps or accumulation) * size == batch * accumulation
    assert 1 <= size <= batch // 2


def test_a_batch_of_one_is_not_halved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(with_config(tmp_path, OOM, "training: {per_device_train_batch_size: 1}\n", "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert all("training.per_device_train_batch_size" not in step["set"] for step in cause["remedies"])


@pytest.mark.exhaustive
def test_t5_is_not_told_to_use_fp16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(with_config(tmp_path, OOM, SMALLER, "--gpu", "v100-16gb", "--format", "json"))
    (cause,) = json.loads(capsys.readouterr().out)["causes"]
    assert all("training.fp16" not in step["set"] for step in cause["remedies"])


def test_a_section_is_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (
        "small:\n  training: {per_device_train_batch_size: 4}\nlarge:\n  training: {per_device_train_batch_size: 64}\n"
    )
    main(with_config(tmp_path, OOM, config, "--section", "large"))
    assert "per_device_train_batch_size: 64 → 32" in capsys.readouterr().out
    assert main(with_config(tmp_path, OOM, config, "--section", "huge")) == 2
    assert "small, large" in capsys.readouterr().err


def test_bad_input_is_said_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.log"), "--lang", "en"]) == 2
    assert "missing.log" in capsys.readouterr().err
    assert main([str(tmp_path), "--lang", "en"]) == 2
    assert main(["-", "--config", "-", "--lang", "en"]) == 2
    assert main(with_config(tmp_path, OOM, "- 1\n- 2\n")) == 2
    assert main(with_config(tmp_path, OOM, "just: {some: words}\n")) == 2
    assert "--dialect" in capsys.readouterr().err


def test_both_languages_say_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text("\n".join(row["log"] for row in EXCERPTS if row["resource"] != "none"), "utf-8")
    main([str(path), "--lang", "ko"])
    korean = capsys.readouterr().out
    main([str(path), "--lang", "en"])
    english = capsys.readouterr().out
    assert re.search("[가-힣]{2}", korean)
    assert not re.search("[가-힣]", "\n".join(row for row in english.splitlines() if " | " not in row))
    assert not re.search(r"\b(?:diagnose|resource|confidence)\.[a-z]", korean + english)


def test_a_predicted_fact_that_is_unknown_brings_no_step() -> None:
    facts = Facts(load_catalog().fact_types(), {})
    cause = diagnose(lines(OOM), REMEDIES, facts.get).causes[0]
    assert all("predicted" not in step.text.en for step in cause.steps)


RELEASES = {
    "ImportError: cannot import name 'AutoModelForVision2Seq' from 'transformers' (/v/transformers/__init__.py)": (
        "transformers no longer has AutoModelForVision2Seq from 5.0 on (read from its releases): see which release is "
        "installed (pip show transformers). In its place there is AutoModelForImageTextToText."
    ),
    "ImportError: cannot import name 'apply_chunking_to_forward' from 'transformers.modeling_utils' (/v)": (
        "apply_chunking_to_forward in transformers.modeling_utils from 4.56 on (read from its releases): see which "
        "release is installed (pip show transformers). It is in transformers.pytorch_utils now."
    ),
    "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/v/site-packages/hub.py)": (
        "huggingface_hub no longer has cached_download from 0.26 on (read from its releases): see which release is "
        "installed (pip show huggingface_hub). In its place there is hf_hub_download."
    ),
    "ValueError: Could not find module Qwen2_5_VLProcessor in `transformers`.": "has Qwen2_5_VLProcessor from 4.49 on",
    "AttributeError: module 'datasets' has no attribute 'load_metric'": "no longer has load_metric from 3.0 on",
    # of the modules of a library that others take names from, those that came later are known too
    "ImportError: cannot import name 'clear_device_cache' from 'accelerate.utils.memory' (/v)": "from 0.32 on",
    "ModuleNotFoundError: No module named 'trl.experimental'": "trl has the module experimental from 0.24 on",
    "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'packing_strategy'": (
        "trl has packing_strategy of SFTConfig from 0.19.0 on"
    ),
    # of a name that TRL's class has of TrainingArguments
    "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'eval_on_start'": (
        "transformers has eval_on_start of GRPOConfig from 4.42 on"
    ),
    "ValueError: The checkpoint you are trying to load has model type `qwen3_vl` but Transformers does not recognize "
    "this architecture.": "has the model type qwen3_vl from 4.57 on",
    # in the second patch release of 4.51, and not yet in the first
    "ImportError: cannot import name 'Glm4ForCausalLM' from 'transformers' (/v/transformers/__init__.py)": (
        "transformers has Glm4ForCausalLM from 4.51.3 on"
    ),
    # read from source releases, as the wheels are too large
    "ImportError: cannot import name 'FlexibleArgumentParser' from 'vllm.utils' (/v/site-packages/vllm/utils.py)": (
        "vllm no longer has FlexibleArgumentParser in vllm.utils from 0.11.1 on (read from its releases): see which "
        "release is installed (pip show vllm). It is in vllm.utils.argparse_utils now."
    ),
    "ModuleNotFoundError: No module named 'vllm.worker.worker_base'": (
        "no longer has the module worker.worker_base from 0."
    ),
    # an object that an older release made has not what came after
    "AttributeError: 'SFTConfig' object has no attribute 'packing_strategy'": "",
    "ImportError: cannot import name 'AutoModelForMarmalade' from 'transformers' (/v/transformers/__init__.py)": "",
    "ImportError: cannot import name 'AdamW' from partially initialized module 'transformers' (/w/transformers.py)": "",
}


def test_a_name_that_is_not_there_is_told_with_the_releases_that_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    for line, said in RELEASES.items():
        log.write_text(line + "\n")
        main([str(log), "--lang", "en", "--format", "json"])
        releases = json.loads(capsys.readouterr().out)["causes"][0].get("releases", "")
        assert said in releases
        assert bool(releases) == bool(said)


def test_a_line_that_says_a_run_ended_and_failed_is_no_good_end() -> None:
    failed = "RuntimeError: MPS backend out of memory (MPS allocated: 45.18 GiB, max allowed: 45.90 GiB).\n"
    assert [cause.id for cause in of(failed + "12:01 | INFO | ❌ Training completed! Total time: 16s").causes] == [
        "gpu-oom-mps"
    ]
    assert of(failed + "Training completed. Do not forget to share your model").causes == ()
    assert of(failed + "========= 2 passed, 1 xfailed, 1 warning in 3.12s ==========").causes == ()
    assert of(failed + "==== 1 failed, 2 passed in 3.12s ====").causes
    ran = "-" * 70 + "\nRan 12 tests in 3.214s\n\n{}\n"
    assert of(failed + ran.format("OK (skipped=1)")).causes == ()
    assert of(failed + ran.format("FAILED (errors=1)") + ran.format("OK")).causes  # other tests, which went well


def test_a_package_that_asks_itself_for_a_name_is_to_be_installed_anew() -> None:
    line = "ImportError: cannot import name 'Runner' from 'vllm' (/v/lib/python3.12/site-packages/vllm/__init__.py)\n"
    frame = '  File "/v/lib/python3.12/site-packages/{}/cli.py", line 3, in <module>\n    from vllm import Runner\n'
    steps = [of(frame.format(name) + line).causes[0].steps[0] for name in ("vllm", "trl")]
    assert [step.run and "--force-reinstall" in step.run for step in steps] == [True, False]
