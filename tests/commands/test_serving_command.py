"""``kb estimate --engine`` as a person runs it."""

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_runs import run_kb
from kb.commands.estimate import main
from output_schemas import answers_to
from warm_runs import run_text

ROOT = Path(__file__).parents[2]
HYBRID = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
    "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "full_attention_interval": 4,
}  # fmt: skip


def estimate(*arguments: str, language: str = "en") -> "subprocess.CompletedProcess[str]":
    return run_text("kb.estimate", "--lang", language, *arguments)


def serving(*arguments: str) -> dict[str, Any]:
    run = estimate(*arguments, "--format", "json")
    assert run.returncode in (0, 1), run.stderr
    found: dict[str, Any] = json.loads(run.stdout)["serving"]
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpu", "rtx-3090"),
        ("--gpu", "a100-80gb", "--gpus", "2", "--requests", "9", "--input", "100", "--output", "50"),
        ("--gpu", "t4", "--kv-cache-memory", "1GiB"),
    ],
)
def test_the_json_answers_to_its_published_schema(arguments: tuple[str, ...]) -> None:
    run = estimate("--engine", "vllm", "--model", "llama-3.1-8b", *arguments, "--format", "json")
    answers_to("estimate-serving", json.loads(run.stdout))


def test_tgi_calls_8_bits_what_vllm_calls_4() -> None:
    packed = {
        (engine, name): serving("--engine", engine, "--model", "llama-3.1-8b", "--gpu", "l4", "--quantization", name)
        for engine, name in (("tgi", "bitsandbytes-nf4"), ("tgi", "bitsandbytes"), ("vllm", "bitsandbytes"))
    }
    size = {key: found["weights_bytes"] for key, found in packed.items()}
    # vLLM keeps the scales of four bits in fp32, TGI in 8 bits
    assert size["tgi", "bitsandbytes-nf4"] < size["vllm", "bitsandbytes"] < 1.08 * size["tgi", "bitsandbytes-nf4"]
    assert size["tgi", "bitsandbytes"] > 1.5 * size["tgi", "bitsandbytes-nf4"]


def test_the_log_of_an_a100_is_worked_out_again() -> None:
    found = serving(
        "--engine", "vllm", "--engine-version", "0.6.6", "--model", "llama-3-8b", "--gpu-memory", "39.5GiB",
        "--gpu-memory-utilization", "0.9", "--weights", "14.96GiB", "--non-torch", "0.10GiB",
        "--activations", "9.37GiB",
    )  # fmt: skip
    assert found["kv_blocks"] == pytest.approx(5691, abs=10)
    assert round(found["concurrency"], 2) == 11.12
    assert found["kv_bytes_per_token"] == 131_072
    assert found["status"]["weights_bytes"] == "given"


def test_a_cache_of_llama_cpp_is_as_its_log_prints_it() -> None:
    server = ("--engine", "llama.cpp", "--model", "llama-3-8b", "--gpu", "h200", "--max-model-len", "1048576")
    assert serving(*server)["kv_request_bytes"] == 137_438_953_504 - 32
    assert "128.00 GiB" in estimate(*server).stdout


def test_every_figure_has_a_status_on_every_rank() -> None:
    found = serving("--engine", "vllm", "--model", "qwen2.5-7b", "--gpu", "rtx-3090", "--gpus", "2")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    for figures in (found, *found["ranks"]):
        for name in ("weights_bytes", "kv_bytes_per_token", "kv_budget_bytes", "kv_tokens"):
            assert figures[name] > 0
            assert figures["status"][name] in ("exact", "modelled", "measured", "given")
    assert found["status"]["kv_bytes_per_token"] == "exact"
    assert found["smallest_gpu"]
    assert {row["option"] for row in found["changes"]} >= {"kv_cache_dtype", "gpu_memory_utilization"}


def test_requests_are_answered_with_what_to_set() -> None:
    server = ("--engine", "vllm", "--model", "llama-3.1-8b", "--gpu", "rtx-3090", "--max-model-len", "8192")
    few = estimate(*server, "--requests", "4", "--input", "1000", "--output", "200")
    assert few.returncode == 0
    assert "--max-model-len 1200 --max-num-seqs 4" in few.stdout
    many = estimate(*server, "--requests", "400", "--input", "1000", "--output", "200")
    assert many.returncode == 1
    assert "are not held at once" in many.stdout


