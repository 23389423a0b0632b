"""What kb reads in shell scripts beside what bash makes of them: they really run, and every program is a stand-in.

    sudo python bench/shell_runs.py FOLDER [FOLDER …] [--limit N] [--show false|extra|missed|never]

Each FOLDER is a project of anybody's. Every script in it that names a launcher runs under bash in a copy of the folder
that is thrown away: as a user without rights, without a network, for five seconds, in a root that holds bash, a few
tools for text (`sed`, `wc`) and nothing else. `python`, `torchrun` and all programs that are not there only write
their words down, with the line that started them, and end well: `nvidia-smi` has one GPU. Needs root on Linux.

What kb says of a script is then compared, by line, with what it says of the words that the program really got:

    false   a value that the run does not get
    extra   a value of which the run gets none
    missed  a start that kb does not see, though it would say something of its words
    never   a start that kb shows and that this run of the script did not make: mostly a branch that needs arguments, or
            output that goes to a folder that is not there

A line with a fault in its continuation is left out: kb reads it as it was meant, and says so. Prints counts alone,
and with --show the places. A difference is a question, no verdict: the scripts run without arguments, files or GPUs.
"""

import argparse
import collections
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kb.config.shell.command import CommandReader, read_shell  # noqa: E402
from kb.core.document import Unit  # noqa: E402
from kb.core.expression import is_unknown  # noqa: E402
from kb.knowledge.catalog import load_catalog  # noqa: E402

TOOLS = [
    "bash",
    "dash",
    "basename",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "dirname",
    "env",
    "expr",
    "find",
    "grep",
    "head",
    "hostname",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "nproc",
    "nice",
    "nohup",
    "paste",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sort",
    "stat",
    "stdbuf",
    "tail",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "uname",
    "uniq",
    "wc",
    "whoami",
    "xargs",
    "awk",
]
STARTERS = [
    "python",
    "python3",
    "torchrun",
    "accelerate",
    "deepspeed",
    "llamafactory-cli",
    "swift",
    "axolotl",
    "trl",
    "tune",
    "vllm",
    "srun",
    "mpirun",
    "docker",
    "uv",
    "poetry",
    "conda",
    "sudo",
]
STANDING_IN = [
    *STARTERS,
    *[
        "sh",
        "git",
        "pip",
        "pip3",
        "wget",
        "curl",
        "sleep",
        "nvidia-smi",
        "hf",
        "huggingface-cli",
        "sbatch",
        "which",
        "ssh",
        "kill",
    ],
]
WRAPPERS = "srun|mpirun|uv|poetry|conda|sudo"
LAUNCH = re.compile(
    r"(?m)^[^#\n]*\b(?:torchrun|accelerate launch|deepspeed|llamafactory-cli|swift|axolotl|vllm|python3?)\b"
)
SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
NAMED = re.compile(r"(?<![\w/$}])((?:\.{0,2}/)?[\w-][\w./-]*\.(?:py|sh|ya?ml|json))\b")
SETS = re.compile(r"CUDA_VISIBLE|NPROC|NNODES|FORCE_TORCHRUN|ACCELERATE|FSDP|VLLM|PYTORCH|DEEPSPEED")
NOBODY = "65534"

