"""Servers in shell scripts, manifests, vLLM's own config and Python: what is read, found and left alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import shallow_catalog
from kb.commands.estimate import main
from kb.config.dockerfile import server_in_image
from kb.config.manifest import servers_in
from kb.config.shell.arguments import Argument
from kb.config.shell.command import CommandReader, read_shell
from kb.config.shell.serving import read_server, release_of_image
from kb.config.text.parsing import parse
from kb.core.expression import is_unknown
from kb.session.lookups import read_named
from warm_runs import run_text

LLAMA = "meta-llama/Llama-3.1-8B"
COMPOSE = f"""\
services:
  llm:
    image: vllm/vllm-openai:v0.8.5
    command:
      - --model
      - {LLAMA}
      - --max-model-len=8192
      - --tensor-parallel-size
      - "2"
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]
  web:
    image: nginx
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  containers:
    - name: mistral
      image: vllm/vllm-openai:latest
      command: ["/bin/sh", "-c"]
      args: ["vllm serve mistralai/Mistral-7B-v0.1 --max-model-len 40000"]
      resources: {limits: {nvidia.com/gpu: 1}}
"""


def check(path: Path, *arguments: str) -> dict[str, Any]:
    run = run_text("kb.check", path, "--format", "json", "--notes", *arguments)
    assert run.returncode in (0, 1), run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def findings(path: Path, *arguments: str) -> list[tuple[str, int]]:
    units = check(path, *arguments)["files"]
    return [(row["rule"], row["line"]) for unit in units for row in unit["findings"]]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_server_of_a_script_is_a_unit_of_its_own(tmp_path: Path) -> None:
    script = f"""\
MODEL={LLAMA}
CUDA_VISIBLE_DEVICES=0 vllm serve $MODEL --max-model-len 131072
nohup python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen2.5-14B -tp 3 &
docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.20.0 --model {LLAMA} --swap-space 4 --max-model-len 4096
python -m sglang.launch_server --model-path {LLAMA} --mem-fraction-static 1.0
text-generation-launcher --model-id {LLAMA} --max-input-length 4096 --max-total-tokens 4096
llama-server -m model.gguf -c 8192 -np 8
"""
    path = written(tmp_path, "serve.sh", script)
    assert [unit["dialect"] for unit in check(path)["files"]] == [
        "vllm",
        "vllm",
        "vllm",
        "sglang",
        "tgi",
        "llama-server",
    ]
    assert findings(path, "--gpu", "rtx-3090") == [
        ("serving-length-over-cache", 2),
        ("serving-heads-not-shared-evenly", 3),
        ("flag-not-in-release", 4),
        ("serving-static-share-out-of-range", 5),
        ("serving-input-not-below-total", 6),
        ("serving-context-divided", 7),
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (LLAMA, "kb estimate"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "kb estimate"),  # its owner packs it under this name
        ("./llama-3.1-8b-W4A16", "does not know the model ./llama-3.1-8b-W4A16"),
        ("Qwen/Qwen2.5-7B-mine", "does not know the model Qwen/Qwen2.5-7B-mine"),  # guessed: `kb estimate` takes none
        ("google/flan-t5-base", "google/flan-t5-base (t5) is none"),
        ("$MODEL", "model.name under [facts] in kb.toml says it for all"),
        ("--port 8000", "no model that kb can read is named"),
    ],
)
def test_a_server_is_sent_to_estimate_only_where_that_knows_its_model(tmp_path: Path, name: str, said: str) -> None:
    (unit,) = check(written(tmp_path, "serve.sh", f"vllm serve {name} --max-model-len 4096\n"))["files"]
    assert said in unit["note"]


def test_flags_that_only_the_run_can_tell_leave_a_servers_options_open(tmp_path: Path) -> None:
    for more in ('"$@"', "$EXTRA_ARGS", '"${ARGS[@]}"', "$REST"):
        path = written(tmp_path, "serve.sh", f"vllm serve {LLAMA} --port $PORT {more}\n")
        assert findings(path, "--gpu", "rtx-3090") == []  # they may say --max-model-len
    (unit,) = check(written(tmp_path, "serve.sh", f"vllm serve --port=1 {LLAMA} -tp 3\n"))["files"]
    assert [row["rule"] for row in unit["findings"]] == ["serving-heads-not-shared-evenly"]


def test_a_call_in_an_arm_that_the_program_rules_out_is_no_run(tmp_path: Path) -> None:
    text = """\
from vllm import LLM
WIDE = False
def load(name, wide=False):
    if wide:
        return LLM(model=name, dtype="float", max_model_len=16000)
    return LLM(model=name, max_model_len=10000)
load("mistralai/Mistral-7B-v0.1", wide=WIDE)
"""
    path = written(tmp_path, "load.py", text)
    assert findings(path, "--gpu", "rtx-4090") == []
    path.write_text(text.replace("WIDE = False", "WIDE = True"))
    assert ("serving-nothing-left-for-cache", 5) in findings(path, "--gpu", "rtx-4090")


def test_the_model_of_vllm_serve_may_stand_behind_flags(tmp_path: Path) -> None:
    lines = """\
vllm serve --port 8000 --max-model-len 8192 Qwen/Qwen3-8B
vllm serve --enable-prefix-caching Qwen/Qwen3-4B --max-model-len 8192
vllm serve --seed -1 -tp 2 -O3 Qwen/Qwen3-1.7B --max-model-len 8192
vllm serve --served-model-name a b --max-model-len 8192
vllm serve --max-model-len 8192 --enforce-eager "$MODEL"
"""
    found = settings_of(written(tmp_path, "serve.sh", lines))
    names = ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B", "Qwen/Qwen3-1.7B", None]
    assert [each.get("model.name") for each in found[:4]] == names
    assert is_unknown(found[4]["model.name"])


@pytest.mark.parametrize("name, text", [
    ("compose.yaml", """\