def test_what_does_not_start_says_so_in_both_languages() -> None:
    server = ("--engine", "vllm", "--model", "llama-3.1-8b", "--gpu", "rtx-3090")
    english, korean = estimate(*server), estimate(*server, language="ko")
    assert (english.returncode, korean.returncode) == (1, 1)
    assert "It does not start" in english.stdout
    assert "시작하지 못합니다" in korean.stdout
    assert "serving" not in korean.stdout  # every sentence has its text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu-memory-utilization", "1.2"), "at most 1"),
        (("--max-model-len", "999999"), "131,072"),
        (("--tensor-parallel-size", "3"), "32 attention heads"),
        (("--kv-cache-dtype", "int3"), "known are"),
        (("--engine-version", "soon"), "0.33.0"),
        (("--batch", "4"), "of a training run"),
        (("--requests", "4"), "--input"),
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--gpus", "2", "--tensor-parallel-size", "4"), "--gpus"),
        (("--dtype", "bf17"), "known are"),
        (("--engine-version", "0.7.2", "--model", "Qwen/Qwen2.5-7B-Instruct"), "request of the full length"),
    ],
)
def test_bad_input_says_what_and_what_next(arguments: tuple[str, ...], said: str) -> None:
    run = estimate("--engine", "vllm", "--model", "llama-3.1-8b", "--gpu", "a100-80gb", *arguments)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_a_context_of_a_server_is_its_longest_request() -> None:
    assert "did you mean --max-model-len?" in estimate("--engine", "vllm", "--context", "4096").stderr


def test_an_unknown_release_takes_the_newest_and_says_so() -> None:
    run = estimate("--engine", "vllm", "--engine-version", "7.1", "--model", "qwen2.5-0.5b", "--gpu", "t4")
    assert run.returncode == 0
    assert "those of 0.33.0" in run.stdout


def test_the_positions_of_a_relative_bound_no_request() -> None:
    long = ("--engine", "vllm", "--gpu", "rtx-4090", "--model", "Qwen/Qwen3-4B-Instruct-2507")  # has 262,144 of its own
    assert serving(*long, "--max-model-len", "65536")["starts"] is True
    left = serving(*long[:-1], "Qwen/Qwen2.5-7B-Instruct")  # has fewer than the base model
    assert (left["starts"], left["options"]["max_model_len"]) == (None, None)
    assert left["kv_tokens"] > left["max_model_len"]  # which surely starts
    said = estimate(*long[:-1], "Qwen/Qwen2.5-7B-Instruct", "--requests", "4", "--input", "8000", "--output", "1000")
    assert "only the model's own config says" in " ".join(said.stdout.split())
    assert "4 requests of 9,000 tokens are held at once" in said.stdout


def test_no_length_is_said_to_start_that_only_the_models_own_config_could_allow() -> None:
    run = estimate("--engine", "vllm", "--model", "google/gemma-2-2b-it", "--gpu", "l4", "--max-model-len", "4096")
    assert "Longest request" not in run.stdout and "only the model's own" not in run.stdout
    assert all(line.endswith(" ?") for line in run.stdout.splitlines() if "as it is" in line)


@pytest.mark.parametrize(
    ("engine", "more", "said", "unsaid"),
    [
        ("sglang", ("--gpu-memory-utilization", "0.97"), "mem_fraction_static 0.67 is enough", "Or raise"),
        ("vllm", ("--kv-cache-memory", "12GB"), "all of this together is more than the GPU has", "Longest request"),
        ("llama.cpp", ("--gpu", "rtx-3060"), "leave layers in host memory", "does not start"),
        ("transformers", ("--gpu", "rtx-3060"), "It runs out of memory", "does not start"),
        ("vllm", ("--gpu", "gb10"), "has its memory with the host", "does not start"),
    ],
)
def test_what_is_too_much_is_said_as_the_engine_meets_it(
    engine: str, more: tuple[str, ...], said: str, unsaid: str
) -> None:
    at = () if "--gpu" in more else ("--gpu", "rtx-4090")
    run = estimate("--engine", engine, "--model", "llama-3.1-8b", "--max-model-len", "4096", *at, *more)
    text = " ".join(run.stdout.split())
    assert said in text and unsaid not in text


