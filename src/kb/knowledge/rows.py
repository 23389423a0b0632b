"""What JSON Schema cannot compare: figures of one row against each other, settings against their ranges, sources."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from kb.core.text import did_you_mean
from kb.knowledge.problems import Problem
from kb.knowledge.source import KEY, Located, Path
from kb.memory import architecture_from_config, parameter_count

BYTES = {"B": 1, "MiB": 2**20, "GiB": 2**30, "MB": 10**6, "GB": 10**9}
# A datasheet's GB is a GiB for a GPU's memory. The driver keeps a part of it, more with ECC, and CUDA a little more.
SHARE_OF_SOLD, OTHER_DRIVERS, OFFERED_BY_CUDA = (0.92, 1.0), (0.9, 1.1), (0.95, 1.0)
NATIVE_BF16_FROM = (8, 0)
SAME_COUNT = 1e-3  # a published count of parameters is rounded to four digits
FIGURES = ("allocated_bytes", "reserved_bytes", "process_bytes")  # each holds the one before


def capability_of(data: Mapping[str, Any]) -> tuple[int, int]:
    """The compute capability of a GPU's entry."""
    major, _, minor = str(data["compute_capability"]["value"]).partition(".")
    return int(major), int(minor or 0)


def check_hardware(located: Located) -> Iterator[Problem]:
    """Sizes of one memory that contradict each other, and bf16 against the compute capability."""
    first, *others = located.data["memory_total"]
    reported = first["value"] * BYTES[first["unit"]]
    rows: list[tuple[Path, Any, tuple[float, float]]]
    rows = [(("memory_total", at), row, OTHER_DRIVERS) for at, row in enumerate(others, 1)]
    rows += [(("cuda_memory", at), row, OFFERED_BY_CUDA) for at, row in enumerate(located.data.get("cuda_memory", []))]
    for path, row, bounds in rows:
        sold = row["status"] != "measured" and row["unit"] == "GB"
        size = row["value"] * (BYTES["GiB"] if sold else BYTES[row["unit"]])
        share, (low, high) = (reported / size, SHARE_OF_SOLD) if sold else (size / reported, bounds)
        if not low <= share <= high:
            said = f"{row['value']} {row['unit']}", f"{first['value']} {first['unit']}"
            yield located.problem(
                (*path, "value"),
                f"{'.'.join(map(str, path))}: {said[0]} cannot be the memory that is reported as {said[1]}",
                f"{'.'.join(map(str, path))}: {said[0]} 값은 {said[1]} 값으로 보고되는 메모리일 수 없습니다",
            )
    capability = located.data["compute_capability"]["value"]
    native = capability_of(located.data) >= NATIVE_BF16_FROM
    if located.data["native_bf16"]["value"] is not native:
        yield located.problem(
            ("native_bf16", "value"),
            f"native_bf16: compute capability {capability} means {str(native).lower()} (bf16 from 8.0)",
            f"native_bf16: 연산 능력 {capability}에서는 {str(native).lower()} 값입니다 (bf16은 8.0부터)",
        )


def check_model(located: Located) -> Iterator[Problem]:
    """The row's own count of parameters against that of its dimensions, and stored types of what is no alias of it."""
    try:
        counted = _counted(located.data["architecture"])
    except ValueError as error:
        yield located.problem(("architecture",), str(error))
        return
    for at, row in enumerate(located.data.get("weights_dtype", [])[1:], 1):
        if row["of"] not in located.data["aliases"]:
            yield located.problem(("weights_dtype", at, "of"), f"{row['of']!r} is no alias of this model")
    said = located.data["parameters"][0]["value"]
    if said != counted:
        yield located.problem(
            ("parameters", 0, "value"),
            f"parameters: {said:,} is not the {counted:,} that the architecture gives",
            f"parameters: {said:,}개는 이 구조에서 나오는 {counted:,}개와 다릅니다",
        )


def _counted(architecture: Mapping[str, Any]) -> int:
    """Parameters by the dimensions. Raises: ValueError: there is none for such dimensions."""
    return parameter_count(architecture_from_config(architecture))


