"""How fast is the site built, and how soon does the playground answer? As ratios against programs in the same run.

    make bench-site                # in the environment of the tests: Chromium and chromedriver are needed
    make bench-site ARGS="--runs 7"

Writes bench/results/site.json and site.md. A target that is missed is said, and does not fail: a busy machine
misses it.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from speed import machine  # noqa: E402

from site_browser import Browser, start_browser  # noqa: E402
from site_html import ADDRESS  # noqa: E402
from site_server import serve  # noqa: E402

RESULTS = ROOT / "bench" / "results"
TARGETS = {"site": 10.0, "site_share": 10.0, "ready": 4.0, "answer": 0.05}  # seconds, of design and issue
ANSWERS = 30
_ASK = """
const { Engine } = await import(new URL("assets/js/kb-engine.mjs", given[0]).href);
const engine = new Engine(), asked = JSON.stringify({ gpu: "rtx-3090", host_memory: "60GB", cpus: "16" }), times = [];
await engine.start();
for (let number = 0; number <= given[2]; number += 1) {
  const before = performance.now();
  await engine.call("check", `${given[1]}# ${number}\\n`, asked, "en");
  times.push((performance.now() - before) / 1000);
}
return times.slice(1);
"""
_READY = """
const before = performance.now();
document.querySelector(".kb-buttons button").click();
while (!window.kbAnswer) await new Promise((resolve) => setTimeout(resolve, 5));
return (performance.now() - before) / 1000;
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="builds, and starts of the playground (5)")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results/ as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as name:
        folder = Path(name)
        times = {**builds(folder, options.runs), **playground(folder / "site", options.runs)}
    packages = ("mkdocs", "mkdocs-material", "mkdocs-macros-plugin")
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": {**machine(), "load": round(os.getloadavg()[0], 1)},
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "seconds": {name: round(statistics.median(found), 4) for name, found in times.items()},
    }
    text = as_markdown(results)
    print(text)
    if not options.no_write:
        (RESULTS / "site.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
        (RESULTS / "site.md").write_text(text, "utf-8")
    return 0


def builds(folder: Path, runs: int) -> dict[str, list[float]]:
    """Whole-process seconds, and the CPU seconds of ``site``; the programs take turns: a slow moment meets them all."""
    empty = folder / "empty"
    (empty / "docs").mkdir(parents=True)
    (empty / "docs" / "index.md").write_text("# Empty\n", "utf-8")
    (empty / "mkdocs.yml").write_text("site_name: empty\ntheme: {name: material}\n", "utf-8")
    build = f"from kb.guide.build import build_site; build_site({str(ROOT)!r}, print, {str(folder / 'site')!r})"
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "empty": [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(empty / "mkdocs.yml")],
        "site": [sys.executable, "-c", build],
    }
    seconds(commands["site"])  # the assets, and what fits where
    found: dict[str, list[float]] = {name: [] for name in (*commands, "site_cpu")}
    for _ in range(runs):
        for name, command in commands.items():
            before = cpu_seconds()
            found[name].append(seconds(command))
            if name == "site":
                found["site_cpu"].append(cpu_seconds() - before)
    return found


def cpu_seconds() -> float:
    """What the programs started so far have used of all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(command: Sequence[str]) -> float:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true",
        "KB_SITE_URL": ADDRESS, "KB_SITE_URL_EN": f"{ADDRESS}en/",
    }  # fmt: skip
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def playground(site: Path, runs: int) -> dict[str, list[float]]:
    """From the click to the first answer in a browser that was never there, and answers once Python runs."""
    ready = [in_browser(site, lambda browser: browser.await_answer(_READY)) for _ in range(runs)]
    config = (ROOT / "examples" / "mt5-summary-team.yaml").read_text("utf-8")

    def ask(browser: Browser) -> list[float]:
        times: list[float] = browser.await_answer(_ASK, browser.server.address, config, ANSWERS)
        return times

    return {"ready": ready, "answer": in_browser(site, ask)}


def in_browser(site: Path, ask: Callable[[Browser], Any]) -> Any:
    with serve(site) as server, start_browser(server) as browser:
        browser.visit("playground/")
        browser.wait("document.querySelector('.kb-buttons button')")
        return ask(browser)


def as_markdown(results: dict[str, Any]) -> str:
    taken, about = dict(results["seconds"]), results["machine"]
    taken["site_share"] = taken["site_cpu"] / min(about["cores"], 2)  # each language is one process
    rows = [
        ("both languages of the site, assets there", "site", "empty", "mkdocs build of an empty project"),
        ("the same, its CPU time over the cores: what other work leaves out", "site_share", "empty", "the same"),
        ("playground, from the click to the first answer", "ready", "pass", "python -c pass"),
        ("playground, an answer", "answer", "pass", "python -c pass"),
    ]
    lines = [
        "# The site\n",
        f"{results['date']}, {about['cpu']}, {about['cores']} cores, load {about['load']}; "
        + ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        + ". Medians.\n",
        "| what | seconds | ratio | against | target, seconds | |",
        "|---|--:|--:|---|--:|---|",
    ]
    for title, name, base, against in rows:
        met = "met" if taken[name] <= TARGETS[name] else "missed"
        lines.append(
            f"| {title} | {taken[name]:.3g} | {taken[name] / taken[base]:.2g} | {against} | {TARGETS[name]:g} | {met} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
