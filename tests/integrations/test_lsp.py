"""``kb lsp`` as an editor speaks to it: a real process, real frames."""

import importlib.util
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from effort import few
from packages import missing
from warm_runs import ENVIRON, run_text

BAD = """\
# 실험 🔥
model_name_or_path: google/mt5-small
per_device_train_batch_size: 8
fp16: true  # 🔥
output_dir: out
"""
SECONDS = 30


class Client:
    """Requests, notifications and what the server says of itself."""

    def __init__(self, folder: Path, *arguments: str, **options: Any) -> None:
        if importlib.util.find_spec("pygls") is None:
            missing("pygls is not installed: make test installs it")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kb.lsp", "--stdio", *arguments],
            cwd=folder,
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what a buffer has read already, select cannot see
        )
        self.number = 0
        self.held: list[dict[str, Any]] = []
        self.folder = folder
        capabilities = {"general": {"positionEncodings": options.pop("encodings", ["utf-16"])}}
        self.server = self.ask(
            "initialize", {"processId": None, "rootUri": None, "capabilities": capabilities, **options}
        )["result"]
        self.tell("initialized", {})

    def send(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.number += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}).encode())
        return self.wait(lambda message: message.get("id") == self.number and "method" not in message)

    def wait(self, wanted: Any) -> dict[str, Any]:
        """The first message, of those held back or those to come, that is wanted."""
        end = time.monotonic() + SECONDS
        while True:
            for message in self.held:
                if wanted(message):
                    self.held.remove(message)
                    return message
            assert time.monotonic() < end, f"no answer; held: {self.held}"
            self.held.append(self._read())

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], "the server is silent"
        length = 0
        while (line := self.process.stdout.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = b""
        while len(body) < length and (part := self.process.stdout.read(length - len(body))):
            body += part
        message: dict[str, Any] = json.loads(body)
        return message

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, text: str, name: str = "train.yaml", language: str = "yaml") -> list[dict[str, Any]]:
        document = {"uri": self.uri(name), "languageId": language, "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return self.published(name)

    def change(self, text: str, version: int, name: str = "train.yaml") -> None:
        document = {"uri": self.uri(name), "version": version}
        self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def published(self, name: str = "train.yaml", version: int | None = None) -> list[dict[str, Any]]:
        def wanted(message: dict[str, Any]) -> bool:
            if message.get("method") != "textDocument/publishDiagnostics":
                return False
            params = message["params"]
            return params["uri"] == self.uri(name) and version in (None, params.get("version"))

        found: list[dict[str, Any]] = self.wait(wanted)["params"]["diagnostics"]
        return found

    def at(self, line: int, character: int, name: str = "train.yaml") -> dict[str, Any]:
        return {"textDocument": {"uri": self.uri(name)}, "position": {"line": line, "character": character}}

    def actions(self, line: int, name: str = "train.yaml", **context: Any) -> list[dict[str, Any]]:
        place = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 80}}
        params = {"textDocument": {"uri": self.uri(name)}, "range": place, "context": {"diagnostics": [], **context}}
        found: list[dict[str, Any]] = self.ask("textDocument/codeAction", params)["result"]
        return found

    def close(self) -> int:
        if self.process.poll() is None:
            self.ask("shutdown", {})
            self.tell("exit", {})
        return self.process.wait(SECONDS)


@contextmanager
def started(folder: Path) -> Iterator[Client]:
    client = Client(folder, "--gpu", "rtx-3090", "--lang", "en")
    yield client
    client.process.kill()
    client.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with started(tmp_path_factory.mktemp("server")) as client:
        yield client


@pytest.fixture
def client(server: Client, tmp_path: Path) -> Client:
    """The one server of these tests, with a folder of the test's own: an editor has several open too."""
    server.folder = tmp_path
    server.held.clear()
    return server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Client]:
    """A server for a test that changes its settings or hands it what could end it."""
    with started(tmp_path) as client:
        yield client


def rules(diagnostics: list[dict[str, Any]]) -> set[str]:
    return {str(found.get("code")) for found in diagnostics}


