"""What public start-up logs of servers print beside what kb predicts of the same command.

    python bench/server_logs.py

bench/published/server_logs.jsonl holds a start a line: the address of the log (claimed: nobody here ran it), release,
model and GPU by kb's ids, options as ``ServingSetup`` names them, weights and KV cache on one GPU in GiB, and tokens.
``gpu`` is null where the log's project does not name it, ``positions`` are those of the very model where kb's row is of
another of its shape, and ``off`` says why the cache is outside kb's range.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kb.core.release import parse_version
from kb.core.units import GIB
from kb.knowledge.catalog import load_catalog
from kb.memory.serving.answer import serve
from kb.memory.serving.setup import ServingSetup, served_model

LOGS = Path(__file__).resolve().parent / "published" / "server_logs.jsonl"
ROUNDED = 0.015  # GiB: weights and cache are printed to a hundredth
UNKNOWN_GPU = 80 << 30  # bytes: any will do for weights


class Start(NamedTuple):
    """One start: the log's row, and what kb has for its figures; the KV cache as range. None where the log has none."""

    row: dict[str, Any]
    weights_gib: float
    kv_gib: tuple[float, float] | None
    tokens: int | None

    @property
    def weights_off(self) -> float:
        """Predicted over printed, less one; what two printed decimals cannot tell is none."""
        return (self.weights_gib - self.row["weights_gib"]) / self.row["weights_gib"]

    @property
    def inside(self) -> bool | None:
        """Whether the printed cache lies in kb's range; None where none is printed, or on a GPU that nobody names."""
        printed = self.row["kv_gib"]
        if self.kv_gib is None or printed is None:
            return None
        return self.kv_gib[0] - ROUNDED <= printed <= self.kv_gib[1] + ROUNDED


def starts(catalog: Any, engines: dict[str, Any]) -> Iterator[Start]:
    """Every start that the file holds."""
    for line in LOGS.read_text("utf-8").splitlines():
        row = json.loads(line)
        known, gpu = catalog.models[row["model"]], catalog.gpus.get(row["gpu"])
        ratio = catalog.constants["usable_memory_ratio"]
        seen = UNKNOWN_GPU if gpu is None else gpu.visible_bytes(ratio)
        most = 0 if gpu is None else gpu.visible_bytes(ratio, best=True)
        options = {**row["options"], "gpu_id": row["gpu"] or "", "gpu_most": most}
        setup = ServingSetup(row["engine"], parse_version(row["release"]), seen, **options)
        model = served_model(known.name, known.architecture, row.get("positions") or known.max_length)
        found = serve(model, setup, engines[row["engine"]], catalog.constants)
        budget = found.budget
        assert budget is not None
        band = None if gpu is None else (budget.kv_low / GIB, budget.kv_high / GIB)
        yield Start(row, budget.terms[0].bytes / GIB, band, None if gpu is None else found.kv_tokens)


def main() -> None:
    """A line for each start, and how many lie inside."""
    catalog = load_catalog()
    found = list(starts(catalog, catalog.serving()))
    for each in found:
        row, band = each.row, each.kv_gib
        cache = "" if band is None or row["kv_gib"] is None else f"{row['kv_gib']} in {band[0]:.2f}–{band[1]:.2f}"
        more = "" if not row["tokens"] or not each.tokens else f"{each.tokens / row['tokens'] - 1:+.1%} tokens"
        print(
            f"{row['model']:28} {row['release']:9} {each.weights_off:+.2%} weights  {cache:22} {more}  {row['source']}"
        )
    told = [each.inside for each in found if each.inside is not None]
    print(f"{sum(told)} of {len(told)} caches inside kb's range; {len(found)} starts")


if __name__ == "__main__":
    main()
