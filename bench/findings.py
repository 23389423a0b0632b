"""How much of what kb says of projects that nobody here wrote is true: findings judged by hand beside today's.

    python bench/findings.py --findings DIR [--gpu a100-80gb] [--notes] [--show false|true|noise]

DIR holds projects as folders, with their pins beside their configs, and ``labels.jsonl``: a finding a line, as JSON
with the keys

    project   the project's folder
    path      the file, from DIR on
    line      the line that the finding was at when it was judged; files change, so it is not compared
    rule      the rule's id
    severity  the severity that it had
    label     true; false, with the reason in `why`; noise: true and of no use; open: depends on what nobody pinned

Each project is checked as its users would, ``kb check PROJECT --gpu …``. Of the findings judged false those count that
are still an error or a warning; of the others those that are still said at all. Writes bench/results/findings.json and
.md: counts alone, nothing of the projects.
"""

import argparse
import collections
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
LOUD = {"error", "warning"}
TARGETS = {"false": ("at most", 0.05), "true": ("at least", 0.90), "noise": ("at most", 0.40)}


def said_of(project: Path, gpu: str, notes: bool) -> dict[tuple[str, str], set[str]]:
    """Severities of every finding in a project, by path and rule."""
    command = [sys.executable, "-m", "kb", "check", project.name, "--gpu", gpu, "--format", "json", "--no-cache"]
    run = subprocess.run(
        [*command, *(["--notes"] if notes else [])], cwd=project.parent, capture_output=True, text=True
    )
    if run.returncode not in (0, 1, 2) or not run.stdout:
        raise SystemExit(f"{project.name}: exit {run.returncode}: {run.stderr[-300:]}")
    said: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for file in json.loads(run.stdout)["files"]:
        for finding in file["findings"]:
            said[file["path"], finding["rule"]].add(finding["severity"])
    return said


def score(
    labels: list[dict[str, Any]], said: dict[tuple[str, str], set[str]]
) -> tuple[dict[str, list[int]], list[dict[str, Any]]]:
    """``{label: [judged, still said]}``, and the rows that count against kb."""
    counts = {label: [0, 0] for label in TARGETS}
    against = []
    for row in labels:
        label = row["label"]
        if label not in counts:
            continue
        now = said.get((row["path"], row["rule"]), set())
        still = bool(now & LOUD) if label == "false" else bool(now)
        counts[label][0] += 1
        counts[label][1] += still
        if still is (label != "true"):
            against.append(row)
    return counts, against


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--findings", type=Path, required=True, metavar="DIR")
    parser.add_argument("--gpu", default="a100-80gb")
    parser.add_argument("--notes", action="store_true", help="count notes as said, too")
    parser.add_argument("--show", choices=tuple(TARGETS), help="list what counts against kb, of one label")
    options = parser.parse_args()
    labels = [json.loads(line) for line in (options.findings / "labels.jsonl").read_text("utf-8").splitlines()]
    said: dict[tuple[str, str], set[str]] = {}
    for project in sorted(path for path in options.findings.iterdir() if path.is_dir()):
        said |= said_of(project, options.gpu, options.notes)
    counts, against = score(labels, said)
    for label, (judged, still) in counts.items():
        print(
            f"{label:6} {still:4} of {judged:4} still said: {still / judged:.1%} "
            f"({TARGETS[label][0]} {TARGETS[label][1]:.0%})"
        )
    if options.show:
        rows = collections.Counter(
            (row["rule"], row["path"], row["why"]) for row in against if row["label"] == options.show
        )
        for (rule, path, why), number in sorted(rows.items()):
            print(f"  {rule}  {path}  {why}  × {number}")
    else:
        _write(counts, options.gpu)
    return 0


def _write(counts: dict[str, list[int]], gpu: str) -> None:
    day = datetime.date.today().isoformat()
    rows = {label: {"judged": judged, "still_said": still} for label, (judged, still) in counts.items()}
    (RESULTS / "findings.json").write_text(
        json.dumps({"day": day, "gpu": gpu, "labels": rows}, indent=2) + "\n", "utf-8"
    )
    lines = [
        "# Findings on projects that nobody here wrote",
        "",
        f"{day}, `python bench/findings.py --findings DIR --gpu {gpu}`. Judged by hand: true, false, or noise",
        "(true and of no use).",
        "",
        "| judged | findings | still said | share | target |",
        "|---|---|---|---|---|",
    ]
    for label, (judged, still) in counts.items():
        bound, target = TARGETS[label]
        lines.append(f"| {label} | {judged} | {still} | {still / judged:.1%} | {bound} {target:.0%} |")
    lines += [
        "",
        "Of those judged false, errors and warnings count; of the others, whatever is said without `--notes`.",
        "",
    ]
    (RESULTS / "findings.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
