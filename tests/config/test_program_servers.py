"""Servers that a Python program starts as commands: lists of words and texts for a shell, read and never run."""

from pathlib import Path
from typing import Any

import pytest

from catalog_sample import shallow_catalog
from kb.config.python.servers import servers_started
from kb.config.shell.command import CommandReader
from kb.core.document import Unit
from kb.core.expression import is_unknown
from warm_runs import run_text

MODEL = "meta-llama/Llama-3.1-8B"
MODAL = f"""\
import modal
import subprocess

MODEL_NAME = "{MODEL}"
FAST_BOOT = False
N_GPU = 2
app = modal.App("llm")


@app.function(gpu=f"H100:{{N_GPU}}")
@modal.web_server(port=8000)
def serve():
    cmd = [
        "vllm", "serve", "--uvicorn-log-level=info", MODEL_NAME,
        "--port", str(8000),
        "--max-model-len", "131072",
        "--gpu-memory-utilization",
        "0.25",
    ]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    subprocess.Popen(" ".join(cmd), shell=True)
"""


def servers(text: str) -> list[Unit]:
    catalog = shallow_catalog()
    reader = CommandReader(catalog.dialects, catalog.facts)
    return servers_started(text, "serve.py", reader, catalog.dialects["python"].constants)


def values(unit: Unit) -> dict[str, Any]:
    return {name.removeprefix("serving."): each.value for name, each in unit.settings.items()}


def started(body: str) -> Unit:
    (unit,) = servers(f"import os, sys, shlex, subprocess\nMODEL = '{MODEL}'\n{body}\n")
    return unit


def test_a_list_is_read_with_what_is_added_to_it() -> None:
    (unit,) = servers(MODAL)
    assert (unit.dialect, values(unit)) == (
        "vllm",
        {
            "model.name": MODEL, "max_model_len": 131072, "gpu_memory_utilization": 0.25, "enforce_eager": False,
            "tensor_parallel_size": 2,
        },
    )  # fmt: skip
    assert (unit.settings["serving.max_model_len"].span.line, unit.settings["serving.max_model_len"].span.column) == (
        16,
        29,
    )


@pytest.mark.parametrize(
    "body",
    [
        "subprocess.Popen([sys.executable, '-m', 'vllm.entrypoints.openai.api_server', '--model', MODEL, '-tp', '2'])",
        "subprocess.run(f'CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve {MODEL} -tp 2 &', shell=True)",
        "os.system('cd /srv && vllm serve ' + MODEL + ' --tensor-parallel-size=2')",
        "subprocess.Popen(shlex.split(f'vllm serve {MODEL} --tensor-parallel-size 2'))",
        "cmd = f'''\nvllm serve {MODEL} \\\\\n  --tensor-parallel-size 2\n'''\nsubprocess.check_call(cmd, shell=True)",
        "subprocess.run(['bash', '-lc', f'vllm serve {MODEL} -tp 2'])",
        "more = ['-tp', '2']\ncmd = ['vllm', 'serve', MODEL] + more\nsubprocess.run(cmd)",
        "def start(port):\n    cmd = ['vllm', 'serve', MODEL, '--port', str(port)]\n"
        "    cmd.extend(['-tp', '2'])\n    return cmd",
        "client.containers.run('vllm/vllm-openai', ['vllm', 'serve', MODEL, '-tp', '2'])",
    ],
)
def test_ways_to_start_one(body: str) -> None:
    assert values(started(body)) == {"model.name": MODEL, "tensor_parallel_size": 2}


def test_a_list_that_is_added_to_itself_is_what_it_was_before_and_more() -> None:
    grown = "words = ['vllm', 'serve', MODEL]\nwords = words + ['--max-model-len', '4096']\nsubprocess.run(words)"
    assert values(started(grown)) == {"model.name": MODEL, "max_model_len": 4096}
    assert (
        servers("import subprocess\nfound = [1]\nwhile True:\n    found = found + [2]\n    subprocess.run(found)\n")
        == []
    )