def test_no_share_is_advised_that_leaves_nothing_beside_it() -> None:
    server = ("--engine", "vllm", "--engine-version", "0.16.0", "--gpu", "rtx-4090", "--model")
    assert serving(*server, "llama-3.2-3b", "--gpu-memory-utilization", "0.9")["utilization_needed"] == 0.92
    run = serving(*server, "qwen2.5-7b", "--max-num-seqs", "320")  # only the whole GPU would do
    assert (run["starts"], run["utilization_needed"]) == (False, None)


def test_weights_that_their_owner_packs_are_known_by_name() -> None:
    packed = estimate("--engine", "vllm", "--model", "Qwen/Qwen2.5-7B-Instruct-AWQ", "--gpu", "rtx-3090")
    said = estimate("--engine", "vllm", "--model", "qwen2.5-7b", "--quantization", "awq", "--gpu", "rtx-3090")
    weights = [next(line for line in run.stdout.splitlines() if " weights" in line) for run in (packed, said)]
    assert weights[0].split() == weights[1].replace("exact", "modelled").split()  # a name alone is not sure
    assert "packed in awq, as the name says" in " ".join(packed.stdout.split())
    assert "packed in" not in said.stdout
    other = estimate("--engine", "vllm", "--model", "meta-llama/Llama-3.1-405B-Instruct-FP8", "--gpu", "h100-sxm")
    assert "does not know the model" in other.stderr  # Meta leaves layers in 16 bits
    another = estimate("--engine", "vllm", "--model", "someone/Qwen2.5-7B-Instruct-AWQ", "--gpu", "rtx-3090")
    assert "does not know the model" in another.stderr


@pytest.mark.parametrize(
    ("name", "weights"),  # GiB; the files of these checkpoints have 72.7 GB, 6.93 GB
    [
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", 67.7),
        ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", 6.4),  # what sees stays in 16 bits
        ("Qwen/Qwen3-VL-8B-Instruct-FP8", 9.9),  # here too
        ("TheBloke/Mistral-7B-Instruct-v0.2-AWQ", 3.9),
    ],
)
def test_a_checkpoint_packed_by_name_has_the_bytes_of_its_files(name: str, weights: float | None) -> None:
    run = estimate("--engine", "vllm", "--model", name, "--gpu", "h200-sxm", "--max-model-len", "4096")
    line = next((line for line in run.stdout.splitlines() if " weights  " in line), None)
    said = float(line.split()[-1].lstrip("−")) if line is not None else None
    assert said == (weights if weights is None else pytest.approx(weights, abs=0.2)), run.stdout


def test_what_is_not_counted_is_said() -> None:
    sees = estimate("--engine", "vllm", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--gpu", "rtx-3090")
    assert "the largest through what it sees with too" in " ".join(sees.stdout.split())
    ranks = ("--engine", "vllm", "--model", "llama-3.1-8b", "--gpu", "rtx-3090", "--tensor-parallel-size")
    said = ["exchange results" in " ".join(estimate(*ranks, number).stdout.split()) for number in ("1", "2")]
    assert said == [False, True]


def test_weights_that_bitsandbytes_packed_before_they_were_stored_are_counted_so() -> None:
    server = ("--engine", "vllm", "--gpu", "rtx-3090", "--model")
    stored = estimate(*server, "unsloth/Qwen2.5-7B-Instruct-bnb-4bit")
    said = estimate(*server, "qwen2.5-7b", "--quantization", "bitsandbytes")
    weights = [next(line for line in run.stdout.splitlines() if " weights" in line) for run in (stored, said)]
    assert weights[0].split()[2:] == weights[1].split()[2:]
    assert "packed in bitsandbytes, as the name says" in " ".join(stored.stdout.split())
    dynamic = estimate(*server, "unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit")  # some layers stay in 16 bits
    other = estimate("--engine", "sglang", *server[2:], "unsloth/Qwen2.5-7B-Instruct-bnb-4bit")
    assert all("What the weights take on one GPU is not known" in run.stdout for run in (dynamic, other))


@pytest.mark.parametrize("model", ["Qwen2.5-7B-Instruct-bnb-4bit", "Qwen2.5-7B-Instruct-unsloth-bnb-4bit"])
def test_a_check_does_not_count_packed_weights_whole(tmp_path: Path, model: str) -> None:
    script = tmp_path / "serve.sh"
    shared = ("Qwen/Qwen3-30B-A3B -dp 8", False)  # replicas share the experts
    for name, told in ((f"unsloth/{model}", False), ("Qwen/Qwen2.5-7B-Instruct -dp 8", True), shared):
        script.write_text(f"vllm serve {name} --max-model-len 4096\n", "utf-8")
        run = run_kb(script, "--gpu", "rtx-3060-12gb", "--no-cache", module="kb.check")
        assert ("serving-nothing-left-for-cache" in run.stdout) is told


def test_a_hybrid_model_is_not_predicted_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    server = ("--engine", "vllm", "--model-config", str(tmp_path), "--gpu", "h100-80gb", "--weights", "30GiB")
    run = estimate(*server)
    assert run.returncode == 0
    assert "recurrent state" in run.stdout
    found = serving(*server)
    assert (found["kv_tokens"], found["concurrency"], found["max_model_len"]) == (None, None, None)
    assert found["status"]["concurrency"] == "unknown"


def test_the_list_of_tensors_gives_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 162000000000}}')
    found = serving("--engine", "sglang", "--model-config", str(tmp_path), "--gpu", "h100-80gb", "--gpus", "4")
    assert found["weights_bytes"] == 162_000_000_000 // 4