services:
  vllm:
    image: vllm/vllm-openai:v0.26.0
    environment: ["VLLM_USE_V2_MODEL_RUNNER=0"]
    command: --model Qwen/Qwen3-8B --max-model-len 8192 --speculative-config '{"method":"ngram"}'
"""),
    ("serve.sh", """\
export VLLM_USE_V2_MODEL_RUNNER=0
vllm serve Qwen/Qwen3-8B --max-model-len 8192 --speculative-config '{"method": "ngram"}'
"""),
])  # fmt: skip
def test_what_decides_on_vllms_runner_is_read(tmp_path: Path, name: str, text: str) -> None:
    (found,) = settings_of(written(tmp_path, name, text))
    assert found["serving.v2_model_runner"] is False
    assert found["serving.speculative_method"] == "ngram"


SWAP = """\
macros:
  llama-run: llama-server --port ${PORT} -ngl 99 -ub 2048
  fast: ${llama-run} --cache-type-k q8_0
  elsewhere: ${env.BIN}/llama-server --ctx-size 8192
models:
  small:
    cmd: |
      # one card
      ${fast}
      -m /models/small.gguf --ctx-size 8192
      -ub 512
  large:
    cmd: |
      docker run --rm --gpus all -p ${PORT}:8000 -e HF_TOKEN=${env.HF_TOKEN}
      vllm/vllm-openai:v0.25.1 --model Qwen/Qwen3-8B
      --max-model-len 8192
  open: {cmd: "${elsewhere} -m x.gguf"}
  proxied: {proxy: "http://localhost:1"}
"""


def test_the_commands_of_llama_swap_are_read_with_their_macros(tmp_path: Path) -> None:
    small, large = settings_of(written(tmp_path, "config.yaml", SWAP))
    assert (small["serving.ctx_size"], small["serving.cache_type_k"]) == (8192, "q8_0")
    assert large["model.name"] == "Qwen/Qwen3-8B"
    assert large["serving.image_release"] == "0.25.1"
    found = findings(tmp_path / "config.yaml", "--gpu", "rtx-3090", "--verbose")
    assert not any(rule == "yaml-duplicate-key" for rule, _ in found)


def test_containers_of_a_compose_file_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "compose.yaml", COMPOSE)
    assert findings(path) == [("serving-shared-memory-default", 9), ("serving-fewer-gpus-than-ranks", 15)]


def test_a_count_that_cannot_be_told_says_nothing(tmp_path: Path) -> None:
    for devices in ('device_ids: ["${GPUS:-0,1}"]', "count: all"):
        path = written(tmp_path, "compose.yaml", COMPOSE.replace("count: 1", devices))
        assert "serving-fewer-gpus-than-ranks" not in [rule for rule, _ in findings(path)]


TGI = """\
services:
  tgi:
    image: ghcr.io/huggingface/text-generation-inference:2.4.0
    environment:
      - MODEL_ID=meta-llama/Llama-3.1-8B-Instruct
      - MAX_TOTAL_TOKENS=4096
      - MAX_INPUT_TOKENS=8192
"""
TGI_POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: tgi}
spec:
  template:
    spec:
      containers:
        - name: tgi
          image: ghcr.io/huggingface/text-generation-inference:latest
          env:
            - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
            - {name: MODEL_ID, value: meta-llama/Llama-3.1-8B-Instruct}
            - {name: QUANTIZE, value: ""}
            - {name: MAX_TOTAL_TOKENS, value: "4096"}
            - {name: MAX_INPUT_TOKENS, value: "8192"}
          args: ["--max-total-tokens=$(MAX_TOTAL_TOKENS)"]
"""
VALUES = """\
image:
  repository: ghcr.io/huggingface/text-generation-inference
  tag: "2.4.0"
env:
  MODEL_ID: meta-llama/Llama-3.1-8B-Instruct
  MAX_TOTAL_TOKENS: "4096"
  MAX_INPUT_TOKENS: "8192"
"""


@pytest.mark.parametrize(
    ("name", "text", "line"), [("c.yaml", TGI, 7), ("pod.yaml", TGI_POD, 15), ("values.yaml", VALUES, 7)]
)
def test_what_the_environment_tells_tgi_is_read(name: str, text: str, line: int, tmp_path: Path) -> None:
    found = findings(written(tmp_path, name, text))
    assert ("serving-input-not-below-total", line) in found
    fewer = text.replace("8192", "2048")
    assert "serving-input-not-below-total" not in [rule for rule, _ in findings(written(tmp_path, name, fewer))]


def test_a_flag_of_tgis_command_counts_before_its_variable(tmp_path: Path) -> None:
    text = TGI + "    command: --max-input-tokens 2048\n"
    assert "serving-input-not-below-total" not in [row for row, _ in findings(written(tmp_path, "c.yaml", text))]


LLAMA_CPP = """\
services:
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    environment:
      LLAMA_ARG_HF_REPO: someone/model-GGUF:Q5_K_M
      LLAMA_ARG_N_PARALLEL: "4"
      LLAMA_ARG_CTX_SIZE: "8192"
"""


def test_what_the_environment_tells_llama_cpp_is_read_and_a_flag_counts_before_it(tmp_path: Path) -> None:
    assert ("serving-context-divided", 7) in findings(written(tmp_path, "c.yaml", LLAMA_CPP))
    text = LLAMA_CPP + "    command: [-c, '65536']\n"
    assert not [row for row in findings(written(tmp_path, "c.yaml", text)) if row[0].startswith("serving-context")]


def test_a_charts_image_and_extra_arguments_are_read(tmp_path: Path) -> None:
    image = "image: {repository: vllm/vllm-openai, tag: v0.8.5}\n"
    text = f"{image}extraArgs:\n  - --model=mistralai/Mistral-7B-v0.1\n  - --max-model-len=65536\n"
    assert ("serving-length-beyond-positions", 4) in findings(written(tmp_path, "values.yaml", text))