STAND_IN = rf"""#!/stand/dash
name=${{0##*/}}
{{ printf '%s\0' "$name" "$#" "$@"; /stand/cat /proc/$$/environ; }} > "/log/$$-$name" 2>/dev/null
case $name in
  which) command -v "$1" ;;
  sh) exec /usr/bin/bash "$@" ;;
  nvidia-smi) case "$*" in *count*) echo 1 ;; *memory*) echo 24564 ;; *) echo "NVIDIA GeForce RTX 4090" ;; esac ;;
  sbatch|{WRAPPERS}) while [ $# -gt 0 ]; do case ${{1##*/}} in
      {"|".join(STARTERS)}|bash|sh|env|nohup) exec "$@" ;;
      *.sh|*.slurm|*.sbatch) [ -f "$1" ] && exec /usr/bin/bash "$@" ;;
    esac; shift; done ;;
esac
exit 0
"""
BEFORE = r"""
command_not_found_handle() { /stand/any "$@"; }
source() { if [ -e "$1" ]; then builtin source "$@"; fi; }
.() { source "$@"; }
set -T
trap 'export STARTED_AT="${BASH_SOURCE[0]}:$LINENO"' DEBUG
"""
INSIDE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs none {work}/over; mkdir {work}/over/a {work}/over/b {work}/over/c {work}/over/d
mount -t overlay overlay -o lowerdir={work}/root,upperdir={work}/over/a,workdir={work}/over/b {work}/run
mount -t overlay overlay -o lowerdir={work}/project,upperdir={work}/over/c,workdir={work}/over/d {work}/run/project
mount --bind {work}/log {work}/run/log
for each in /usr/lib /usr/lib64; do
  [ ! -d $each ] || {{ mount --bind $each {work}/run$each; mount -o remount,ro,bind {work}/run$each; }}
done
mount -t tmpfs none {work}/run/dev; mknod -m 666 {work}/run/dev/null c 1 3; ln -s /proc/self/fd {work}/run/dev/fd
mount -t proc proc {work}/run/proc
chown {nobody}:{nobody} {work}/run {work}/run/home {work}/run/tmp {work}/run/project
env -i PATH=/usr/bin HOME=/home USER=user LANG=C.UTF-8 BASH_ENV=/stand/before /usr/bin/timeout -k 1 5 \
  /usr/bin/prlimit --nproc=300 --fsize=20000000 /usr/sbin/chroot --userspec={nobody}:{nobody} {work}/run \
  /usr/bin/env -C {folder} /usr/bin/bash {script} || true