def test_an_option_of_a_server_needs_an_engine() -> None:
    run = estimate("--model", "t5-base", "--max-model-len", "100")
    assert run.returncode == 2
    assert "--engine" in run.stderr


SCRIPT = """#!/bin/bash
export MODEL=meta-llama/Llama-3.1-8B-Instruct
vllm serve $MODEL --max-model-len 32768 --gpu-memory-utilization 0.85 --max-num-seqs 64 \\
  --kv-cache-dtype fp8 --port 8000
"""
COMPOSE = """services:
  a:
    image: vllm/vllm-openai:v0.8.5
    command: --model Qwen/Qwen2.5-7B-Instruct --max-model-len ${LEN} --quantization awq_marlin
  b:
    image: ghcr.io/huggingface/text-generation-inference:3.3.4
    command: --model-id mistralai/Mistral-7B-Instruct-v0.3 --max-total-tokens 8192 --num-shard 2
"""
FLAGS = (
    "--engine", "vllm", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "32768",
    "--gpu-memory-utilization", "0.85",
    "--max-num-seqs", "64", "--kv-cache-dtype", "fp8", "--gpu", "rtx-3090",
)  # fmt: skip


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["--lang", "en", *arguments])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_script_is_estimated_as_its_flags_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(SCRIPT)
    here = ("--gpu", "rtx-3090", "--engine-version", "0.33.0", "--format", "json")
    code, from_file = in_process(capsys, str(path), *here)
    assert (code, json.loads(from_file)) == (0, json.loads(in_process(capsys, *FLAGS, "--format", "json")[1]))
    shorter = in_process(capsys, str(path), "--gpu", "rtx-3090", "--max-model-len", "1024", "--format", "json")[1]
    assert json.loads(shorter)["setup"]["max_model_len"] == 1024  # what is given here wins


