"""How much host memory does training take? Real data loaders and models with random weights, on this machine's CPU.

    make bench-host                              # or: python bench/host.py, where torch, transformers and datasets are
    python bench/host.py --only import,load --repeats 1 --no-write

Writes rules/measurements/host-<torch's version>-<system>.yaml. Every case runs in a process of its own, several times;
a row is the run with the median unique set. Pinned buffers need CUDA and are not measured.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from host_cases import CASES
from host_sizes import Row

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "rules" / "measurements"
PACKAGES = ("torch", "transformers", "datasets", "pyarrow", "safetensors", "numpy", "psutil")
FIELDS = (
    "what", "case", "after", "workers", "prefetch_factor", "start_method", "samples", "payload_bytes", "rss_bytes",
    "pss_bytes", "uss_bytes", "anonymous_bytes", "shared_bytes", "peak_pss_bytes", "peak_uss_bytes",
    "peak_anonymous_bytes", "spread_bytes", "repeats",
)  # fmt: skip
TIMEOUT_SECONDS = 600
ABOUT = {
    "ko": "프로세스 하나에서 한 가지씩, 진짜 DataLoader와 임의 가중치의 T5-base로 잰 호스트 메모리입니다. "
    "dataset, model-load, save, optimizer의 크기는 하기 전과의 차이입니다. CUDA 라이브러리는 들어 있지 않습니다.",
    "en": "Host memory with real data loaders and a T5-base of random weights, one thing to a process. Sizes "
    "of dataset, model-load, save and optimizer are above those before. CUDA's libraries are not in it.",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="processes for each case (3)")
    parser.add_argument("--only", default="", help="case names, or their beginnings, with commas between")
    parser.add_argument("--no-write", action="store_true", help="print the rows and leave rules/ as it is")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print("rows:", json.dumps(CASES[options.case]()), flush=True)
        return 0
    if not os.path.exists("/proc/self/smaps_rollup"):
        print("bench/host.py reads /proc/PID/smaps_rollup: run it on Linux 4.14 or later", file=sys.stderr)
        return 2
    chosen = [name for name in CASES if not options.only or name.startswith(tuple(options.only.split(",")))]
    rows = [row for name in chosen for row in measured(name, options.repeats)]
    text = as_yaml(rows)
    if options.no_write:
        print(text)
    else:
        path = FOLDER / f"{identity()}.yaml"
        path.write_text(text, "utf-8")
        print(f"{len(rows)} rows in {path}")
    return 0


def measured(name: str, repeats: int) -> list[Row]:
    """One case's rows: of each, the run with the median unique set, and how far the runs lay apart."""
    runs = [_run(name) for _ in range(repeats)]
    rows = []
    for versions in zip(*runs, strict=True):
        key = "peak_uss_bytes" if "peak_uss_bytes" in versions[0] else "uss_bytes"
        ordered = sorted(versions, key=lambda row: row[key])
        spread = ordered[-1][key] - ordered[0][key]
        rows.append({**ordered[len(ordered) // 2], "spread_bytes": spread, "repeats": repeats})
    print(f"{name}: {', '.join(str(row['uss_bytes'] >> 20) for row in rows)} MiB", file=sys.stderr, flush=True)
    return rows


def _run(name: str) -> list[Row]:
    run = subprocess.run(
        [sys.executable, __file__, "--case", name],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    line = next((line for line in run.stdout.splitlines() if line.startswith("rows: ")), None)
    if run.returncode != 0 or line is None:
        raise SystemExit(f"case {name} failed with {run.returncode}:\n{run.stderr[-2000:]}")
    rows: list[Row] = json.loads(line.removeprefix("rows: "))
    return rows


def identity() -> str:
    torch = ".".join(importlib.metadata.version("torch").split("+")[0].split(".")[:2])
    return f"host-torch-{torch}-{platform.system().casefold()}"


def machine() -> dict[str, Any]:
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    total = next(int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cpu": f"{cpu} ({platform.machine()})",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": total,
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()


def as_yaml(rows: list[Row]) -> str:
    """The file as rules/schema/measurement.json wants it. Flow style: a row to a line."""
    stack = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}}
    lines = [
        "# yaml-language-server: $schema=../schema/measurement.json",
        "# Written by bench/host.py: run it again rather than edit this.",
        f"id: {identity()}",
        "version: 1",
        'since: "0.1.0"',
        "title: {ko: CPU에서 잰 호스트 메모리, en: Host memory measured on a CPU}",
        "about:",
        *(f"  {language}: {json.dumps(text, ensure_ascii=False)}" for language, text in ABOUT.items()),
        "kind: host",
        f'date: "{datetime.date.today().isoformat()}"',
        "command: python bench/host.py",
        f"machine: {_flow(machine())}",
        f"stack: {_flow(stack)}",
        "status: measured",
        "source: kb-host-bench",
        "rows:",
    ]  # fmt: skip
    lines += [f"  - {_flow({name: row[name] for name in FIELDS if row.get(name) is not None})}" for row in rows]
    return "\n".join([*lines, "sources: [kb-host-bench]", ""])


def _flow(data: dict[str, Any]) -> str:
    """Strings in quotes, so that no version becomes a number; JSON is YAML."""
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in data.items()) + "}"


if __name__ == "__main__":
    sys.exit(main())