def test_an_environment_of_another_image_is_left_alone(tmp_path: Path) -> None:
    text = TGI.replace("ghcr.io/huggingface/text-generation-inference:2.4.0", "acme/text-generation-inference-web:1")
    assert not [row for row in findings(written(tmp_path, "c.yaml", text)) if row[0].startswith("serving-")]


def test_a_shell_in_a_pod_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "pod.yaml", POD)
    assert findings(path) == [("serving-length-beyond-positions", 9)]


TASK = f"""\
resources: {{accelerators: H100:1}}
envs:
  MODEL: {LLAMA}   # or another
  LENGTH: "400000"
  FLAGS: --per_device_train_batch_size 2
  TOKEN:
setup: |
  pip install vllm==0.8.5
  export LENGTH=8192   # of another process
run: |
  cat > notes.txt << 'EOF'
  vllm serve of-a-note --max-model-len 1
  EOF
  accelerate launch train.py --model_name_or_path $MODEL $FLAGS --output_dir o
  vllm serve $MODEL --max-model-len $LENGTH --gpu-memory-utilization 0.25
"""


def test_a_task_of_skypilot_is_read_as_the_script_that_it_runs(tmp_path: Path) -> None:
    path = written(tmp_path, "task.yaml", TASK)
    training, server = check(path, "--gpu", "rtx-4090")["files"]
    setup = training["setup"]
    assert (setup["model_name"], setup["per_device_train_batch_size"]) == (LLAMA, 2)
    # the task rents its GPU, which is not the one that is named; its release is the one that it installs
    assert [(each["rule"], each["line"]) for each in server["findings"]] == [("serving-length-beyond-positions", 15)]
    assert server["findings"][0]["severity"] == "warning"  # `sky launch --env` may say another
    removed = TASK.replace("0.25", "0.25 --disable-log-requests").replace("0.8.5", "0.19.0")
    assert ("flag-not-in-release", 15) in findings(written(tmp_path, "task.yaml", removed))
    there = removed.replace("run: |\n", "run: |\n  pip install vllm==0.9.2\n").replace(
        "  pip install vllm==0.19.0\n", ""
    )
    assert "flag-not-in-release" not in dict(findings(written(tmp_path, "task.yaml", there)))
    few = TASK.replace("0.25", "0.25 --tensor-parallel-size 2")
    for text, fires in (
        (few, True),
        (few.replace("ors: H100:1", "ors: {H100:1, L4:2}"), False),
        (f"num_nodes: 2\n{few}", False),
        (few.replace("H100:1", "tpu-v5e-8"), False),
        (few.replace(" 2\n", " $SKYPILOT_NUM_GPUS_PER_NODE\n"), False),
    ):
        said = dict(findings(written(tmp_path, "task.yaml", text)))
        assert ("serving-fewer-gpus-than-ranks" in said) is fires, text


def test_the_config_file_of_vllm_is_read(tmp_path: Path) -> None:
    text = f"model: {LLAMA}\ngpu-memory-utilization: 1.5\nmax-model-len: 8192\n"
    path = written(tmp_path, "vllm.yaml", text)
    assert findings(path) == [("serving-share-out-of-range", 2)]


def test_calls_of_vllm_are_read_and_those_of_others_are_not(tmp_path: Path) -> None:
    call = f'llm = LLM(model="{LLAMA}", tensor_parallel_size=3)\n'
    own = written(tmp_path, "own.py", "from vllm import LLM, SamplingParams\n" + call)
    assert findings(own) == [("serving-heads-not-shared-evenly", 2)]
    (tmp_path / "other").mkdir()
    written(tmp_path / "other", "agents.py", "from crewai import LLM  # not vllm\n" + call)
    config = f'LLMConfig(model_id="{LLAMA}", tensor_parallel_size=3)\n'
    written(tmp_path / "other", "ours.py", "import ray  # for vllm\nfrom ours.config import LLMConfig\n" + config)
    run = run_text("kb.check", tmp_path / "other", "--format", "json")
    assert "serving-" not in run.stdout


def test_the_engine_that_a_program_makes_has_defaults_of_its_own(tmp_path: Path) -> None:
    args = f'args = AsyncEngineArgs(model="{LLAMA}", tensor_parallel_size=3)\n'
    text = "from vllm import AsyncEngineArgs, AsyncLLMEngine\n" + args
    assert findings(written(tmp_path, "own.py", text)) == [("serving-heads-not-shared-evenly", 2)]
    loading, kwargs = f'dict(model_id="own", model_source="{LLAMA}")', '{"tensor_parallel_size": 3}'
    config = f"config = LLMConfig(model_loading_config={loading}, engine_kwargs={kwargs})\n"
    ray = "from ray.serve.llm import LLMConfig\n" + config
    assert findings(written(tmp_path, "ray.py", ray)) == [("serving-heads-not-shared-evenly", 2)]
    made = "engine = AsyncLLMEngine.from_engine_args(args{})\n"
    for more, tokens in (("", 2048), (", usage_context=UsageContext.OPENAI_API_SERVER", 8192)):
        program = text.replace("=3", "=1") + made.format(more)
        run = run_text("kb.estimate", written(tmp_path, "serve.py", program), "--gpu", "h100-80gb")
        assert f"max_num_batched_tokens {tokens} (default)" in " ".join(run.stdout.split())


def test_the_model_of_tritons_vllm_backend_is_read(tmp_path: Path) -> None:
    text = f'{{\n  "model": "{LLAMA}",\n  "disable_log_requests": true,\n  "tensor_parallel_size": 3\n}}\n'
    (tmp_path / "model_repository" / "chat" / "1").mkdir(parents=True)
    path = written(tmp_path / "model_repository" / "chat" / "1", "model.json", text)
    assert findings(path) == [("serving-heads-not-shared-evenly", 4)]