def check_measurement(located: Located, gpus: Mapping[str, Any]) -> Iterator[Problem]:
    """Rows that name no known GPU or model, and sizes that cannot all be true of one run."""
    data = located.data
    gpu, models = data["machine"].get("gpu"), data.get("models", {})
    if gpu is not None and gpu not in gpus:
        yield _unknown(located, ("machine", "gpu"), gpu, "rules/hardware")
    limit = data["machine"].get("gpu_memory_bytes")
    for at, row in enumerate(data["rows"]):
        if "model" in row and row["model"] not in models:
            yield _unknown(located, ("rows", at, "model"), row["model"], "models")
        for phase, sizes in row.get("phases", {}).items():
            path: Path = ("rows", at, "phases", phase)
            named = [name for name in FIGURES if name in sizes]
            for less, more in pairwise(named):
                if sizes[less] > sizes[more]:
                    yield _larger(located, (*path, more), (less, sizes[less]), (more, sizes[more]))
            if limit is not None and sizes[named[-1]] > limit:
                top = named[-1]
                yield _larger(located, (*path, top), (top, sizes[top]), ("gpu_memory_bytes", limit))
    yield from _check_counts(located, models)


def _check_counts(located: Located, models: Mapping[str, Any]) -> Iterator[Problem]:
    """The parameters of a campaign's models, where their dimensions are of a known type."""
    for name, model in models.items():
        if "parameters" not in model:
            continue
        try:  # of what the file leaves out, the positions' number alone has no default
            counted = _counted({"max_position_embeddings": 2048, **model["architecture"]})
        except ValueError as error:
            yield located.problem(("models", name, "architecture"), str(error))
            continue
        if abs(model["parameters"] - counted) > SAME_COUNT * counted:
            yield located.problem(
                ("models", name, "parameters"),
                f"{name}: {model['parameters']:,} parameters are not the {counted:,} that the architecture gives",
                f"{name}: 파라미터 {model['parameters']:,}개는 이 구조에서 나오는 {counted:,}개와 다릅니다",
            )


def _unknown(located: Located, path: Path, name: str, where: str) -> Problem:
    return located.problem(path, f"{name!r} is not in {where}", f"{name!r} 항목이 {where}에 없습니다")


def _larger(located: Located, path: Path, less: tuple[str, int], more: tuple[str, int]) -> Problem:
    return located.problem(
        path,
        f"{less[0]} {less[1]:,} is larger than {more[0]} {more[1]:,}, which includes it",
        f"{less[0]} {less[1]:,} 값이 그것을 포함하는 {more[0]} {more[1]:,} 값보다 큽니다",
    )


def sources_of(files: Iterable[Located], problems: list[Problem]) -> dict[str, Any]:
    """What all files of sources describe; one that two describe is a fault."""
    found: dict[str, tuple[str, Any]] = {}
    for located in files:
        for name, row in located.data["sources"].items():
            if name in found:
                message = f"source {name!r} is described in {found[name][0]} too"
                korean = f"출처 {name!r} 항목이 {found[name][0]} 파일에도 있습니다"
                problems.append(located.problem(("sources", name, KEY), message, korean))
            found[name] = (located.path, row)
    return {name: row for name, (_, row) in found.items()}


def check_sources(rows: list[Located], sources: Mapping[str, Any]) -> Iterator[Problem]:
    """Cited sources that sources.yaml lacks, or that the row's own list of sources leaves out."""
    for located in rows:
        own = located.data.get("sources")
        for path, name in cited(located.data):
            if name not in sources:
                yield located.problem(
                    path,
                    f"source {name!r} is not in sources.yaml or sources/",
                    f"출처 {name!r} 항목이 sources.yaml에도 sources/에도 없습니다",
                )
            elif isinstance(own, list) and name not in own:
                yield located.problem(
                    path,
                    f"source {name!r} is cited and not in the file's own list of sources",
                    f"인용한 출처 {name!r} 항목이 이 파일의 sources 목록에 없습니다",
                )


