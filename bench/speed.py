"""How fast is kb? As ratios against other programs in the same run, so that the machine matters little.

    make bench                     # in an environment of its own, with kb installed from a wheel
    make bench ARGS="--runs 41"

It ends in a few minutes however long a prediction takes: a first timing says of how many files the tree is. What is
kept from one check to the next is told apart: cold, nothing is; predicted, what the memory engine found; warm, results.
Writes bench/results/speed.json and speed.md. Exit status 1 where a package is imported that the way of a check must not
import; a target that is missed is said, and does not fail: a busy machine misses it too.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trees import distinct_in, write_tree

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
CONFIG = ROOT / "examples" / "mt5-summary-team.yaml"
MACHINE = ["--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16"]
HEAVY = ("torch", "rich", "jsonschema", "pynvml")
COLD_RUNS = 5  # of one file: each takes as long as many with what is kept
SCRIPTS = Path(sys.executable).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=21, help="runs of each program (21)")
    parser.add_argument("--seconds", type=float, default=60, help="of a processor, for a tree checked cold (60)")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results/ as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kb-bench-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # the user's own is left alone
        results: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "load": round(os.getloadavg()[0], 1),
            "versions": versions(),
            "one_file": one_file(folder, options.runs),
            "instructions": instructions(folder / "counted"),
            "tree": tree(folder, options.seconds),
            "in_process": in_process(),
            "imports": imports(folder),
        }
    text = as_markdown(results)
    print(text)
    if not options.no_write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "speed.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
        (RESULTS / "speed.md").write_text(text, "utf-8")
    return 1 if results["imports"]["heavy"] else 0


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.M)
        model = found[1] if found else model
    return {"cpu": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    packages = ("gpu-memory-kb", "PyYAML", "yamllint", "check-jsonschema")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def one_file(folder: Path, runs: int) -> dict[str, Any]:
    """Whole-process milliseconds on one config, the programs taking turns so that a slow moment meets them all."""
    schema = folder / "any.json"
    schema.write_text('{"type": "object"}', "utf-8")
    config = str(shutil.copy(CONFIG, folder))  # away from the examples' kb.toml
    kb = ["-m", "kb.check", config, *MACHINE]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    checkout = {**plain, "PYTHONPATH": str(ROOT / "src")}
    cold = [*kb, "--no-cache"]
    edited = folder / "edited.yaml"
    other = ["-m", "kb.check", str(edited), *MACHINE]
    programs: dict[str, tuple[list[str], dict[str, str]]] = {
        "python -c pass": ([sys.executable, "-c", "pass"], plain),
        "python -c 'import yaml'": ([sys.executable, "-c", "import yaml"], plain),
        "kb.check": ([sys.executable, *kb], plain),
        "kb.check, the file changed": ([sys.executable, *other], plain),
        "kb.check, from a checkout": ([sys.executable, *kb], checkout),
        "kb.check, cold": ([sys.executable, *cold], plain),
        "yamllint": ([str(SCRIPTS / "yamllint"), config], plain),
        "check-jsonschema": (
            [str(SCRIPTS / "check-jsonschema"), "--schemafile", str(schema), config],
            plain,
        ),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for turn in range(runs + 1):
        for name, (command, environment) in programs.items():
            if command[-1] == cold[-1] and turn > COLD_RUNS:
                continue
            if str(edited) in command:
                edited.write_text(f"{CONFIG.read_text('utf-8')}# edited {turn} times\n", "utf-8")
            taken = process(command, environment)
            if turn:  # the first warms the caches of files
                times[name].append(taken)
    wall = {name: statistics.median(each for each, _ in taken) for name, taken in times.items()}
    work = {name: statistics.median(each for _, each in taken) for name, taken in times.items()}
    return {
        name: {
            "median_ms": round(wall[name], 1),
            "least_ms": round(min(times[name])[0], 1),
            "processor_ms": round(work[name], 1),
            "of_python": round(wall[name] / wall["python -c pass"], 2),
            "of_yamllint": round(wall[name] / wall["yamllint"], 2),
            "processor_of_yamllint": round(work[name] / work["yamllint"], 2),
        }
        for name in programs
    } | {"runs": runs}


def instructions(folder: Path) -> dict[str, Any] | None:
    """Instructions of whole processes on one config, which a busy machine changes little; None without valgrind.

    The config lies in a folder of its own and the cache elsewhere: kb looks through the folder of a config for the
    programs that read it. Each program is started as a module and by its command.
    """
    if shutil.which("valgrind") is None:
        return None
    folder.mkdir()
    config = folder / "config.yaml"
    python = sys.executable
    arguments = ["check", str(config), *MACHINE]
    programs = {
        "yamllint, as a module": [python, "-m", "yamllint", str(config)],
        "yamllint": [python, str(SCRIPTS / "yamllint"), str(config)],
        "kb.check, as a module": [python, "-m", "kb", *arguments],
        "kb check": [python, str(SCRIPTS / "kb"), *arguments],
    }
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    counting = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    counts: dict[str, int] = {}
    for turn, (name, command) in enumerate(programs.items()):
        config.write_text(CONFIG.read_text("utf-8"), "utf-8")
        process(command, environment)  # what is predicted is kept, and every module compiled
        config.write_text(f"{CONFIG.read_text('utf-8')}# edited {turn} times\n", "utf-8")
        run = subprocess.run([*counting, *command], env=environment, capture_output=True, text=True, check=False)
        found = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
        if found is None or run.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}: exit {run.returncode}: {run.stderr[-500:]}")
        counts[name] = int(found[1].replace(",", ""))
    least = min(counted for name, counted in counts.items() if name.startswith("yamllint"))
    return {
        name: {"millions": round(each / 1e6, 1), "of_yamllint": round(each / least, 3)} for name, each in counts.items()
    }


def tree(folder: Path, seconds: float) -> dict[str, Any]:
    """Milliseconds a file over a tree of configs, on one core, the process's start included."""
    count, _ = distinct_in(seconds)
    lines = write_tree(folder / "configs", count)
    rows: dict[str, Any] = {"files": count, "lines_per_file": round(lines / count)}
    kept = Path(os.environ["XDG_CACHE_HOME"]) / "kb"

    def run(*extra: str) -> dict[str, float]:
        command = [sys.executable, "-m", "kb.check", str(folder / "configs"), *MACHINE, *extra]
        wall, work = process(command, dict(os.environ), one_core=True)
        return {"ms_per_file": round(wall / count, 3), "processor_ms_per_file": round(work / count, 3)}

    def predicted(*extra: str) -> dict[str, float]:
        for results in kept.glob("results-*"):
            results.unlink()
        return run(*extra)

    shutil.rmtree(kept, ignore_errors=True)
    rows["cold"] = run("--quiet")
    rows["predicted"] = predicted("--quiet")
    rows["warm"] = run("--quiet")
    rows["predicted_with_panel"] = predicted()
    rows["predicted_json"] = predicted("--format", "json")
    return rows