def test_a_list_of_models_names_none(tmp_path: Path) -> None:
    text = f'{{\n  "model": ["{LLAMA}"],\n  "disable_log_requests": true,\n  "tensor_parallel_size": 3\n}}\n'
    assert findings(written(tmp_path, "model.json", text)) == []


def test_a_training_script_with_a_server_beside_it_stays_a_training_run(tmp_path: Path) -> None:
    script = f"""\
vllm serve {LLAMA} --max-model-len 8192 &
python run_summarization.py --model_name_or_path t5-base --do_train --per_device_train_batch_size 4 --output_dir out
"""
    units = check(written(tmp_path, "both.sh", script))["files"]
    assert [unit["dialect"] for unit in units] == ["vllm", "hf"]
    server, training = units
    assert not server["prediction"]
    assert training["prediction"]


@pytest.mark.parametrize("language", ["ko", "en"])
def test_no_advice_for_training_is_given_to_a_server(tmp_path: Path, language: str) -> None:
    text = f"vllm serve {LLAMA} --dtype float16 --max-model-len 4096 --seed 1 --quantization bitsandbytes\n"
    path = written(tmp_path, "serve.sh", text)
    run = run_text("kb.check", path, "--gpu", "t4", "--notes", "--lang", language)
    after = "".join(run.stdout.partition("kb estimate")[2].split())  # a long path is wrapped
    assert "serve.sh" in after  # the way to its memory
    for word in ("batch_size", "gradient", "optim", "LoRA"):
        assert word not in run.stdout


def test_what_a_server_reads_in_its_own_way_is_no_fault(tmp_path: Path) -> None:
    text = (
        "vllm serve some/model --max-model-len 8k --gpu-memory-utilization=${UTIL:-0.9} --some-option-of-tomorrow 3\n"
    )
    assert findings(written(tmp_path, "serve.sh", text), "--gpu", "t4") == []


def test_a_length_that_the_environment_allows_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed, model = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "mistralai/Mistral-7B-v0.1 --max-model-len 65536"
    script = (
        f"docker run -e {allowed} vllm/vllm-openai:v0.10.0 --model {model}\n"
        f"docker run --env={allowed} -e X vllm/vllm-openai:v0.10.0 --model {model}\n"
        f"docker run -e X=1 vllm/vllm-openai:v0.10.0 --model {model}\nexport {allowed}\nvllm serve {model}\n"
    )
    assert findings(written(tmp_path, "serve.sh", script), "--gpu", "h200") == [("serving-length-beyond-positions", 3)]
    path = written(
        tmp_path,
        "serve.py",
        "import os\nfrom vllm import LLM\nos.environ['VLLM_ALLOW_LONG_MAX_MODEL_LEN'] = '1'\n"
        "LLM('mistralai/Mistral-7B-v0.1', max_model_len=65536)\n",
    )
    assert findings(path, "--gpu", "h200") == []
    assert main([str(path), "--gpu", "h200"]) == 0
    assert "max_model_len 65536" in capsys.readouterr().out


def test_a_container_with_an_entry_point_of_its_own_starts_what_that_says(tmp_path: Path) -> None:
    image = "vllm/vllm-openai:v0.10.0"
    text = (
        f"docker run --entrypoint vllm {image} serve {LLAMA} -tp 3\n"
        f"docker run --entrypoint=python3 {image} -m vllm.entrypoints.openai.api_server --model {LLAMA} -tp 3\n"
        f"docker run --entrypoint /bin/bash {image} -c 'echo {LLAMA}'\n"  # whose own program does not run
    )
    path = written(tmp_path, "serve.sh", text)
    assert findings(path, "--gpu", "b200") == [("serving-heads-not-shared-evenly", line) for line in (1, 2)]
    assert len(check(path)["files"]) == 2


def test_an_evaluation_by_vllm_is_checked_as_the_llm_that_it_makes(tmp_path: Path) -> None:
    text = (
        f"lm_eval --model vllm --model_args pretrained={LLAMA},tensor_parallel_size=3,max_length=4096 --tasks gsm8k\n"
        f"python -m lm_eval --model=vllm '--model_args=pretrained={LLAMA},gpu_memory_utilization=95' --tasks gsm8k\n"
        f"lm_eval --model hf --model_args pretrained={LLAMA},tensor_parallel_size=3\n"
        "lm_eval --model vllm --model_args pretrained=$MODEL,tensor_parallel_size=3\n"
        f"lm_eval run -M vllm -a pretrained={LLAMA} tensor_parallel_size=4 max_model_len=4096,max_length=900000\n"
        f"ARGS='pretrained={LLAMA},tensor_parallel_size=3'\nlm_eval --model vllm --model_args $ARGS --tasks x\n"
        f"""lm_eval --model vllm --model_args '{{"pretrained": "{LLAMA}", "tensor_parallel_size": 3}}'\n"""
        f"vllm serve {LLAMA} -pp 64 --max-model-len 4096\n"  # more stages than layers: nothing to advise
    )
    units = check(written(tmp_path, "eval.sh", text), "--gpu", "rtx-3090")["files"]
    found = [(row["rule"], row["line"], row["column"]) for unit in units for row in unit["findings"]]
    at = [line.index(sign) + len(sign) + 1 for line, sign in zip(text.split("\n"), ("size=", "zation="), strict=False)]
    assert found == [
        ("serving-heads-not-shared-evenly", 1, at[0]),
        ("serving-share-out-of-range", 2, at[1]),
        ("serving-heads-not-shared-evenly", 7, len("lm_eval --model vllm --model_args ") + 1),
    ]
    assert [unit["dialect"] for unit in units] == ["vllm"] * 5