def test_an_option_that_a_branch_may_give_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.sh"
    path.write_text('if [ "$BIG" ]; then N="--max-model-len 4096"; fi\nvllm serve Qwen/Qwen2.5-7B $N\n')
    said = in_process(capsys, str(path), "--gpu", "rtx-3090")[1]
    assert "--max-model-len,\n--engine-version. Give" in said  # no file says the release either


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve Qwen/Qwen2.5-7B --dtype half --enable-lora", ["float16 ", "What --enable-lora takes"]),
        ("vllm serve Qwen/Qwen2.5-7B --dtype float32", ["float32 ", "It does not start"]),
        ('vllm serve Qwen/Qwen2.5-7B --speculative-config \'{"model": "a/b"}\'', ["What --speculative-config takes"]),
        (
            "vllm serve Qwen/Qwen2.5-32B -dp 2",
            ["GiB × 1", "It does not start"],
        ),  # the second GPU has the second replica
        ("vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 4", ["parts that replicas share or repeat"]),
        (  # one is told, the other beside it
            "CUDA_VISIBLE_DEVICES=1 vllm serve Qwen/Qwen2.5-7B\nvllm serve acme/secret",
            ["Qwen2.5-7B · vLLM", "serve.sh [vllm:2]: kb does not know the model acme/secret"],
        ),
        (
            "docker run --gpus '\"device=1\"' huggingface/text-generation-inference:3.3.7 --model-id Qwen/Qwen2.5-7B",
            ["GiB × 1"],
        ),
        ("sglang serve --model-path Qwen/Qwen3-4B --cuda-graph-max-bs 8", ["cuda_graph_max_bs_decode 8 ·"]),
        (
            "docker run --gpus all lmsysorg/sglang:v0.5.13 sglang serve --model-path Qwen/Qwen3-4B"
            " --cuda-graph-max-bs 8 --context-length 40960 --mem-fraction-static 0.4",
            ["cuda_graph_max_bs 8 ·", "The cache holds"],  # shorter requests are served
        ),
        (  # a later one takes what the cache holds
            "docker run --gpus device=1 huggingface/text-generation-inference:2.4.0 --model-id Qwen/Qwen2.5-7B",
            ["max_total_tokens 4096 (default)", "max_batch_prefill_tokens 4145 (default)", "left alone"],
        ),
        ("vllm serve Qwen/Qwen2.5-14B --quantization fp8 --max-model-len 29248", ["1.00 requests", "It may not start"]),
        ("sglang serve --model-path Qwen/Qwen2.5-VL-7B-Instruct", ["What share of the GPU"]),  # less, by what sees
        (  # what is advised of another name's positions is not told, nor a GPU that holds shorter requests alone
            "vllm serve /models/QwQ-32B -tp 2 --quantization fp8 --max-model-len 16384",
            ["        ?\n", "a10 × 2"],
        ),
        (
            "sglang serve --model-path Qwen/QwQ-32B --tp 2 --quantization fp8 --mem-fraction-static 0.7",
            ["pro-5000-48gb × 2"],
        ),
        (
            "docker run --gpus device=0 -e MAX_INPUT_LENGTH=1000 -e MAX_TOTAL_TOKENS=1500 -e MODEL_ID=Qwen/Qwen2.5-7B"
            " -e QUANTIZE=eetq huggingface/text-generation-inference:2.3.1 --max-total-tokens 1600",
            ["(int8)", "max_total_tokens 1600 ·", "max_batch_prefill_tokens 1050\n"],
        ),
        (
            "docker run --gpus device=0 -e MAX_TOTAL_TOKENS=$LEN huggingface/text-generation-inference:3.3.4"
            " --model-id Qwen/Qwen2.5-7B",
            ["Not known from the file", "--max-model-len"],
        ),
        (
            "docker run --gpus device=0 --env-file .env huggingface/text-generation-inference:3.3.4"
            " --model-id Qwen/Qwen2.5-7B",
            ["Not known from the file"],
        ),
        # Phi-3's window is not that of its relative, which takes longer requests
        ("vllm serve microsoft/Phi-3.5-mini-instruct --max-model-len 32000", ["32,000 tokens takes 11.72 GiB"]),
        ("sglang serve --model-path Qwen/Qwen3-30B-A3B --tp 4 --dp 4 --enable-dp-attention", ["parts that replicas"]),
    ],
)
def test_what_a_script_starts_is_counted_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, said: list[str]
) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(command + "\n")
    found = in_process(capsys, str(path), "--gpu", "rtx-3090", "--gpus", "8")[1]
    assert [each for each in said if each not in found] == []


def test_each_server_of_a_compose_file_is_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    code, said = in_process(capsys, str(path), "--gpu", "a10g")
    assert code == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(COMPOSE.encode())))
    assert in_process(capsys, "-", "--gpu", "a10g") == (code, said)
    assert "vLLM 0.8.5" in said  # the image's release
    assert "Text Generation Inference 3.3.4" in said
    assert "--max-model-len" in said  # a variable: the engine's default is taken, and that is said
    code, said = in_process(capsys, str(path), "--gpu", "a10g", "--format", "json")
    assert (code, "starts 2 servers" in said) == (2, True)
    code, said = in_process(capsys, str(path), "--gpu", "a10g", "--section", "b")
    assert (code, "vLLM" in said) == (0, False)


def test_a_file_of_weights_alone_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("llama-server -m models/llama-3-8b.Q4_K_M.gguf -c 8192\n")
    code, said = in_process(capsys, str(path), "--gpu", "a10g")
    assert (code, "--model-config" in said) == (2, True)


def test_a_check_counts_the_cache_in_the_blocks_that_a_server_is_given(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 40000 "
        "--gpu-memory-utilization 0.9 --block-size 64\n"
    )
    run = run_text("kb.check", str(path), "--gpu", "l4", "--format", "json")
    (unit,) = json.loads(run.stdout)["files"]
    found = next(each for each in unit["findings"] if each["rule"] == "serving-length-over-cache")
    assert found["facts"]["serving.kv_tokens"] % 64 == 0
