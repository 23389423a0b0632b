"""Models by hub name: the cache on disk, a guess from the name, and the hub itself (a server of our own)."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.run.named_model import ModelIndex
from kb.core.catalog import Catalog
from kb.session.lookups import cached_config, hub_folder, is_hub_name
from warm_runs import ENVIRON, run_text

ROOT = Path(__file__).parents[2]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
CONFIG = "model_name_or_path: {}\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-4\nmax_seq_length: 512\n"


def kb(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb.check", *arguments, environ={**ENVIRON, **environ})


def checked(tmp_path: Path, name: str, *arguments: object, **environ: str) -> tuple[dict[str, Any], str]:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(name))
    environ = {"HF_HOME": str(tmp_path / "home"), **environ}
    run = kb(path, "--gpu", "rtx-3090", "--format", "json", "--lang", "en", *arguments, **environ)
    assert run.returncode in (0, 1), run.stderr
    unit: dict[str, Any] = json.loads(run.stdout)["files"][0]
    return unit, run.stderr


def put_in_cache(hub: Path, name: str, config: str, revision: str = "abc123", ref: bool = True) -> Path:
    folder = hub / ("models--" + name.replace("/", "--"))
    blob = folder / "blobs" / "0123"
    snapshot = folder / "snapshots" / revision
    for each in (blob.parent, snapshot, folder / "refs"):
        each.mkdir(parents=True, exist_ok=True)
    blob.write_text(config)
    (snapshot / "config.json").symlink_to(blob)
    if ref:
        (folder / "refs" / "main").write_text(revision)
    return folder


def test_the_cache_is_where_huggingface_hub_puts_it() -> None:
    assert hub_folder({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == "/a"
    assert hub_folder({"HF_HOME": "/b"}) == "/b/hub"
    assert hub_folder({"XDG_CACHE_HOME": "/c"}) == "/c/huggingface/hub"
    assert hub_folder({}) == os.path.expanduser("~/.cache/huggingface/hub")


def test_a_cached_model_is_used_without_network_and_the_cache_is_not_touched(tmp_path: Path) -> None:
    folder = put_in_cache(tmp_path / "home" / "hub", "nobody/private", json.dumps(LLAMA))
    before = sorted(folder.rglob("*"))
    unit, _ = checked(tmp_path, "nobody/private", HF_ENDPOINT="http://127.0.0.1:9")
    assert unit["setup"]["model"] == "nobody/private"
    assert unit["prediction"] is not None
    assert not [each for each in unit["prediction"]["assumed"] if each["name"] == "model.name"]
    assert sorted(folder.rglob("*")) == before


def test_without_a_branch_the_newest_revision_is_taken(tmp_path: Path) -> None:
    folder = put_in_cache(tmp_path, "a/b", "{}", "old", ref=False)
    new = folder / "snapshots" / "new"
    new.mkdir()
    (new / "config.json").write_text("{}")
    os.utime(folder / "snapshots" / "old", (1, 1))
    assert cached_config("a/b", {"HF_HUB_CACHE": str(tmp_path)}) == str(new / "config.json")


@pytest.mark.parametrize("damage", ["dangling", "no json", "empty folder", "odd ref"])
def test_a_damaged_cache_is_as_good_as_none(damage: str, tmp_path: Path) -> None:
    folder = put_in_cache(tmp_path / "home" / "hub", "nobody/private", json.dumps(LLAMA))
    if damage == "dangling":
        (folder / "blobs" / "0123").unlink()
    elif damage == "no json":
        (folder / "blobs" / "0123").write_text("{")
    elif damage == "empty folder":
        (folder / "snapshots" / "abc123" / "config.json").unlink()
    else:
        (folder / "refs" / "main").write_bytes(b"\xff../../..")
        (folder / "blobs" / "0123").unlink()
    unit, said = checked(tmp_path, "nobody/private")
    assert unit["prediction"] is None and "private" in unit["note"]
    assert "Traceback" not in said


def rules_of(unit: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in unit["findings"]}


LONG_T5 = {"model_type": "longt5", "is_encoder_decoder": True, "vocab_size": 32128}
"""A model that kb does not know."""


@pytest.mark.parametrize("at", ["cache", "folder"])
def test_a_model_without_a_memory_formula_is_known_by_its_config(at: str, tmp_path: Path) -> None:
    name = "nobody/summarizer"
    if at == "cache":
        put_in_cache(tmp_path / "home" / "hub", name, json.dumps(LONG_T5))
    else:
        name = str(tmp_path / "summarizer")
        (tmp_path / "summarizer").mkdir()
        (tmp_path / "summarizer" / "config.json").write_text(json.dumps(LONG_T5))
    unit, _ = checked(tmp_path, f"{name}\nfp16: true")
    assert unit["prediction"] is None
    assert "t5-fp16-overflow" in rules_of(unit)


def test_a_config_of_another_type_is_believed_more_than_the_models_name(tmp_path: Path) -> None:
    put_in_cache(tmp_path / "home" / "hub", "x/my-llama-3-8b", json.dumps(LONG_T5))
    unit, _ = checked(tmp_path, "x/my-llama-3-8b\nfp16: true")
    assert unit["prediction"] is None and "t5-fp16-overflow" in rules_of(unit)


def test_a_models_config_that_is_mended_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "summarizer"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "marian", "is_encoder_decoder": true}')
    unit, _ = checked(tmp_path, f"{folder}\nfp16: true", XDG_CACHE_HOME=str(tmp_path / "kb"))
    assert "t5-fp16-overflow" not in rules_of(unit)
    (folder / "config.json").write_text(json.dumps(LONG_T5))
    unit, _ = checked(tmp_path, f"{folder}\nfp16: true", XDG_CACHE_HOME=str(tmp_path / "kb"))
    assert "t5-fp16-overflow" in rules_of(unit)


@pytest.mark.parametrize("name", ["../x", "a/b/c", "/etc", "a b", "", "x" * 97, "a/../b"])
def test_what_is_no_hub_name_is_not_looked_for(name: str) -> None:
    assert not is_hub_name(name)
    assert cached_config(name, {"HF_HUB_CACHE": "/"}) is None


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/my-llama-3-8b-ko-instruct", "llama-3-8b"),
        ("x/Llama-3-Korean-8B", "llama-3-8b"),
        ("x/llama-3.1-8b-chat", "llama-3.1-8b"),
        ("x/Qwen2.5-Korean-7B", "qwen2.5-7b"),
        ("org/qwen3-30b-a3b-sft", "qwen3-30b-a3b"),
        ("x/t5-base-finetuned-samsum", "t5-base"),
        ("x/mt5-small-finetuned-xsum", "mt5-small"),
        ("x/bert-base-multilingual-cased-ner", "bert-base-multilingual-cased"),
        ("x/gemma-2-2b-it-ko", "gemma-2-2b"),
        ("x/Mistral-7B-Instruct-v0.3-ko", "mistral-7b-v0.3"),
        # a family without its version, or without a size
        ("x/Llama-8B", None),
        ("x/llama-3-ko", None),
        ("x/R1-Distill-Qwen-7B", None),
        # another architecture, other weights, or another size beside
        ("x/Qwen2-Audio-7B-Instruct", None),
        ("google/gemma-3n-e2b-it", None),
        ("x/7b-mistral-sft", "mistral-7b"),  # the size before the family
        ("unsloth/gemma-3n-E4B-it", None),  # of which kb knows a gemma-3-4b
        ("unsloth/gemma-4-12B-it-qat-w4a16", None),
        ("mistralai/Ministral-3-3B-Instruct-2512", None),  # in FP8
        ("google/t5-efficient-base", None),
        ("KETI-AIR/ke-t5-base", None),
        ("google/byt5-xl", None),
        ("x/codegen-7b", None),
        ("nvidia/Llama-3.1-Minitron-4B", None),
        ("x/mixtral-4x7b", None),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", None),
        ("Qwen/Qwen3-ASR-1.7B-hf", None),  # with an encoder of sound
        ("x/whisper-small-asr-de", "whisper-small"),
        ("x/llama-3-8b-8bit", None),
        ("org/Idefics3-8B-Llama3", None),  # a vision model on it
        ("org/tinyllava-llama-3-8b", None),
        ("Salesforce/blip2-opt-2.7b", None),
        ("org/instructblip-flan-t5-xl", None),
        ("org/bart-base-sled", None),  # an encoder over pieces of a long text
        ("x/bert-base-dutch-cased", None),  # made from scratch, with a vocabulary of its own
        ("x/deberta-v3-base-korean", None),
        ("x/t5-base-turkish-web", None),
        ("x/mt5-small-japanese-summaries", "mt5-small"),  # of many languages, and tuned for one
        ("x/whisper-small-korean", "whisper-small"),
        ("x/bert-base-chinese-ner-tuned", "bert-base-chinese"),
        ("x/roberta-base-ner", None),  # roberta-base and klue/roberta-base differ
        ("", None),
        ("-" * 10_000, None),
    ],
)
def test_a_name_is_guessed_only_where_family_and_size_match(name: str, model: str | None, catalog: Catalog) -> None:
    found = ModelIndex(catalog.models).guess(name)
    assert (found.id if found else None) == model
    assert found is None or found.guessed_from == name


@pytest.mark.parametrize(
    ("name", "guessed"),
    [
        ("koelectra", True),
        ("kcbert", True),
        ("koelectra-base-v3", False),
        ("beomi/kcbert-base", False),
        ("gpt2", False),
    ],
)
def test_a_word_of_kbs_own_for_a_model_is_a_guess_in_a_projects_file(
    name: str, guessed: bool, catalog: Catalog
) -> None:
    found = ModelIndex(catalog.models).named_in_config(name)
    assert found is not None and (found.guessed_from == name) == guessed


def test_every_model_is_guessed_as_itself_or_not_at_all(catalog: Catalog) -> None:
    guesser = ModelIndex(catalog.models)
    for model in catalog.models.values():
        found = guesser.guess(model.name + "-finetuned")
        assert found is None or found.architecture == model.architecture, (model.name, found.id)


def test_a_guess_is_said_and_findings_that_rest_on_it_have_low_confidence(tmp_path: Path) -> None:
    unit, _ = checked(tmp_path, "org/my-llama-3-8b-ko-instruct")
    assert {"name": "model.name", "value": "llama-3-8b", "reason": "guessed_from_name"} in unit["prediction"]["assumed"]
    resting = [row for row in unit["findings"] if any(name.startswith("memory.") for name in row["facts"])]
    assert resting and {row["confidence"] for row in resting} == {"low"}
    text = kb(tmp_path / "config.yaml", "--gpu", "rtx-3090", "--lang", "en").stdout
    assert "guessed from the name" in text
    assert "이름으로 짐작함" in kb(tmp_path / "config.yaml", "--gpu", "rtx-3090", "--lang", "ko").stdout


class _Hub(BaseHTTPRequestHandler):
    """What of the hub's protocol a download of one small file needs."""

    asked: list[str] = []  # noqa: RUF012 - the server's, for one test at a time
    status = 200

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        type(self).asked.append(self.path)
        found = self.path.startswith("/nobody/fetched/resolve/main/config.json")
        content = json.dumps(LLAMA).encode() if found else b"{}"
        self.send_response(200 if found or self.path == "/" else 404)
        if not found and self.path != "/":
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
        self.send_header("X-Repo-Commit", "f" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def hub_server() -> Iterator[str]:
    _Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_online_fetches_an_unknown_models_config_once(tmp_path: Path) -> None:
    with hub_server() as endpoint:
        unit, said = checked(tmp_path, "nobody/fetched", "--online", HF_ENDPOINT=endpoint)
        assert unit["setup"]["model"] == "nobody/fetched", said
        assert unit["prediction"] is not None
        asked = len(_Hub.asked)
        assert asked
        again, _ = checked(tmp_path, "nobody/fetched", "--online", HF_ENDPOINT=endpoint)
        assert again["prediction"] == unit["prediction"]
        assert len(_Hub.asked) == asked  # from the cache


def test_without_online_nothing_is_asked(tmp_path: Path) -> None:
    with hub_server() as endpoint:
        unit, _ = checked(tmp_path, "nobody/fetched", HF_ENDPOINT=endpoint)
        assert unit["prediction"] is None
        assert _Hub.asked == []


def test_a_model_that_the_hub_lacks_is_said(tmp_path: Path) -> None:
    with hub_server() as endpoint:
        unit, said = checked(tmp_path, "nobody/missing", "--online", HF_ENDPOINT=endpoint)
    assert unit["prediction"] is None
    assert "nobody/missing" in said and "Traceback" not in said


def test_an_unreachable_hub_is_said_and_the_check_goes_on(tmp_path: Path) -> None:
    unit, said = checked(tmp_path, "nobody/private", "--online", HF_ENDPOINT="http://127.0.0.1:9")
    assert unit["prediction"] is None
    assert "127.0.0.1:9" in said and "cannot be reached" in said


def test_a_hub_that_is_switched_off_is_not_asked(tmp_path: Path) -> None:
    _, said = checked(tmp_path, "nobody/private", "--online", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in said


def test_a_named_model_may_be_of_the_cache_too_but_is_never_guessed(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kb.core.text import UserError
    from kb.session.models import named_model

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    put_in_cache(tmp_path, "nobody/private", json.dumps(LLAMA))
    assert named_model("nobody/private", catalog).architecture.d_model == 1024
    with pytest.raises(UserError):
        named_model("org/my-llama-3-8b-ko-instruct", catalog)