for i in 1 2 3 4 5 6 7 8; do set -- {work}/run/proc/[0-9]*; [ $# -gt 1 ] || break; sleep 0.05; done
"""


class Call(NamedTuple):
    """A program that was started, by the line of the script that did."""

    program: str
    words: tuple[str, ...]
    variables: dict[str, str]
    line: int


def make_root(work: Path) -> None:
    """The root in which scripts run: a few tools, and a stand-in for each other program."""
    for name in ("usr/bin", "usr/lib", "usr/lib64", "home", "tmp", "proc", "dev", "project", "log", "stand"):
        (work / "root" / name).mkdir(parents=True)
    for name, to in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")):
        (work / "root" / name).symlink_to(to)
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:
            shutil.copy(os.path.realpath(found), work / "root/usr/bin" / name)
    for name in ("dash", "cat"):
        shutil.copy(work / "root/usr/bin" / name, work / "root/stand" / name)
    for name in [f"usr/bin/{each}" for each in STANDING_IN] + ["stand/any"]:
        (work / "root" / name).write_text(STAND_IN)
        (work / "root" / name).chmod(0o755)
    (work / "root/stand/before").write_text(BEFORE)
    for name in ("over", "run", "log"):
        (work / name).mkdir()
    (work / "log").chmod(0o777)


def folder_of(script: str, project: Path, text: str) -> str:
    """The folder from which more of the files that the script names are there: the project's, or its own."""
    named = set(NAMED.findall(text))
    folders = dict.fromkeys(("", os.path.dirname(script), os.path.dirname(os.path.dirname(script))))
    return max(folders, key=lambda folder: sum((project / folder / name).exists() for name in named))


def calls_of(script: str, project: Path, work: Path) -> list[Call]:
    """The starts of programs that a run of the script made by itself, the outermost of each process."""
    shutil.rmtree(work / "log")
    (work / "log").mkdir()
    (work / "log").chmod(0o777)
    folder = folder_of(script, project, (project / script).read_text("utf-8", "replace"))
    inside = INSIDE.format(
        work=work, folder=shlex.quote(f"/project/{folder}"), script=shlex.quote(f"/project/{script}"), nobody=NOBODY
    )
    command = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", inside]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=12)
    except subprocess.TimeoutExpired:
        return []
    found: dict[str, Call] = {}
    for entry in sorted(os.scandir(work / "log"), key=lambda each: each.stat().st_mtime_ns):
        name, count, *rest = Path(entry.path).read_bytes().decode("utf-8", "replace").split("\0")
        words = rest[: int(count)]
        variables = dict(each.partition("=")[::2] for each in rest[int(count) :])
        file, _, line = variables.get("STARTED_AT", "").rpartition(":")
        if name in STARTERS and os.path.normpath(f"/project/{folder}/{file}").endswith(f"/{script}"):
            found.setdefault(entry.name.partition("-")[0], Call(name, tuple(words), variables, int(line or 0)))
    return list(found.values())


def values_of(unit: Unit) -> dict[str, Any]:
    """What is said of a run: settings, and flags as they are written; home is what the shell makes of ``~``."""
    said = {**{f"--{name}": each for name, each in unit.keys.items()}, **unit.settings}
    known = {name: each.value for name, each in said.items() if not is_unknown(each.value)}
    return {name: re.sub(r"^~/", "/home/", each) if isinstance(each, str) else each for name, each in known.items()}


def compare(text: str, path: str, calls: list[Call], reader: CommandReader) -> Iterator[tuple[str, int, str]]:
    """Kind, line and words of each value that is compared (``same``), and of each difference."""
    slurm = "".join(f"{line}\n" for line in re.findall(r"(?m)^#SBATCH .*$", text))
    units = read_shell(text, path, reader, lambda _: True)
    seen = set[int]()
    for call in calls:
        prefix = [f"{name}={shlex.quote(value)}" for name, value in call.variables.items() if SETS.match(name)]
        words = slurm + " ".join([*prefix, call.program, *map(shlex.quote, call.words)]) + "\n"
        real = next(iter(read_shell(words, path, reader)), None)
        here = [unit for unit in units if unit.span.line <= call.line <= unit.span.end_line]
        unit = next((each for each in here if real is None or each.script == real.script), None)
        seen.update(each.span.line for each in here)
        if real is None or unit is None:
            yield ("start", call.line, "") if real is None or here else ("missed", call.line, words[:100].strip())
            continue
        yield "start", call.line, ""
        if any("backslash" in event.kind for event in unit.events):
            continue
        truth = values_of(real)
        for name, value in values_of(unit).items():
            if name not in truth and name not in real.settings and name.removeprefix("--") not in real.keys:
                yield "extra", call.line, f"{name} {value}"
            elif name in truth:
                told = f"{name} {value}, really {truth[name]}"
                yield ("same", call.line, "") if truth[name] == value else ("false", call.line, told)
    for unit in read_shell(text, path, reader):
        if unit.settings and unit.span.line not in seen:
            yield "never", unit.span.line, unit.script or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="scripts of a folder")
    parser.add_argument("--show", default="", help="kinds of differences to list, with commas")
    options = parser.parse_args()
    catalog = load_catalog(whole=True)
    reader = CommandReader(catalog.dialects, catalog.facts)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="shell-runs-") as place:
        work = Path(place)
        make_root(work)
        for folder in options.folders:
            project = work / "project"
            shutil.rmtree(project, ignore_errors=True)
            shutil.copytree(folder, project, symlinks=True, ignore=shutil.ignore_patterns(".git", "*.ipynb"))
            subprocess.run(["chown", "-R", "-h", f"{NOBODY}:{NOBODY}", str(project)], check=True)
            scripts = sorted(each for each in project.rglob("*") if each.suffix in SUFFIXES and each.is_file())
            texts = {each: each.read_text("utf-8", "replace") for each in scripts}
            for script in [each for each in scripts if LAUNCH.search(texts[each])][: options.limit]:
                path = str(script.relative_to(project))
                counts["scripts"] += 1
                for kind, line, words in compare(texts[script], path, calls_of(path, project, work), reader):
                    counts[kind] += 1
                    if kind in options.show.split(","):
                        print(f"{kind} {folder.name}/{path}:{line} {words}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