def in_process() -> dict[str, Any]:
    """Microseconds of the parts: a rule's expression, a rough prediction, one file from its bytes to its findings."""
    from kb.advice.question import Question
    from kb.core.expression import compile_tree
    from kb.knowledge import load_catalog
    from kb.memory import predict
    from kb.session.prepare import file_checker
    from kb.session.project import Project

    catalog = load_catalog()
    checker = file_checker(catalog, Project(), Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16"))
    raw = CONFIG.read_bytes()
    (result,) = checker.check(raw, str(CONFIG)).results
    facts = checker.facts(result.unit)
    conditions = [compile_tree(rule.when) for rule in catalog.rules.values() if rule.when is not None]
    for condition in conditions:
        condition(facts.get)  # facts are kept once found: what remains is the expression
    gpu = checker.machine.gpus[0]
    assert result.model is not None and gpu.gpu is not None

    def rough_answer() -> None:
        predict(result.setup, result.model.architecture, constants=catalog.constants, gpu=gpu.gpu, rough=True)

    def expressions() -> None:
        for condition in conditions:
            condition(facts.get)

    return {
        "rules": len(catalog.rules),
        "expressions": len(conditions),
        "expression_us": round(microseconds(expressions) / len(conditions), 3),
        "rough_us": round(microseconds(rough_answer), 1),
        "file_us": round(microseconds(lambda: checker.check(raw, str(CONFIG))), 1),
        "catalog_us": round(microseconds(load_catalog), 1),
    }


def imports(folder: Path) -> dict[str, Any]:
    """The modules of one check by the time that each itself took to import, and those that must not be there: of a
    file that is as it was, of one that changed, and cold."""
    config = folder / "imported.yaml"
    shutil.copy(CONFIG, config)
    command = [sys.executable, "-X", "importtime", "-m", "kb.check", str(config), *MACHINE]

    def loaded(*extra: str) -> list[tuple[int, int, str]]:
        run = subprocess.run([*command, *extra], capture_output=True, text=True, check=False)
        rows = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \| *(\S+)$", run.stderr, re.M)
        return sorted(((int(own), int(total), name) for own, total, name in rows), reverse=True)

    loaded()
    modules, cold = loaded(), loaded("--no-cache")
    config.write_text(f"{CONFIG.read_text('utf-8')}# edited\n", "utf-8")
    changed = loaded()
    names = {name.partition(".")[0] for *_, name in (*modules, *changed, *cold)}
    return {
        "modules": len(modules),
        "kb_modules": sum(name.startswith("kb.") for *_, name in modules),
        "kb_modules_changed": sum(name.startswith("kb.") for *_, name in changed),
        "kb_modules_cold": sum(name.startswith("kb.") for *_, name in cold),
        "total_ms": round(sum(own for own, *_ in modules) / 1000, 1),
        "top": [{"module": name, "self_us": own, "with_imports_us": total} for own, total, name in modules[:15]],
        "heavy": sorted(names & set(HEAVY)),
    }


def process(command: Sequence[str], environment: dict[str, str], *, one_core: bool = False) -> tuple[float, float]:
    """Run a command; its milliseconds by the clock and on the processor. The second bears a busy machine better."""
    pin = shutil.which("taskset") if one_core else None
    whole = [pin, "-c", "0", *command] if pin else list(command)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run = subprocess.run(whole, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit {run.returncode}: {run.stderr.decode()[-500:]}")
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, work * 1000


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def microseconds(action: Callable[[], object], seconds: float = 1.0) -> float:
    """The median over batches of about a hundredth of a second."""
    once = max(milliseconds(action) for _ in range(3))
    batch = max(1, int(10 / once)) if once else 1000
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        samples.append(milliseconds(lambda: [action() for _ in range(batch)]) / batch * 1000)
    return statistics.median(samples)


def counted_lines(counted: dict[str, Any] | None) -> list[str]:
    if counted is None:
        return []
    return [
        "## Instructions of one changed config, whole process, predicted before",
        "",
        "| program | millions | × yamllint (the lesser) |",
        "|---|--:|--:|",
        *(f"| {name} | {row['millions']} | {row['of_yamllint']} |" for name, row in counted.items()),
        "",
    ]


def as_markdown(results: dict[str, Any]) -> str:
    one, trees, parts, found = (results[name] for name in ("one_file", "tree", "in_process", "imports"))
    place = results["machine"]
    used = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    ratio, changed = (one[name]["of_yamllint"] for name in ("kb.check", "kb.check, the file changed"))
    tree_name = f"a file of {trees['files']} ({trees['lines_per_file']} lines each), one core"
    lines = [
        "# Speed",
        "",
        f"`make bench`, {results['date']}. {place['cpu']}, {place['cores']} cores, {place['system']}, "
        f"load average {results['load']}. {used}.",
        "",
        f"## One config, whole process, {one['runs']} alternating runs",
        "",
        "| program | median ms | least ms | processor ms | × `python -c pass` | × yamllint | processor × yamllint |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | {row['median_ms']} | {row['least_ms']} | {row['processor_ms']} | {row['of_python']} "
            f"| {row['of_yamllint']} | {row['processor_of_yamllint']} |"
            for name, row in one.items()
            if name != "runs"
        ),
        "",
        "kb.check has checked the config before and tells that answer again; where a comment in the file changed, it "
        "has predicted the config before; cold it keeps nothing, with fewer runs.",
        "",
        f"Target: not slower than yamllint. {'Met' if ratio <= 1 else 'Missed'}: {ratio} of its time; "
        f"{changed} where the file changed.",
        "",
        *counted_lines(results["instructions"]),
        "## Many configs and the parts",
        "",
        "| what | measured | target |",
        "|---|--:|--:|",
        *(
            f"| {name} | {row['ms_per_file']} ms (processor {row['processor_ms_per_file']}) | {target} |"
            for name, row, target in (
                (f"{tree_name}, cold", trees["cold"], ""),
                ("the same, predicted before", trees["predicted"], "5 ms"),
                ("the same, warm", trees["warm"], "1 ms"),
                ("the same with the fit panels, predicted before", trees["predicted_with_panel"], ""),
                ("the same as JSON, predicted before", trees["predicted_json"], ""),
            )
        ),
        f"| one file in a running process, {parts['rules']} rules | {parts['file_us']:.0f} µs | |",
        f"| a rule's expression, mean of {parts['expressions']} | {parts['expression_us']} µs | |",
        f"| a rough prediction, known already | {parts['rough_us']:.0f} µs | 200 µs |",
        f"| reading the compiled rules | {parts['catalog_us']:.0f} µs | |",
        "",
        "## Imports of one check",
        "",
        f"{found['modules']} modules, {found['kb_modules']} of them kb's ({found['kb_modules_changed']} where the file "
        f"changed, {found['kb_modules_cold']} cold), "
        f"{found['total_ms']} ms in all with `-X importtime`. "
        f"Of {', '.join(HEAVY)}: {', '.join(found['heavy']) or 'none'}.",
        "",
        "| module | itself µs | with what it imports µs |",
        "|---|--:|--:|",
        *(f"| {row['module']} | {row['self_us']} | {row['with_imports_us']} |" for row in found["top"]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
