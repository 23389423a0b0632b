"""What does watching cost? Processor time and memory of `kb monitor` itself, at one reading a second.

    python bench/monitor.py            # three watches of 40 seconds each
    python bench/monitor.py --seconds 120

It watches a process with eight workers, 60 others beside, and two GPUs with eight processes each that the compiled
stand-in for libnvidia-ml plays. What a real driver takes for its answers is not in it; what kb does with them is.
Writes bench/results/monitor.json and monitor.md.
"""

import argparse
import datetime
import json
import os
import platform
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
GPU = (
    "total=24576,reserved=309,used=18739,major=8,minor=6,util=97,power=341,limit=350,celsius=71,slowdown=93,throttle=4"
)
RUN = """
import multiprocessing, os, sys, time
fork = multiprocessing.get_context("fork")
def worker():
    block = bytearray(os.urandom(1 << 20) * 100); time.sleep(3600)
for _ in range(8): fork.Process(target=worker, daemon=True).start()
for step in range(1, 10**6):
    sys.stderr.write(f"\\r{step}%|##| {step}/1000000 [00:01<00:01, 4.00it/s]"); sys.stderr.flush(); time.sleep(0.25)
"""
WARM_UP_SECONDS = 8.0  # imports, the first readings, and the largest first measurements
WATCHES = {
    "recorded": ("--csv", "{folder}/run.csv", "--json-lines", "{folder}/run.jsonl"),
    "on a terminal": (),
    "served": ("--prometheus", "0"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each watch (40)")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results/ as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as name:
        folder = Path(name)
        environ = scenario(folder)
        # the first start may have to compile the rules, which is no part of watching
        subprocess.run(
            [sys.executable, "-m", "kb.monitor", "--once"], env=environ, stdout=subprocess.DEVNULL, check=False
        )
        others = [subprocess.Popen(["sleep", "3600"]) for _ in range(60)]
        try:
            rows = {kind: watch(kind, words, folder, environ, options.seconds) for kind, words in WATCHES.items()}
        finally:
            for other in others:
                other.kill()
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.platform(),
        "interval_seconds": 1,
        "watches": rows,
    }
    text = as_markdown(results)
    print(text)
    if not options.no_write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "monitor.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
        (RESULTS / "monitor.md").write_text(text, "utf-8")
    return 0


def scenario(folder: Path) -> dict[str, str]:
    """The environment in which the stand-in answers for two GPUs."""
    library = folder / "libnvidia-ml.so.1"
    source = ROOT / "tests" / "native" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source], check=True)
    gpus = ";".join(f"name=NVIDIA GeForce RTX 3090,uuid=GPU-{number},{GPU}" for number in range(2))
    processes = ";".join(f"gpu={number % 2},pid={os.getpid()},used=100" for number in range(16))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "NVML_GPUS": gpus,
        "NVML_PROCESSES": processes,
        "NVML_DRIVER": "575.57.08",
        "PYTHONPATH": str(ROOT / "src"),
        "TERM": "xterm-256color",
    }


def watch(kind: str, words: tuple[str, ...], folder: Path, environ: dict[str, str], seconds: float) -> dict[str, Any]:
    """The share of a core that one watch takes after its start, and its memory at the end."""
    arguments = [word.format(folder=folder) for word in words]
    ours, theirs = pty.openpty()
    out = theirs if kind == "on a terminal" else subprocess.DEVNULL
    run = subprocess.Popen([sys.executable, "-c", RUN], stderr=subprocess.DEVNULL, start_new_session=True)
    log = folder / "train.log"
    log.write_text("\r".join(f"{n}%|#| {n}/1000 [00:01<00:01, 4.00it/s]" for n in range(500)))
    command = [sys.executable, "-m", "kb.monitor", "--pid", str(run.pid), "--log", str(log), *arguments]
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    threading.Thread(target=_drained, args=(ours,), daemon=True).start()
    try:
        seen = psutil.Process(process.pid)
        time.sleep(WARM_UP_SECONDS)
        before, began = sum(seen.cpu_times()[:2]), time.perf_counter()
        time.sleep(seconds)
        after, lasted = sum(seen.cpu_times()[:2]), time.perf_counter() - began
        memory = seen.memory_full_info().uss
    finally:
        process.terminate()
        process.wait(30)
        os.killpg(run.pid, 9)
        run.wait()
        os.close(theirs)
    return {"seconds": round(lasted, 1), "core_share": round((after - before) / lasted, 5), "uss_bytes": memory}


def _drained(terminal: int) -> None:
    """Reads what is drawn, as a terminal would."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


def as_markdown(results: dict[str, Any]) -> str:
    lines = [
        "# What watching costs",
        "",
        f"Measured {results['date']} on {results['machine']}: `kb monitor` at one reading a second,",
        "of a process with eight workers and two GPUs played by the stand-in driver. Target: at most 1% of a core.",
        "",
        "| watch | share of a core | memory (USS) |",
        "|---|---|---|",
    ]
    for kind, row in results["watches"].items():
        lines.append(f"| {kind} | {row['core_share'] * 100:.2f}% | {row['uss_bytes'] / 2**20:.0f} MiB |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
