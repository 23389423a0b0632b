"""`kb monitor --server`: a server's own metrics, read over HTTP, in the names of each engine and of older releases."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog_sample import load_catalog, load_guide
from kb.advice.watching import Watch
from kb.commands.monitor import main
from kb.commands.monitor.columns import csv_header, csv_rows, json_line, snapshot_from_json
from kb.commands.monitor.replay import Replay
from kb.core.snapshot import ServerState, Snapshot
from kb.core.text import UserError
from kb.machine.processes import ServerWatch

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 10.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.94
vllm:gpu_cache_usage_perc{engine="1",model_name="m"} 0.5
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
"""
SGLANG = """# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.28
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 162.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m"} 2826.0
"""
TGI = "# TYPE tgi_queue_size gauge\ntgi_queue_size 4\n# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 8\n"
PAGES = {"/vllm": VLLM, "/sglang": SGLANG, "/tgi": TGI, "/other": "# TYPE up gauge\nup 1\n", "/broken": "a{ 1\n"}


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        self.send_response(200 if page is not None else 404)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def read(url: str) -> ServerState:
    return ServerWatch(url, load_catalog().serving()).read()


@pytest.mark.parametrize(
    ("page", "state"),
    [
        ("/vllm", ServerState("vllm", 0.94, 22, 3, 8)),
        ("/sglang", ServerState("sglang", 0.28, 162, 2826)),
        ("/tgi", ServerState("tgi", None, 8, 4)),
        ("/other", ServerState(reason="without_metrics")),
        ("/broken", ServerState(reason="without_metrics")),
        ("", ServerState(reason="without_metrics")),
    ],
)
def test_each_engine_is_read_in_its_own_names(address: str, page: str, state: ServerState) -> None:
    assert read(address + page) == state


def test_a_server_that_is_not_up_is_told_and_the_watch_goes_on() -> None:
    assert read("http://127.0.0.1:9") == ServerState(reason="silent")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/metrics", "http://", "http://host:notaport", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError) as fault:
        ServerWatch(url, load_catalog().serving())
    assert fault.value.key == "monitor.bad_server"


def test_what_was_put_back_during_the_watch_is_counted_and_warned_of() -> None:
    watch = Watch(load_guide()["formulas"]["targets"])
    said = [
        [alert.kind for alert in watch.add(Snapshot(float(second), server=ServerState("vllm", 0.5, 1, 0, count)))]
        for second, count in enumerate((40, 40, 43, 2, 4))  # at the fourth reading the server was started anew
    ]
    assert said == [[], [], ["server_preempts"], [], []]  # the last one within ten minutes of the first
    assert watch.summary().server == ServerState("vllm", 0.5, 1, 0, 5)


def test_a_recording_keeps_the_server(tmp_path: Path) -> None:
    snapshot = Snapshot(1.7e9, server=ServerState("vllm", 0.94, 22, 3, 8))
    rows = enumerate((csv_header() + csv_rows(snapshot)).splitlines(), 1)
    assert [one.server for one in Replay(rows, "run.csv")] == [snapshot.server]
    assert snapshot_from_json(json.loads(json_line(snapshot))).server == snapshot.server


def test_one_reading_as_json_and_as_text(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--once", "--server", f"{address}/vllm", "--format", "json"])
    shown = json.loads(capsys.readouterr().out)["server"]
    assert (shown["engine"], shown["kv_usage"], shown["preemptions"]) == ("vllm", 0.94, 8)
    main(["--once", "--server", f"{address}/sglang", "--lang", "ko"])
    assert "대기 2826" in capsys.readouterr().out