def test_what_only_the_run_can_tell_is_left_open() -> None:
    unit = started(
        "cmd = ['vllm', 'serve', MODEL, '--max-num-seqs', '64', '--port', port]\n"
        "if big:\n    cmd += ['--max-model-len', '65536', '--max-num-seqs', '8']\n"
        "for each in more:\n    cmd.append('--enforce-eager')\n"
    )
    assert values(unit) == {"model.name": MODEL}
    assert {"serving.max_model_len", "serving.max_num_seqs", "serving.enforce_eager"} <= set(unit.hidden)
    assert "serving.tensor_parallel_size" not in unit.hidden
    for more in ("*extra", "*([*extra] if extra else [])"):
        unit = started(f"subprocess.run(['vllm', 'serve', MODEL, {more}])")
        assert "serving.max_model_len" in unit.hidden
    unit = started(
        "cmd = ['vllm', 'serve', MODEL]\nfor key, value in more.items():\n    cmd.extend([f'--{key}', str(value)])"
    )
    assert "serving.max_model_len" in unit.hidden
    unit = started("subprocess.run(['vllm', 'serve', name, *(['--max-model-len', '8192'] if long else [])])")
    assert is_unknown(unit.settings["model.name"].value)
    assert unit.hidden == ("serving.max_model_len",)


@pytest.mark.parametrize(
    "text",
    [
        f'"""Start it first: vllm serve {MODEL} --max-model-len 8192"""\nimport subprocess\n',
        f"print('vllm serve {MODEL}')\n",
        "import subprocess\nsubprocess.run(['pip', 'install', 'vllm'])\n",
        f"cmd = ['vllm', 'serve', '{MODEL}']\ncmd.insert(2, other)\n",
        "cmd = ['vllm', 'bench', 'serve']\n",
    ],
)
def test_what_starts_none_is_none(text: str) -> None:
    assert servers(text) == []


def test_the_gpu_that_a_program_rents_is_not_the_one_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(MODAL)
    assert "1 file: nothing found." in run_text("kb.check", tmp_path, "--gpu", "rtx-4090").stdout
    path.write_text(MODAL.replace('f"H100:{N_GPU}"', '"H100"'))
    assert "error serving-fewer-gpus-than-ranks" in run_text("kb.check", tmp_path).stdout
    path.write_text(MODAL.replace("import modal", "from mine import modal"))
    written = path.read_text()
    run = run_text("kb.check", path, "--gpu", "rtx-4090", "--unsafe-fixes", "--fix")
    assert "app.py:18:10: error serving-nothing-left-for-cache" in "".join(run.stdout.splitlines())
    assert path.read_text() == written  # a flag has no place that is known in a program


FULL = '["vllm", "serve", "facebook/opt-125m", "--max-model-len", "409600"]'


@pytest.mark.parametrize(
    "text",
    [
        "cmd = ['vllm', 'serve', 'm']\n" + "cmd = cmd + ['--x', '1']\n" * 350,
        "a, b = ['vllm', 'serve'], ['m']\na = ['vllm']\nb = ['serve']\n" + "a.extend(b)\nb.extend(a)\n" * 14,
        'NAMES = ["llama-server", "vllm"]\nparser.add_argument("--backend", choices=["llama-server", "x"])\n',
        'PAIR = ["vllm", "serve"]\nprint(["vllm", "serve", "--help"])\n',
        f"args = parse_args({FULL})\n",
        f'def add(words):\n    words.extend(["--max-model-len", "512"])\ncmd = {FULL}\nadd(cmd)\n',
        f'cmd = {FULL}\nother = cmd\nother.append("--enforce-eager")\n',
        'import subprocess\nsubprocess.run("echo vllm serve m --max-model-len 4096", shell=True)\n',
    ],
)
def test_what_may_be_no_server_or_another_one_is_none(text: str) -> None:
    assert servers(text) == []


def test_a_list_that_is_handed_on_to_what_adds_to_it_is_not_complete() -> None:
    text = f"""
import subprocess

def tune(words):
    words.append("--enforce-eager")

def prepare(words, fast):
    tune(words)

def serve():
    cmd = ["vllm", "serve", "{MODEL}", "--max-model-len", "8192"]
    prepare(cmd, fast=True)
    subprocess.run(cmd)
"""
    assert servers(text) == []


def test_a_server_of_a_long_program_is_read() -> None:
    """Lists and calls around it, thousands of them, take none of its steps."""
    lists = "".join(
        f"row_{at} = ['a', '--flag', 'c']\nrow_{at}.append(str({at}))\nprint(row_{at})\n" for at in range(1500)
    )
    (unit,) = servers(
        f"import subprocess\n{lists}\nsubprocess.run(['vllm', 'serve', '{MODEL}', '--max-model-len', '8192'])\n"
    )
    assert values(unit) == {"model.name": MODEL, "max_model_len": 8192}
