"""Values as a reader sees them: sizes, numbers, names of GPUs, text without hidden characters."""

import re
from collections.abc import Mapping

from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.typed import Any
from kb.core.units import BYTES_PER_UNIT, GIB, GPU_UNIT, HOST_UNIT, MIB, format_bytes

UNKNOWN = "?"
MAX_SHOWN = 200  # characters of one value; a config may hold anything

# Unicode calls these printable, and they show nothing: fillers and variation selectors.
_SHAPELESS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0").union(
    map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
_SPACES = frozenset("\xa0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def is_hidden(character: str) -> bool:
    """Whether a screen obeys, reorders by or does not show it: what Unicode calls control, format, private or not
    assigned, halves of characters, line separators, and what has no shape of its own. A space is none of these.
    """
    if character.isprintable():
        return character in _SHAPELESS
    return character not in _SPACES


def printable(text: str) -> str:
    """``text`` on one line, with what a screen would obey or hide written out: ``\\u202e`` for a change of direction.

    Every output of kb shows what comes from a config, a path or a program by this; JSON has escapes of its own.
    """
    if text.isprintable() and (text.isascii() or _SHAPELESS.isdisjoint(text)):
        return text
    return "".join(
        _written_out(character) if is_hidden(character) and not _of_a_picture(text, number) else character
        for number, character in enumerate(text)
    )


def visible(text: str) -> str:
    """Lines of text as a screen may have them: colours apart, nothing in them is obeyed or hidden."""

    def line(one: str) -> str:
        if "\x1b" not in one:
            return printable(one)
        parts = re.split("(\x1b\\[[0-9;]*m)", one)
        return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))

    return "\n".join(one if one.isascii() and one.isprintable() else line(one) for one in text.split("\n"))


def _written_out(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _of_a_picture(text: str, number: int) -> bool:
    """A joiner between two emoji and the mark behind one (U+FE0F) belong to what is seen."""
    before, after = text[number - 1 : number], text[number + 1 : number + 2]
    if text[number] == "\ufe0f":
        return _is_picture(before)
    return text[number] == "\u200d" and (_is_picture(before) or before == "\ufe0f") and _is_picture(after)


def _is_picture(character: str) -> bool:
    return "\U0001f000" <= character <= "\U0001faff" or "\u2190" <= character <= "\u2bff"


def format_value(value: Any, form: str = "", kind: str | None = None, words: Mapping[str, str] | None = None) -> str:
    """One value in a placeholder's format.

    Args:
        value: a fact's value; None and :class:`~kb.core.expression.Unknown` are shown as ``?``.
        form: ``GiB``, ``GB``, ``MiB`` … (of bytes), ``%`` (of a ratio), ``.1f``, ``.1%``, ``,``, or empty.
        kind: the fact's type in vocabulary.yaml, which decides what an empty format means.
        words: texts by key, for ``value.true``, ``value.false`` and ``value.none`` (of an empty list).
    """
    if value is None or is_unknown(value):
        return UNKNOWN
    if isinstance(value, bool):
        default = "true" if value else "false"
        return words.get(f"value.{default}", default) if words else default
    if isinstance(value, int | float):
        return _number(value, form, kind)
    if isinstance(value, list | tuple):
        if kind == "version" or (kind is None and isinstance(value, tuple) and _all_whole(value)):
            return ".".join(str(part) for part in value)
        if not value:
            return words.get("value.none", "") if words else ""
        return _shorten(", ".join(format_value(item) for item in value))
    return _shorten(printable(str(value)))


def size(count: int) -> str:
    """A byte count in the unit that suits it: ``21.3 GiB``, ``512 MiB``; MiB under one GiB."""
    if abs(count) >= GIB:
        return format_bytes(count, "GiB")
    return format_bytes(count, "MiB") if abs(count) >= MIB or count == 0 else f"{count:,} B"


def host_size(count: int) -> str:
    """A size of the host's memory: ``1.8 GB``, ``512 MB``; in powers of ten, as the limits of containers are named."""
    unit = HOST_UNIT if abs(count) >= 10**9 else "MB" if abs(count) >= 10**6 or count == 0 else "B"
    return format_bytes(count, unit)


def host_limit(count: int) -> str:
    """A limit of the host's memory, in GiB too: ``60.0 GB (55.9 GiB)``. Limits are named in either."""
    return f"{host_size(count)} ({format_bytes(count, GPU_UNIT)})"


def is_of_host(name: str) -> bool:
    """Whether a fact of this name is a size of the host's memory."""
    return name.startswith(("host.", "memory.host."))


def _number(value: float, form: str, kind: str | None) -> str:
    if form.upper() in BYTES_PER_UNIT:
        return format_bytes(value, form)
    if form == "%":
        return f"{value * 100:.0f}%"
    if len(form) == 3 and form[0] == "." and form[1].isdecimal() and form[2] in "f%":
        scaled = value * 100 if form[2] == "%" else value
        return f"{scaled:,.{form[1]}f}{form[2] if form[2] == '%' else ''}"
    if kind == "bytes":
        return size(round(value))
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.6g}"
    whole = int(value)
    return f"{whole:,}" if form == "," or abs(whole) >= 10_000 else str(whole)


def _all_whole(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


_DROPPED_WORDS = ("NVIDIA", "GeForce", "Tesla", "Quadro", "Generation", "HBM2", "HBM2e", "HBM3", "HBM3e")


def _quoted(text: str) -> str:
    """As a shell reads it back. Most names need no quotes, nor the start of a check the module that makes them."""
    if text.isascii() and text.translate(_PLAIN_SIGNS).isalnum():
        return text
    import shlex

    return shlex.quote(text)


_PLAIN_SIGNS = dict.fromkeys(map(ord, "/._-"))


def plan_command(unit: Unit, machine: Machine) -> str:
    """``kb plan`` for a unit of a file, on the GPU that was asked about."""
    parts = ["kb plan", _quoted(unit.path)]
    if unit.section:
        parts += ["--section", _quoted(unit.section)]
    gpu = machine.smallest_gpu
    if gpu is not None and gpu.gpu is not None:
        parts += ["--gpu", gpu.gpu.id]
    if len(machine.gpus) > 1:
        parts += ["--gpus", str(len(machine.gpus))]
    return printable(" ".join(parts))


def unit_name(unit: Unit) -> str:
    """``config.yaml [t5]``: the file of a run, and its section where it has one."""
    return printable(unit.path) + (f" [{printable(unit.section)}]" if unit.section else "")


def gpu_name(gpu: DetectedGpu) -> str:
    """The name people say, where kb knows the GPU; else the driver's own."""
    return short_name(gpu.gpu) if gpu.gpu else gpu.name


def short_name(gpu: Gpu) -> str:
    """The name people say: ``RTX 4090``, ``V100 16GB``; the vendor's words and the kind of memory are left out.

    Where the id names a size, so does the name: the same GPU exists with another.
    """
    name = " ".join(word for word in gpu.name.split() if word not in _DROPPED_WORDS)
    last = gpu.id.rpartition("-")[2].upper()
    return f"{name} {last}" if last.endswith("GB") and last not in name else name


_NAMES_ANOTHER = ("no_driver", "no_driver_in_container", "memory_not_reported", "gpus_hidden")


def here(note: str) -> str:
    """The key under ``machine.`` that does not advise ``--gpu``."""
    return f"{note}_here" if note in _NAMES_ANOTHER else note