def words(text: str) -> list[Argument]:
    return [Argument(word, 0, 0) for word in text.split()]


@pytest.mark.parametrize(
    "text",
    [
        "pip install vllm",
        "vllm bench serve --model x",
        "docker build -t vllm/vllm-openai:mine .",
        "docker run --rm nginx",
        "docker run --name vllm -v /srv/vllm:/data team/app:1 --model x --max-model-len 8",
        "docker run --rm team/vllm-client:1 --model x",
        "docker run --name llama-server",
        "docker run --privileged vllm/vllm-tpu:v0.25.0 vllm serve x --max-model-len 8",
        "docker run --device=/dev/kfd rocm/vllm:latest vllm serve x --max-model-len 8",
        "python -m vllm.something --model x",
        "echo vllm",
        "echo vllm serve facebook/opt-125m --max-model-len 4096",
        "/usr/bin/pkill -f vllm serve facebook/opt-125m",
        "printf %s llama-server -m a.gguf",
    ],
)
def test_what_starts_no_server_is_none(text: str) -> None:
    assert read_server(words(text)) is None


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("-d --name vllm --gpus all -e A=$B $IMAGE", "vllm serve a/b --max-model-len 8"),
        ("-it --rm -p8000:8000 --ipc=host team/app:1", "python3 -m vllm.entrypoints.openai.api_server --model a/b"),
        ("--detach --gpus all -v /srv/vllm:/data team/vllm-a:1", "--model a/b --max-model-len 8"),
    ],
)
def test_a_server_in_a_container_of_ones_own_image_is_read(before: str, behind: str) -> None:
    arguments = [each._replace(text=None) if "$" in (each.text or "") else each for each in words(before)]
    for way in ("sudo docker run", "docker create"):
        started = read_server([*words(way), *arguments, *words(behind)])
        assert started is not None
        assert (started.server.dialect, started.image) == ("vllm", arguments[-1])
        assert "a/b" in [each.text for each in started.rest]


def test_a_release_is_read_of_a_tag_that_names_one() -> None:
    assert release_of_image("vllm/vllm-openai:v0.8.5") == "0.8.5"
    assert release_of_image("vllm/vllm-openai:v0.8.5.post1") == "0.8.5"
    assert release_of_image("vllm/vllm-openai:v0.23.0@sha256:6d8429e3") == "0.23.0"
    assert release_of_image("vllm/vllm-openai:v０.8.5") is None
    assert release_of_image("registry:5000/vllm-openai:v0.8.5") == "0.8.5"
    assert release_of_image("lmcache/vllm-openai:v0.3.14") is None
    assert release_of_image("registry:5000/vllm/vllm-openai:latest") is None
    assert release_of_image("ghcr.io/ggml-org/llama.cpp:server-b4000") is None


