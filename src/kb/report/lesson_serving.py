"""What a server holds of a model, for the chapter on servers: of its example, and of what its reader chose."""

from collections.abc import Iterable, Iterator, Sequence

from kb.core.hardware import Gpu
from kb.core.release import parse_version
from kb.core.units import GIB
from kb.machine.arguments import find_gpu
from kb.memory.serving.answer import Served, serve
from kb.memory.serving.setup import Engine, ServingSetup
from kb.memory.serving.shape import served_model
from kb.report.lesson_rows import Case, Cell, plain


def served_on(case: Case, gpus: Iterable[str], engine: Engine, length: int) -> Iterator[tuple[Gpu, Served]]:
    """Each GPU, and what the model's server holds on it: 16-bit weights, the newest release's defaults.

    Args:
        gpus: by id or name; a server on one of each.
        length: of the longest request, in tokens; the model's own where that is shorter.

    Raises:
        UnsupportedArchitectureError: the model is no decoder.
    """
    row, constants, data = case.estimator.model, case.estimator.constants, case.catalog.serving()[engine]
    model = served_model(row.name, row.architecture, row.max_length)
    longest = min(length, model.positions or length)
    for name in gpus:
        gpu = find_gpu(name, case.catalog.gpus)
        seen = round(gpu.memory_total * constants["usable_memory_ratio"])
        setup = ServingSetup(engine, parse_version(data["newest"]), seen, max_model_len=longest, gpu_id=gpu.id)
        yield gpu, serve(model, setup, data, constants)


def serving_rows(case: Case, gpu: str, engine: Engine, lengths: Sequence[int]) -> list[list[Cell]]:
    """By the length of a request: the cache of one, the cache's tokens, and how many are held at once."""
    rows = []
    for length in lengths:
        (_, found), *_ = served_on(case, [gpu], engine, length)
        if found.setup.max_model_len != length:  # longer than the model reads
            break
        one = f"{found.request_bytes / GIB:.2f} GiB" if found.request_bytes else "–"
        held = f"{found.kv_tokens:,}" if found.starts else "–"
        many = ((f"{found.concurrency:.1f}", "b"),) if found.starts and found.concurrency else plain("–")
        rows.append([plain(f"{length:,}"), plain(one), plain(held), many])
    return rows