def edited(text: str, action: Mapping[str, Any], uri: str) -> str:
    """The text after an action's edits, in UTF-16 units, as an editor makes them."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len((line + "\n").encode("utf-16-le")))
    raw = text.encode("utf-16-le")

    def offset(position: Mapping[str, int]) -> int:
        return starts[position["line"]] + 2 * position["character"]

    for edit in sorted(action["edit"]["changes"][uri], key=lambda edit: -offset(edit["range"]["start"])):
        start, end = offset(edit["range"]["start"]), offset(edit["range"]["end"])
        raw = raw[:start] + edit["newText"].encode("utf-16-le") + raw[end:]
    return raw.decode("utf-16-le")


def test_an_opened_config_gets_the_findings_of_the_command_line(client: Client) -> None:
    found = client.open(BAD)
    (overflow,) = [each for each in found if each.get("code") == "t5-fp16-overflow"]
    assert overflow["range"] == {"start": {"line": 3, "character": 6}, "end": {"line": 3, "character": 10}}
    assert overflow["severity"] == 1 and overflow["source"] == "kb" and "65504" in overflow["message"]
    path = client.folder / "train.yaml"
    path.write_text(BAD, "utf-8")
    said = run_text("kb.check", path, "--gpu", "rtx-3090", "--notes", "--format", "json").stdout
    assert rules(found) == {each["rule"] for unit in json.loads(said)["files"] for each in unit["findings"]}


def test_findings_follow_the_typing(client: Client) -> None:
    assert "t5-fp16-overflow" in rules(client.open(BAD))
    for version, text in enumerate((BAD.replace("fp16: true", "fp16: "), BAD.replace("fp16: true", "bf16: true")), 2):
        client.change(text, version)
    assert "t5-fp16-overflow" not in rules(client.published(version=3))


def test_half_a_word_is_an_error_at_its_place_and_then_none(client: Client) -> None:
    client.open(BAD)
    client.change(BAD + "label_names: [a, b\n", 2)
    (fault,) = client.published(version=2)
    assert fault["severity"] == 1 and "code" not in fault
    client.change(BAD + "label_names: [a, b]\n", 3)
    assert "t5-fp16-overflow" in rules(client.published(version=3))


def test_yaml_that_is_no_config_gets_nothing(client: Client) -> None:
    assert client.open("services:\n  web: {image: nginx}\n", "compose.yaml") == []
    assert client.open("a: [1\n", "broken.yaml") == []


def test_hover_explains_the_rule_and_shows_the_ledger(client: Client) -> None:
    client.open(BAD)
    said = client.ask("textDocument/hover", client.at(3, 7))["result"]["contents"]["value"]
    assert "t5-fp16-overflow" in said and "65504" in said and "RTX 3090" in said and "GiB" in said
    said = client.ask("textDocument/hover", client.at(2, 3))["result"]["contents"]["value"]
    assert "per_device_train_batch_size" in said and "RTX 3090" in said
    assert client.ask("textDocument/hover", client.at(0, 2))["result"] is None


def test_a_fix_changes_only_what_it_says_behind_an_emoji_too(client: Client) -> None:
    text = BAD.replace("fp16: true  # 🔥", '{"설명": "🔥", "fp16": true}').replace("# 실험 🔥\n", "")
    text = '{"설명": "🔥🔥", "fp16": true, "model_name_or_path": "google/mt5-base", "per_device_train_batch_size": 8}\n'
    found = client.open(text, "train.json", "json")
    (overflow,) = [each for each in found if each.get("code") == "t5-fp16-overflow"]
    start = overflow["range"]["start"]["character"]
    assert text.encode("utf-16-le")[2 * start :].decode("utf-16-le").startswith("true")
    action = next(each for each in client.actions(0, "train.json") if each.get("isPreferred"))
    assert action["kind"] == "quickfix" and "safe" in action["title"]
    after = json.loads(edited(text, action, client.uri("train.json")))
    assert after == {**json.loads(text), "fp16": False, "bf16": True}


def test_fixing_all_makes_every_safe_fix_at_once(client: Client) -> None:
    client.open(BAD)
    (action,) = client.actions(0, only=["source.fixAll"])
    after = edited(BAD, action, client.uri("train.yaml"))
    assert "fp16: false  # 🔥" in after and "bf16: true" in after and after.startswith("# 실험 🔥\n")
    client.change(after, 2)
    assert "t5-fp16-overflow" not in rules(client.published(version=2))
    assert client.actions(0, only=["source.fixAll"]) == []
    assert client.actions(3, only=["refactor"]) == []


@pytest.mark.parametrize(("encoding", "width"), few([("utf-16", 2), ("utf-8", 4), ("utf-32", 1)]))
def test_positions_count_as_the_client_does(tmp_path: Path, encoding: str, width: int) -> None:
    client = Client(tmp_path, "--gpu", "rtx-3090", encodings=[encoding])
    assert client.server["capabilities"]["positionEncoding"] == encoding
    text = '{"a": "🔥", "fp16": true, "model_name_or_path": "google/mt5-base", "per_device_train_batch_size": 8}\n'
    found = client.open(text, "train.json", "json")
    (overflow,) = [each for each in found if each.get("code") == "t5-fp16-overflow"]
    assert overflow["range"]["start"]["character"] == text.index("true") - 1 + width
    assert client.close() == 0


def test_the_clients_settings_win_and_the_language_changes(own: Client) -> None:
    english = own.open(BAD)
    own.tell("workspace/didChangeConfiguration", {"settings": {"kb": {"lang": "ko", "gpu": "t4"}}})
    korean = own.published()
    assert {each["message"] for each in korean} != {each["message"] for each in english}
    said = own.ask("textDocument/hover", own.at(3, 7))["result"]["contents"]["value"]
    assert "T4" in said and "학습" in said


@pytest.mark.exhaustive
def test_settings_that_cannot_be_used_are_said_once(own: Client) -> None:
    own.tell("workspace/didChangeConfiguration", {"settings": {"kb": {"gpu": "rtx4909"}}})
    assert own.open(BAD) == []
    said = own.wait(lambda message: message.get("method") == "window/showMessage")["params"]["message"]
    assert "rtx4909" in said and "rtx-4090" in said
    own.tell("workspace/didChangeConfiguration", {"settings": {"kb": {"gpu": "rtx-4090"}}})
    assert "t5-fp16-overflow" in rules(own.published())


def test_the_projects_file_counts_and_its_change_is_heard(own: Client) -> None:
    settings = own.folder / "kb.toml"
    settings.write_text('ignore = ["t5-fp16-overflow"]\n')
    assert "t5-fp16-overflow" not in rules(own.open(BAD))
    settings.write_text("")
    own.tell("textDocument/didSave", {"textDocument": {"uri": settings.as_uri()}})
    assert "t5-fp16-overflow" in rules(own.published())


def test_a_closed_file_loses_its_findings(client: Client) -> None:
    assert client.open(BAD)
    client.tell("textDocument/didClose", {"textDocument": {"uri": client.uri("train.yaml")}})
    assert client.published() == []


def test_broken_json_is_answered_and_the_server_lives(own: Client) -> None:
    bodies = [
        b"{",
        b"\xff\xfe",
        b"",
        b"[]",
        b'"text"',
        b'{"jsonrpc": "1.0"}',
        b"[" * 100_000,
        b'{"id": 3, "method": 5}',
    ]
    for number, body in enumerate(bodies):
        own.send(body)
        assert "t5-fp16-overflow" in rules(own.open(BAD, f"{number}.yaml")), body[:20]
        if number < 2:
            error = own.wait(lambda message: "error" in message)
            assert error["id"] is None and error["error"]["code"] == -32700
    assert own.close() == 0


def test_a_request_it_does_not_know_and_a_text_that_is_not_open_do_no_harm(client: Client) -> None:
    assert client.ask("textDocument/nonsense", {})["error"]["code"] == -32601
    assert client.ask("textDocument/hover", client.at(99, 99, "never-opened.yaml")).get("result") is None
    assert "t5-fp16-overflow" in rules(client.open(BAD))


def test_hostile_texts_neither_hang_nor_kill_it(own: Client) -> None:
    hostile = {"deep.yaml": "[" * 100_000, "big.yaml": "a: 1\n" * 400_000, "bomb.yaml": "a: &a [x]\nb: [*a, *a]\n" * 50}
    for name, text in hostile.items():
        own.open(text, name)
    assert "t5-fp16-overflow" in rules(own.open(BAD))


def test_without_a_client_it_ends_with_its_input(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kb.lsp"], stdin=subprocess.DEVNULL, env=ENVIRON,
        capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_a_diagnostic_links_to_its_rules_own_file(client: Client) -> None:
    found = client.open(BAD)
    assert found
    for each in found:
        link = each["codeDescription"]["href"]
        assert link.startswith("file://") and link.endswith(f"/{each['code']}.yaml")
        assert Path(link.removeprefix("file://")).is_file()


def labels(client: Client, line: int, character: int, name: str = "train.yaml") -> list[str]:
    answer = client.ask("textDocument/completion", client.at(line, character, name))["result"]
    return [item["label"] for item in (answer or {"items": []})["items"]]


def test_keys_of_the_format_and_values_of_a_setting_are_completed(client: Client) -> None:
    client.open(BAD + "gradient_ch")  # a key that is half typed is no YAML yet
    keys = labels(client, 5, 11)
    assert {"gradient_checkpointing", "per_device_train_batch_size"} <= set(keys) and len(keys) == len(set(keys))
    client.open(BAD + "lr_scheduler_type: \nbf16: t\nmodel_name_or_path: goo\n", "values.yaml")
    assert {"cosine", "linear"} <= set(labels(client, 5, 19, "values.yaml"))
    assert labels(client, 6, 7, "values.yaml") == ["true", "false"]
    assert "google/mt5-base" in labels(client, 7, 23, "values.yaml")


def test_gpus_are_completed_in_the_projects_settings_and_nothing_in_what_is_no_config(client: Client) -> None:
    client.open('gpu = "rtx', "kb.toml", "toml")
    assert "rtx-3090" in labels(client, 0, 10, "kb.toml")
    client.open("name: a workflow\non: push\n", "ci.yaml")
    assert labels(client, 1, 4, "ci.yaml") == []