def cited(data: Any, path: Path = ()) -> list[tuple[Path, str]]:
    """Every source id that a row names, with its place: under ``source``, ``sources`` and ``…_source``."""
    found: list[tuple[Path, str]] = []
    if isinstance(data, dict):
        for key, value in data.items():
            if (key == "source" or key.endswith("_source")) and isinstance(value, str):
                found.append(((*path, key), value))
            elif key == "sources" and isinstance(value, list):
                found += [((*path, key, index), name) for index, name in enumerate(value) if isinstance(name, str)]
            elif key != "keys":  # names that a format itself gives
                found += cited(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            found += cited(value, (*path, index))
    return found


def check_settings(located: Located, facts: Mapping[str, Any]) -> Iterator[Problem]:
    """Values that a file gives to settings, against the range or the closed set that the vocabulary has for each."""
    for path, name, value in _settings(located.data, facts):
        each = value if isinstance(value, list) else [value]
        low, high = facts[name].get("range", (-math.inf, math.inf))
        for number in each:
            if isinstance(number, int | float) and not isinstance(number, bool) and not low <= number <= high:
                yield located.problem(
                    path,
                    f"{name}: {number} is outside of {low} to {high}",
                    f"{name}: {number} 값이 {low}에서 {high}까지의 범위를 벗어납니다",
                )
        known = facts[name].get("values")
        for text in each if isinstance(known, list) else ():
            if isinstance(text, str) and text not in known:
                hint, hint_ko = did_you_mean(text, known)
                yield located.problem(
                    path,
                    f"{name}: {text!r} is not one of its values{hint}",
                    f"{name}: {text!r} 값은 쓸 수 없습니다{hint_ko}",
                )


def _settings(data: Any, facts: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, str, Any]]:
    """Settings of a range or a closed set that a file gives a value: ``name: 1`` or ``name: {value: 1, …}``."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in ("examples", "rename"):
                continue  # an example may show the fault itself; a rename gives a name
            if facts.get(key, {}).keys() & {"range", "values"}:
                inner = isinstance(value, dict)
                yield (*path, key, "value") if inner else (*path, key), key, value.get("value") if inner else value
            yield from _settings(value, facts, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _settings(value, facts, (*path, index))


def check_defaults(located: Located) -> Iterator[Problem]:
    """Defaults of the vocabulary outside of their own range or closed set."""
    for name, fact in located.data["facts"].items():
        values, default = fact.get("values"), fact.get("default")
        if isinstance(values, list) and default is not None and default not in values:
            yield located.problem(
                ("facts", name, KEY),
                f"{name}: the default {default!r} is not among its values",
                f"{name}: 기본값 {default!r} 값이 values에 없습니다",
            )
        if "range" not in fact:
            continue
        low, high = fact["range"]
        if low > high or (isinstance(default, int | float) and not low <= default <= high):
            yield located.problem(
                ("facts", name, KEY),
                f"{name}: the default {default} is outside of {low} to {high}",
                f"{name}: 기본값 {default} 값이 {low}에서 {high}까지의 범위를 벗어납니다",
            )


def gpu_row(located: Located) -> dict[str, Any]:
    """What linting needs of a GPU."""
    data = located.data
    total = data["memory_total"][0]
    seen = [int(each["value"] * BYTES[each["unit"]]) for each in data.get("cuda_memory", [])]
    return {
        "id": data["id"],
        "name": data["name"],
        "aliases": data.get("aliases", []),
        "memory_total": int(total["value"] * BYTES[total["unit"]]),
        "cuda_memory": [min(seen), max(seen)] if seen else None,
        "of_host": data.get("of_host", False),
        "compute_capability": [*capability_of(data)],
        "native_bf16": data["native_bf16"]["value"],
        "tensor_flops": _rate(data, "tensor_flops", 10**12),
        "memory_bandwidth": _rate(data, "memory_bandwidth", 10**9),
    }


def _rate(data: dict[str, Any], name: str, unit: int) -> float | None:
    """A rate in units a second; of a board's variants, the first."""
    found = data.get(name)
    first = found[0] if isinstance(found, list) else found
    return None if first is None else float(first["value"]) * unit