def test_a_plain_check_of_a_training_file_brings_in_nothing_of_servers(tmp_path: Path) -> None:
    training = "model_name_or_path: t5-base\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\noutput_dir: out\n"
    path = written(tmp_path, "train.yaml", training)
    code = (
        "import sys\nfrom kb.check import main\n"
        f"main([{str(path)!r}, '--gpu', 't4'])\n"
        "print(sorted(name for name in sys.modules if 'serving' in name or 'manifest' in name), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr.strip().splitlines()[-1] == "[]", run.stderr


OF_VARIABLES = f"""\
services:
  llm:
    image: ${{IMAGE:-vllm/vllm-openai:v0.8.5}}
    command: >
      --model ${{MODEL:-{LLAMA}}}
      --tensor-parallel-size ${{RANKS:-2}}
      ${{EXTRA:-}}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 1, capabilities: [gpu]}}]}}}}}}
"""
FEWER = "serving-fewer-gpus-than-ranks"


@pytest.mark.parametrize(
    ("command", "fires"),
    [
        ("{}", True),
        ("CUDA_VISIBLE_DEVICES=0,1 {}", False),
        ("bash -c 'CUDA_VISIBLE_DEVICES=0,1 {}'", False),
        ('eval "CUDA_VISIBLE_DEVICES=0,1 {}"', False),
        ("sudo {}", False),
        ("env -u CUDA_VISIBLE_DEVICES {}", False),
        ("apptainer exec --nv --cleanenv vllm.sif {}", False),
        ("srun --export=ALL,CUDA_VISIBLE_DEVICES=0,1 {}", False),
    ],
)
def test_a_variable_that_may_not_reach_the_server_counts_no_gpus(tmp_path: Path, command: str, fires: bool) -> None:
    server = f"vllm serve {LLAMA} --tensor-parallel-size 2"
    text = f"export CUDA_VISIBLE_DEVICES=0\n{command.format(server)}\n"
    assert (FEWER in dict(findings(written(tmp_path, "serve.sh", text)))) is fires


def test_variables_of_compose_have_their_defaults_or_what_env_says(tmp_path: Path) -> None:
    path = written(tmp_path, "compose.yaml", OF_VARIABLES)
    assert (FEWER, 8) in findings(path)
    written(tmp_path, ".env", "RANKS=1  # one card\nEXTRA=--enforce-eager\n")
    assert FEWER not in [rule for rule, _ in findings(path)]
    (file,) = check(path)["files"]
    assert file["setup"]["model_name"] == LLAMA


@pytest.mark.parametrize(
    ("share", "env", "severity"),
    [
        ("1.5", "", "error"),
        ("${SHARE:-1.5}", "", "warning"),
        ("${SHARE-1.5}", "", "warning"),
        ("${SHARE:-1.5}", "SHARE=1.5\n", "error"),
        ("${SHARE:-1.5}", "OTHER=1.5\n", "warning"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_what_rests_on_a_default_that_the_environment_may_change_is_likely(
    tmp_path: Path, share: str, env: str, severity: str, listed: bool
) -> None:
    words = f"--model gpt2 --gpu-memory-utilization {share} --port ${{PORT:-8000}}"
    command = f"[{', '.join(json.dumps(word) for word in words.split())}]" if listed else words
    text = f"services:\n  llm:\n    image: vllm/vllm-openai:v0.8.5\n    command: {command}\n"
    written(tmp_path, ".env", env)
    (file,) = check(written(tmp_path, "compose.yaml", text))["files"]
    (found,) = [each for each in file["findings"] if each["rule"] == "serving-share-out-of-range"]
    assert found["severity"] == severity
    assert ("gpu_memory_utilization" in json.dumps(found.get("assumes", []))) == (severity == "warning")


def test_the_release_is_that_of_the_image_that_kustomize_puts_and_of_no_other_environment(tmp_path: Path) -> None:
    """What a kustomization puts in place of an image counts; of an environment other than the project's own that a
    script activates, no release is known."""

    def release(path: Path) -> object:
        (unit,) = settings_of(path)
        found = unit.get("serving.image_release", "the project's")
        return None if is_unknown(found) else found

    pod = POD.replace("vllm/vllm-openai:latest", "reg.io:5000/vllm/vllm-openai:v0.18.0")
    path = written(tmp_path, "pod.yaml", pod)
    put = "resources: [{}]\nimages: [{{name: reg.io:5000/vllm/vllm-openai, {}}}]\n"
    for files, image, expected in (
        ("other.yaml", "newTag: v0.10.0", "0.18.0"),
        ("pod.yaml", "name: other, newTag: v0.10.0", None),  # an overlay elsewhere may put another tag
        ("pod.yaml", "newTag: v0.10.0", "0.10.0"),
        ("pod.yaml", "newName: vllm/vllm-openai", "0.18.0"),
        ("pod.yaml", "digest: sha256:ab", None),
    ):
        written(tmp_path, "kustomization.yaml", put.format(files, image))
        assert release(path) == expected, image
    for before, expected in (
        ("source other/bin/activate && ", None),
        ("source ~/envs/x/bin/activate\n", None),
        ("conda activate serve\n", None),
        ('source "$VENV/bin/activate"\n', None),
        ("module load cuda/12 vllm/0.11\n", None),
        ("pyenv activate serve\n", None),
        ("source setup_env.sh\n", None),
        ("export PATH=/opt/serve/bin:$PATH\n", None),
        ("export PATH=/usr/local/cuda/bin:$PATH\n", "the project's"),
        ("conda create -n serve python=3.12\nconda activate serve\n", "the project's"),
        ("source other/bin/activate\ndeactivate\n", "the project's"),
        ("uv venv other\n. other/bin/activate\n", "the project's"),
        ("source .venv/bin/activate\n", "the project's"),
    ):
        assert release(written(tmp_path, "serve.sh", f"{before}vllm serve {LLAMA}\n")) == expected, before


def test_an_env_file_further_up_is_another_projects(tmp_path: Path) -> None:
    written(tmp_path, ".env", "RANKS=1\n")
    (tmp_path / "below").mkdir()
    path = written(tmp_path / "below", "compose.yaml", OF_VARIABLES)
    assert (FEWER, 8) in findings(path)


def test_a_shell_in_a_compose_command_is_read(tmp_path: Path) -> None:
    command = f'bash -c "pip install x && python -m vllm.entrypoints.openai.api_server --model {LLAMA} --port 1"'
    typed = f"|\n      bash <<END\n      vllm serve {LLAMA} --port 1\n      END"
    for text in (f">\n      {command}", typed):
        path = written(tmp_path, "compose.yaml", f"services:\n  llm:\n    build: .\n    command: {text}\n")
        (file,) = check(path)["files"]
        assert (file["dialect"], file["setup"]["model_name"]) == ("vllm", LLAMA)


def test_an_image_of_ones_own_is_vllms_where_its_name_and_its_flags_say_so(tmp_path: Path) -> None:
    pod = POD.replace("vllm/vllm-openai:latest", "local/vllm-gemma:1.2.0").replace(
        'command: ["/bin/sh", "-c"]', "env: []"
    )
    pod = pod.replace(
        '["vllm serve mistralai/Mistral-7B-v0.1 --max-model-len 40000"]', "[--model, a/b, --max-model-len, '8']"
    )
    (file,) = check(written(tmp_path, "pod.yaml", pod))["files"]
    assert (file["dialect"], file["setup"]["model_name"]) == ("vllm", "a/b")


def test_a_tag_of_a_teams_own_image_is_no_release_of_the_server() -> None:
    assert release_of_image("registry.local/team/app:1.2.0") is None
    assert release_of_image("nvcr.io/nvidia/vllm:25.09-py3") is None  # a month
    assert release_of_image("registry.local/vllm/vllm-openai:v0.9.1") == "0.9.1"


def test_what_a_container_runs_is_told_by_its_image_and_not_by_what_the_project_pins(tmp_path: Path) -> None:
    """A flag is gone in the release that the project pins; the images have others, or nobody knows which."""
    written(tmp_path, "requirements.txt", "vllm==0.21.0\n")
    images = (
        "vllm/vllm-openai:latest",
        "team/own:3 vllm serve",
        "vllm/vllm-openai:v0.11.0",
        "vllm/vllm-openai:v0.17.0",
    )
    runs = [f"docker run {image} --model {LLAMA} --disable-log-requests" for image in images]
    entered = (
        "ssh host",
        "uvx --from vllm==0.11.0",
        "srun --container-image=vllm/vllm-openai:v0.11.0",
        "$RUN",
        "nohup",
    )
    runs += [f"{way} vllm serve {LLAMA} --disable-log-requests" for way in entered]
    runs += [
        f'{way} bash -c "vllm serve {LLAMA} --disable-log-requests"' for way in ("docker exec c", "docker run me/app")
    ]
    path = written(tmp_path, "run.sh", "\n".join([*runs, ""]))
    assert findings(path) == [("flag-not-in-release", 4), ("flag-not-in-release", 9)]
    service = f"services:\n  llm:\n    build: .\n    command: vllm serve {LLAMA} --disable-log-requests\n"
    assert findings(written(tmp_path, "compose.yaml", service)) == []


def test_a_value_that_the_release_lacks_is_not_advised_and_a_default_may_be_another(tmp_path: Path) -> None:
    flags = ("--kv-cache-dtype int8", "--dtype ${DT:-fp16}", "--max-model-len ${L:-32,768}", "--dtype DTYPE")
    path = written(tmp_path, "run.sh", "".join(f"vllm serve {LLAMA} {each}\n" for each in flags))
    for pinned, listed in (("vllm==0.10.2\n", False), ("", True)):
        written(tmp_path, "requirements.txt", pinned)
        found = [row for unit in check(path)["files"] for row in unit["findings"] if row["rule"] == "server-refuses"]
        assert [(row["line"], bool(row["fix"])) for row in found] == [(1, False), (2, True)]
        assert ("int8_per_token_head" in found[0]["message"]) == listed
        assert found[1]["message"].startswith("If the environment does not change these defaults (dtype)")


def test_words_for_vllms_own_image_may_begin_with_the_model(tmp_path: Path) -> None:
    image, flags = "vllm/vllm-openai:v0.20.0", ("--task", "generate")
    texts = {
        "run.sh": f"docker run {image} {LLAMA} {' '.join(flags)}\n",
        "compose.yaml": f"services:\n  a:\n    image: {image}\n    command: {json.dumps([LLAMA, *flags])}\n",
        "Containerfile": f"FROM {image}\n# HEALTHCHECK \\\n#  CMD curl\nCMD {json.dumps([LLAMA, *flags])}\n",
    }
    for name, text in texts.items():
        (unit,) = check(written(tmp_path, name, text))["files"]
        assert (unit["dialect"], unit["setup"]["model_name"]) == ("vllm", LLAMA), name
        assert [row["rule"] for row in unit["findings"]] == ["flag-not-in-release"], name
    script = written(tmp_path, "compose.yaml", f"services:\n  a:\n    image: {image}\n    entrypoint: [app/run.sh]\n")
    assert check(script)["files"][0]["dialect"] is None


STACK = """\
servingEngineSpec:
  modelSpec:
  - name: llama3
    repository: vllm/vllm-openai
    tag: "v0.10.0"
    modelURL: "meta-llama/Llama-3.1-8B-Instruct"
    requestGPU: 2
    vllmConfig:
      enablePrefixCaching: false
      tensorParallelSize: 4
      gpuMemoryUtilization: 0.99
      extraArgs: ["--max-num-seqs", "512", "--max-num-batched-tokens=256"]
  - name: shared
    modelURL: "meta-llama/Llama-3.1-8B-Instruct"
    requestGPU: 1
    requestGPUMem: 8000
    vllmConfig: {gpuMemoryUtilization: 0.99}
  - name: of-ray
    modelURL: "meta-llama/Llama-3.1-8B-Instruct"
    raySpec: {enabled: true}
    vllmConfig: {gpuMemoryUtilization: 0.99}
"""
KUBEAI = """\
apiVersion: kubeai.org/v1
kind: Model
metadata: {{name: llama}}
spec:
  url: hf://meta-llama/Llama-3.1-8B-Instruct
  engine: {engine}
  args:
    - --tensor-parallel-size=2
    - --gpu-memory-utilization=0.99
  resourceProfile: {profile}
"""


def test_values_of_the_production_stack_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "values.yaml", STACK)
    assert sorted(findings(path)) == [
        ("serving-batched-tokens-below-requests", 12),
        ("serving-fewer-gpus-than-ranks", 7),
        ("serving-prefix-caching-off", 9),
        ("serving-share-near-whole", 11),
    ]
    assert [unit["section"] for unit in check(path)["files"]] == ["llama3"]  # a share of a GPU and Ray's ranks: silent


@pytest.mark.parametrize(
    ("engine", "profile", "rules"),
    [
        ("VLLM", "nvidia-gpu-l4:1", [("serving-fewer-gpus-than-ranks", 10), ("serving-share-near-whole", 9)]),
        ("VLLM", "nvidia-gpu-l4:2", [("serving-share-near-whole", 9)]),
        ("VLLM", "google-tpu-v5e-1x1:1", []),
        ("VLLM", "cpu:1", []),
        ("OLlama", "nvidia-gpu-l4:1", []),
    ],
)
def test_models_of_kubeai_are_read_where_vllm_serves_them(
    engine: str, profile: str, rules: list[tuple[str, int]], tmp_path: Path
) -> None:
    path = written(tmp_path, "model.yaml", KUBEAI.format(engine=engine, profile=profile))
    assert sorted(row for row in findings(path, "--skip-unknown") if row[0].startswith("serving-")) == rules


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (STACK, "batched-tokens=256", "batched-tokens=512"),
        (KUBEAI.format(engine="VLLM", profile="nvidia-gpu-l4:2"), "", ""),
        (POD, "40000", "32768"),
    ],
)
def test_a_fix_of_a_manifest_changes_a_value_in_its_place_or_nothing(
    text: str, old: str, new: str, tmp_path: Path
) -> None:
    """A flag that is not there has no place among a manifest's keys."""
    path = written(tmp_path, "values.yaml", text)
    run_text("kb.check", path, "--fix", "--unsafe-fixes")
    assert path.read_text("utf-8") == text.replace(old, new)


IN_POD = f"""\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: listed
          image: vllm/vllm-openai:v0.11.0
          args: [--model=$(MODEL_ID), --max-model-len, $(LENGTH), --gpu-memory-utilization=$(SHARE)]
          env: &env
            - {{name: MODEL_ID, value: {LLAMA}}}
            - {{name: LENGTH, value: "131072"}}
            - {{name: SHARE, valueFrom: {{configMapKeyRef: {{name: shares, key: gpu}}}}}}
        - name: script
          image: vllm/vllm-openai:v0.11.0
          command: [/bin/sh, -c]
          args: [vllm serve $MODEL_ID --max-model-len $(LENGTH)]
          env: *env
"""


def settings_of(path: Path) -> list[dict[str, Any]]:
    catalog = shallow_catalog()
    text = path.read_text()
    reader = CommandReader(catalog.dialects, catalog.facts)
    units: Any
    if path.suffix == ".yaml":
        units = servers_in(parse(text, str(path)), str(path), reader, read_named)
    elif path.suffix == ".sh":
        units = read_shell(text, str(path), reader)
    else:
        units = server_in_image(text, str(path), reader)
    return [{name: each.value for name, each in unit.settings.items()} for unit in units]


def test_variables_of_a_pod_stand_for_what_its_env_says(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(IN_POD)
    listed, script = settings_of(path)
    assert listed["model.name"] == script["model.name"] == LLAMA
    assert listed["serving.max_model_len"] == script["serving.max_model_len"] == 131072
    assert is_unknown(listed["serving.gpu_memory_utilization"])  # only the cluster knows


@pytest.mark.parametrize(
    "text",
    [
        'ARG TAG=v0.11.0\nFROM vllm/vllm-openai:${TAG} AS base\nCMD ["--model", \\\n  # which\n'
        f'  "{LLAMA}", "--max-model-len", "4096"]\n',
        f"FROM python:3.12\nENV MODEL={LLAMA} LEN=4096\nENTRYPOINT python3 -m vllm.entrypoints.openai.api_server \\\n"
        "  # which\n  --model $MODEL --port ${PORT:-8000} --max-model-len ${LEN}\n",
        f'FROM python:3.12\nENTRYPOINT ["vllm", "serve"]\nCMD ["{LLAMA}", "--max-model-len", "4096"]\n',
        'FROM python:3.12\nCMD ["bash", "-eo", "pipefail", "-xc", '
        f'"source env && vllm serve {LLAMA} --max-model-len 4096"]\n',
        f"FROM python:3.12 AS made\nENV MODEL {LLAMA}\nFROM made\nCMD vllm serve $MODEL --max-model-len 4096\n",
    ],
)
def test_the_server_that_an_image_starts_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    (unit,) = settings_of(path)
    assert unit["model.name"] == LLAMA
    assert unit["serving.max_model_len"] == 4096
    assert "serving.contained" not in unit  # shared memory and GPUs are for `docker run` to say


@pytest.mark.parametrize(
    "text",
    [
        'FROM vllm/vllm-openai:v0.11.0\nCMD ["/usr/bin/supervisord"]\n',
        'FROM vllm/vllm-openai:v0.11.0\nENTRYPOINT ["/start.sh"]\nCMD ["--model", "m"]\n',
        'FROM vllm/vllm-openai:v0.11.0 AS base\nCMD ["--model", "m"]\nFROM python:3.12\nCMD ["python", "app.py"]\n',
        "FROM vllm/vllm-openai:v0.11.0\nRUN vllm serve m --max-model-len 8\n",
    ],
)
def test_an_image_that_starts_something_else_holds_no_server(tmp_path: Path, text: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    assert settings_of(path) == []


def test_dockerfiles_of_servers_are_found_in_folders(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        f'FROM vllm/vllm-openai:v0.11.0\nCMD ["--model", "{LLAMA}", "--max-model-len", "131072"]\n'
    )
    (tmp_path / "build.dockerfile").write_text("FROM python:3.12\nRUN make vllm\nCMD python app.py\n")
    found = check(tmp_path, "--gpu", "rtx-4090")["files"]
    assert [Path(unit["path"]).name for unit in found] == ["Dockerfile"]
    assert ("serving-length-over-cache", 2) in [(row["rule"], row["line"]) for row in found[0]["findings"]]


@pytest.mark.parametrize(
    ("image", "limits"),
    [
        ("vllm/vllm-openai:v0.11.0", "google.com/tpu: 8"),
        ("vllm/vllm-openai:v0.11.0", "amd.com/gpu: 1"),
        ("quay.io/ascend/vllm-ascend:v0.11.0rc1", "cpu: 8"),
        ("rocm/vllm:latest", "cpu: 8"),
    ],
)
def test_servers_on_other_devices_are_left_alone(tmp_path: Path, image: str, limits: str) -> None:
    path = tmp_path / "pod.yaml"
    args = f"[vllm, serve, {LLAMA}, --tensor-parallel-size, '2']"
    path.write_text(
        f"kind: Pod\nspec:\n  containers:\n    - name: a\n      image: {image}\n      command: {args}\n"
        f"      resources: {{limits: {{{limits}}}}}\n"
    )
    assert settings_of(path) == []
    path.write_text(path.read_text().replace(limits, "nvidia.com/gpu: 2").replace(image, "vllm/vllm-openai:v0.11.0"))
    assert len(settings_of(path)) == 1


def test_ranks_that_ray_spreads_share_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    server = f"vllm serve {LLAMA} --tensor-parallel-size 2"
    start = f"kind: RayJob\nspec:\n  rayClusterSpec: {{head: {{image: team/ray}}}}\n  entrypoint: {server}"
    path.write_text(f"{start} --distributed-executor-backend ray\n")
    assert "serving-shared-memory-default" not in [rule for rule, _ in findings(path)]
    path.write_text(f"{start}\n")
    assert "serving-shared-memory-default" in [rule for rule, _ in findings(path)]
