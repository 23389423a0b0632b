"""The GPUs with their memory, what they compute in, and how fast: each linked to its page."""

from kb.guide.library import Library
from kb.guide.markup import quantity, table, text
from kb.guide.site_words import say
from kb.report.gpu_names import short_name


def gpu_table(library: Library) -> str:
    """A row for each GPU, the smallest memory first."""
    language, catalog = library.language, library.catalog
    columns = ("gpu.name", "gpu.memory", "gpu.bandwidth", "gpu.flops", "gpu.bf16", "gpu.capability")
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda gpu: (gpu.memory_total, gpu.name)):
        data = library.entry("hardware", gpu.id)
        rows.append(
            (
                f"[{text(short_name(gpu))}]({gpu.id}.md)",
                *(_first(library, data.get(name)) for name in ("memory_total", "memory_bandwidth", "tensor_flops")),
                say(language, f"bf16.{'yes' if gpu.native_bf16 else 'no'}"),
                ".".join(map(str, gpu.compute_capability)),
            )
        )
    return table([say(language, column) for column in columns], rows, numbers=(1, 2, 3))


def _first(library: Library, rows: object) -> str:
    """The quantity, or the first of several: the one that the engine uses."""
    row = rows[0] if isinstance(rows, list) else rows
    return quantity(library, row) if isinstance(row, dict) else "–"
