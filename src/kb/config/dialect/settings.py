"""The entries of one part of a config → settings by canonical name, with the events their text gives rise to."""

from collections.abc import Collection, Iterator, Mapping

from kb.config.dialect.dialects import LAST, OF_METHOD, CompiledDialect, Entries, Entry, Target, is_so
from kb.config.dialect.values import (
    AS_WRITTEN,
    SAYS_NOTHING,
    event_of,
    filled_in_value,
    has_item,
    interpret,
    is_filled_in,
    translated,
)
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.source import Source
from kb.core.document import KIND_OPEN, Event, Setting
from kb.core.expression import Unknown
from kb.core.finding import Edit, Span
from kb.core.typed import Any

EACH = ".each."
"""Stands between a list and a key of the mappings in it: ``datasets.each.type``."""


class WrittenKeys(Mapping[str, Setting]):
    """The keys of one document by dotted path, each made a setting when it is asked for: most never are."""

    __slots__ = ("_entries", "_source")

    def __init__(self, entries: Entries, source: Source) -> None:
        self._entries, self._source = entries, source

    def __getitem__(self, path: str) -> Setting:
        if EACH in path:
            path, _, inner = path.partition(EACH)
            entry = self._entries[path]
            values = _inner_values(entry[2], inner)
            if values is None:
                raise KeyError(path)
            return placed(values, entry, self._source, borrowed=True)
        entry = self._entries[path]
        return placed(_plain(entry[2]), entry, self._source, borrowed=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def without(self, names: Collection[str]) -> "WrittenKeys":
        """The same less some keys of the top."""
        kept = {path: entry for path, entry in self._entries.items() if path.partition(".")[0] not in names}
        return WrittenKeys(kept, self._source)


def placed(value: Any, entry: Entry, source: Source, *, borrowed: bool) -> Setting:
    """``borrowed``: the value is not what stands there but follows from it, so that no fix may write over it."""
    path, key, node = entry
    span = source.span(node)
    comment = source.comment_after(span.end) if node.flow else ""
    key_span = source.between(key.start, key.end or key.start)
    return Setting(value, span, key_span, path, comment, alias=node.alias or borrowed)


def _plain(node: Node) -> Any:
    """A scalar as YAML reads it, a list as a tuple; of a mapping only that it is one."""
    if node.kind == SCALAR:
        return node.scalar()
    return tuple(node.plain()) if node.kind == SEQUENCE else {}


def _inner_values(node: Node, key: str) -> tuple[Any, ...] | None:
    """What ``key`` is in each mapping of a list that has it; None where none does."""
    if node.kind != SEQUENCE:
        return None
    entries = (item.entries().get(key) for item in node.value if item.kind == MAPPING)
    values = tuple(_plain(entry[1]) for entry in entries if entry is not None)
    return values or None


CONVERTED = ("number-as-text", "quoted-number", "quoted-boolean")  # traps that a parser which converts does not have
# What decides a run's memory and has one meaning wherever its name stands in the config of a program of one's own.
ANYWHERE = {
    name.rpartition(".")[2]: name
    for name in (
        "training.gradient_checkpointing",
        "training.gradient_accumulation_steps",
        "training.per_device_train_batch_size",
        "training.per_device_eval_batch_size",
        "training.bf16",
        "training.fp16",
        "training.optim",
        "quantization.load_in_4bit",
        "quantization.load_in_8bit",
    )
}
# Groups of a config of one's own that hold adapters, and the names in them that say of which kind the adapters are.
ADAPTERS = ("lora", "qlora", "peft")
DESCRIBED = ("lora.enabled", "lora.r", "lora.target_modules")
OF_KIND = ("type", "method", "peft_type", "peft_method", "adapter_type", "lora_type", "variant")
PLAIN = ("lora", "qlora", "pefttype.lora")  # kinds whose memory is that of LoRA, over weights of some width
SWITCHES = ("enable", "use", "active")
_ENABLED = ".enabled"  # what may switch a group off as a whole
INNER = ("config", "params", "kwargs", "args", "lora", "qlora", "dora", "lora_config", "peft_config", "lora_params")
OF_WIDTH = ("quantization", "quantize", "quantized", "quant", "quantization_config", "bnb", "bnb_config")
WIDTHS = ("quantization.load_in_4bit", "quantization.load_in_8bit")
WRONG_TYPE = "wrong-type"
PLACEHOLDERS = 3  # keys of one word that has no meaning of its own: ``beta: dummy``, ``output_dir: dummy``
MEANT_WORDS = frozenset(("none", "null", "true", "false", "yes", "no", "on", "off", "auto", "nan", "inf"))
MAX_UNKNOWN = 200  # unknown keys of a document that are compared with the known ones; real configs have some 30


class Part:
    """What a section, or the top of a document, says itself.

    ``silenced`` are the settings that it gives as null, with their places: the library's default holds, whatever
    another part says.
    """

    __slots__ = ("events", "keys", "left_open", "settings", "silenced", "unknown_keys")

    def __init__(self, keys: WrittenKeys) -> None:
        self.keys = keys
        self.settings: dict[str, Setting] = {}
        self.silenced: dict[str, Span] = {}
        self.events: list[Event] = []
        self.left_open: list[str] = []
        self.unknown_keys: list[str] = []


class Extractor:
    """Takes settings out of the entries of one document by one dialect.

    ``parsed``: the format's own parser reads the text, as it does of a file and not of Python.
    """

    def __init__(self, dialect: CompiledDialect, *, parsed: bool = True) -> None:
        self._dialect = dialect
        self._parsed = parsed
        self._converts = parsed and dialect.converts
        self._unknown_left = MAX_UNKNOWN
        self._entries: Entries = {}

    def extract(self, entries: Entries, source: Source) -> Part:
        part = Part(WrittenKeys(entries, source))
        targets = self._dialect.targets
        meant: dict[str, list[tuple[Target, Entry]]] = {}
        beside: list[tuple[str, Entry]] = []
        adapters: list[tuple[str, Entry]] = []
        off = _switched_off(entries) if self._dialect.of_scripts else ()
        for path, entry in entries.items():
            if off and path.startswith(off) and not path.endswith(_ENABLED):
                continue
            known = targets.get(path)
            if known is not None:
                for target in known:
                    meant.setdefault(target.fact.name, []).append((target, entry))
            elif not targets.names_in(path):
                beside.append((path, entry))
                self._look_beside(path, entry, entries, part, source)
            elif path.casefold() in ADAPTERS and self._dialect.of_scripts:
                adapters.append((path, entry))
        self._entries = entries
        for name, candidates in meant.items():
            if len(candidates) > 1:
                candidates.sort(key=lambda candidate: candidate[0].rank)
            if candidates[0][0].adds:
                _add_up(name, candidates, part, source)
            else:
                self._take(name, candidates, part, source)
        self._follow_renames(part)
        self._follow_fallbacks(part)
        told = any(name in part.settings for name in DESCRIBED)
        self._take_unmodelled(beside + ([] if told else adapters), part, source)
        if self._dialect.of_programs:
            self._take_anywhere(beside, part, source)
        for _, entry in adapters if told else ():
            self._leave_open(entry, part, source)
        return part

    def _leave_open(self, group: Entry, part: Part, source: Source) -> None:
        """Of adapters that are described: what else their group says of their kind, or of the weights below them, and
        what is not understood of it, so that neither is taken for LoRA over whole weights."""
        if group[2].kind != MAPPING:
            return
        for key, node in group[2].value:
            name, said = str(key.value).casefold(), is_so(_value(node), {})
            text = str(node.value).strip().casefold() if node.kind == SCALAR else ""
            entry = ((*group[0], str(key.value)), key, node)
            path = ".".join(entry[0])
            if self._dialect.targets.get(path) is not None:
                continue
            if said and (name in OF_WIDTH or (name in OF_KIND and text == "qlora")):
                if not any(width in part.settings for width in WIDTHS):
                    part.settings.setdefault("run.quantized", placed(path, entry, source, borrowed=True))
                continue
            switched_off = name in SWITCHES and not said and "lora.enabled" not in part.settings
            other = name in OF_KIND and said and text not in PLAIN
            if switched_off or other or (name in INNER and said):
                value = Unknown(frozenset(("lora.enabled",)), KIND_OPEN)
                part.settings["lora.enabled"] = placed(value, entry, source, borrowed=True)
                part.settings[OF_METHOD[0]] = placed(path, entry, source, borrowed=True)

    def _take_anywhere(self, beside: list[tuple[str, Entry]], part: Part, source: Source) -> None:
        """What stands in a group that the format does not know: read where it stands once, open where it differs."""
        found: dict[str, list[Entry]] = {}
        for path, entry in beside:
            name = ANYWHERE.get(entry[1].value) if entry[2].kind == SCALAR and "." in path else None
            if name is not None and name not in part.settings and not self._dialect.ignores(path):
                found.setdefault(name, []).append(entry)
        for name, entries in found.items():
            value, _ = interpret(entries[0][2], self._dialect.fact(name).type, name)
            if value is None or len({entry[2].value for entry in entries}) > 1:
                part.left_open.append(name)
            else:
                part.settings[name] = placed(value, entries[0], source, borrowed=True)._replace(own_name=True)

    def _take_unmodelled(self, beside: list[tuple[str, Entry]], part: Part, source: Source) -> None:
        """What the keys that mean no setting say of things that kb has no memory model of."""
        dialect = self._dialect
        keys = [(entry[1].value, _value(entry[2]), dialect.ignores(path)) for path, entry in beside]
        for found in dialect.unmodelled.among(keys, lambda switch: self._is_off(switch, part)):
            if found.to not in part.settings:
                part.settings[found.to] = placed(found.text, beside[found.at][1], source, borrowed=True)

    def _is_off(self, switch: str, part: Part) -> bool | None:
        """Whether nothing here turns a setting on, or may; None where the format does not have it."""
        if not any(target.fact.name == switch for _, listed in self._dialect.targets.items() for target in listed):
            return None
        said = part.settings.get(switch)
        return switch not in part.left_open and (said is None or said.value is False)

    def _take(self, name: str, candidates: list[tuple[Target, Entry]], part: Part, source: Source) -> None:
        """The first candidate that gives a value; an unknown one (``auto``) ends the search too.

        Where none gives one, the setting is as open as a word of which some values speak of it, others not
        (``use_flash_attention_2: ${FLASH}``).
        """
        silent, filled_in = True, None
        for target, entry in candidates:
            node = entry[2]
            read = translated(target, node)
            alone = target.beside and not self._has_beside(target.beside)
            if read is SAYS_NOTHING or alone or (target.same and self._is_that_of(target.same, node)):
                if self._parsed and target.values and target.skip is None and is_filled_in(node):
                    filled_in = filled_in or entry
                continue
            silent = False
            if read is None:
                part.left_open.append(name)
                return
            if read is not AS_WRITTEN:
                part.settings[name] = placed(read, entry, source, borrowed=True)
                return
            value, trap = interpret(node, target.fact.type, name)
            if value is None:
                continue
            if not self._parsed and target.fact.type == "bool" and value.__class__ in (int, float):
                value, trap = bool(value), None  # to Python any number but 0 is true
            if trap is not None and trap.kind == WRONG_TYPE and self._stands_for_several(node):
                part.left_open.append(name)
                return
            if trap is not None and not (self._converts and len(entry[0]) == 1 and trap.kind in CONVERTED):
                part.events.append(event_of(trap, entry[1], entry[2], name, source))
            setting = placed(value, entry, source, borrowed=node is not entry[2])
            part.settings[name] = setting._replace(own_name=target.rank >= LAST)
            return
        if filled_in is not None:
            part.settings[name] = placed(filled_in_value(name), filled_in, source, borrowed=True)
        elif not silent:
            part.silenced[name] = source.span(candidates[0][1][2])

    def _stands_for_several(self, node: Node) -> bool:
        """Whether a word is the value of several keys, of numbers and names: what starts the run puts others there."""
        if node.kind != SCALAR or not str(node.value).isalpha() or str(node.value).casefold() in MEANT_WORDS:
            return False
        alike = (each for _, _, each in self._entries.values() if each.kind == SCALAR and each.value == node.value)
        return sum(1 for _ in alike) >= PLACEHOLDERS

    def _has_beside(self, wanted: Mapping[str, str]) -> bool:
        """Whether each of these keys is here with an item that its pattern matches."""
        return all(path in self._entries and has_item(self._entries[path][2], each) for path, each in wanted.items())

    def _is_that_of(self, path: str, node: Node) -> bool:
        """Whether a key has this value too."""
        other = self._entries.get(path)
        return other is not None and SCALAR == other[2].kind == node.kind and other[2].value == node.value

    def _follow_fallbacks(self, part: Part) -> None:
        """A setting that the format takes from another one where the config does not give it: it stands where that one
        does, and has the key that would say it, for a fix adds that key and leaves the other as it is."""
        for name, other in self._dialect.fallbacks.items():
            if other in part.settings and name not in part.settings and name not in part.left_open:
                found = part.settings[other]
                own = [path for path, all_ in self._dialect.targets.items() if any(t.fact.name == name for t in all_)]
                path = (*found.path[:-1], own[0].rpartition(".")[2]) if own and found.path else found.path
                part.settings[name] = found._replace(alias=True, inherited=True, comment="", path=path)

    def _follow_renames(self, part: Part) -> None:
        """A value under an old name counts under the new one too, unless that is written itself."""
        for old in tuple(part.settings):
            new = self._dialect.fact(old).renamed
            if new is not None and new not in part.settings:
                part.settings[new] = part.settings[old]
                part.silenced.pop(new, None)

    def _look_beside(self, path: str, entry: Entry, entries: Entries, part: Part, source: Source) -> None:
        """An event where an unknown key lies beside a known one that it may have been meant as, or none may lie."""
        parent, _, _ = path.rpartition(".")
        last = self._dialect.last_release(path)
        if last and not _says_nothing(entry):
            values = {"key": entry[1].value, "format": self._dialect.id, "last": last}
            part.events.append(
                Event("dated-argument", source.between(entry[1].start, entry[1].end or entry[1].start), values)
            )
        own = self._dialect.own_names_at_top and not parent
        if own or self._unknown_left <= 0 or self._dialect.ignores(path) or not self._dialect.targets.names_in(parent):
            return
        self._unknown_left -= 1
        key = entry[1]
        group = self._dialect.group_of(parent)
        if group:
            part.unknown_keys.append(f"{group}.{key.value}")
        span = source.between(key.start, key.end or key.start)
        meant = self._dialect.neighbours(parent).meant_by(key.value)
        if meant is None:
            if self._dialect.is_closed(parent, entries) and not _says_nothing(entry):
                part.events.append(Event("unknown-argument", span, {"key": key.value, "format": self._dialect.id}))
            return
        meant_path = f"{parent}.{meant}" if parent else meant
        known = self._dialect.targets.get(meant_path)
        if known is None and entry[2].kind == SCALAR and not self._dialect.lists(meant_path):
            return  # a group's name, but this is no group
        if entry[2].kind == MAPPING and not self._holds_its_keys(entry[2], meant_path):
            return
        name = known[0].fact.name if known else ""
        # Beside the right key the wrong one cannot take its name: that would write it twice.
        edits = () if meant_path in entries else (Edit("replace", name, key.style[:1] + meant + key.style[:1], span),)
        part.events.append(Event(kind="unknown-key", span=span, values={"key": key.value, "meant": meant}, edits=edits))

    def _holds_its_keys(self, node: Node, path: str) -> bool:
        """Whether most keys of a group are keys of the known one, where those are known."""
        known, own = self._dialect.targets.names_in(path), node.entries()
        return not known or 2 * sum(key in known for key in own) > len(own)


def _switched_off(entries: Entries) -> tuple[str, ...]:
    """How the paths of groups begin that say themselves that they are off: ``megatron_cfg: {enabled: false, …}``."""
    return tuple(
        path.removesuffix(_ENABLED) + "."
        for path, (_, _, value) in entries.items()
        if path.endswith(_ENABLED) and value.kind == SCALAR and str(value.value).casefold() == "false"
    )


def _value(node: Node) -> Any:
    """A scalar's value; of a mapping its scalars, of a list whether it holds anything."""
    if node.kind == MAPPING:
        return {key.value: value.value for key, value in node.value if value.kind == SCALAR} or bool(node.value)
    return node.value if node.kind == SCALAR else bool(node.value)


def _says_nothing(entry: Entry) -> bool:
    """Whether a key is there without a value."""
    return entry[2].kind == SCALAR and entry[2].scalar() is None


def _add_up(name: str, candidates: list[tuple[Target, Entry]], part: Part, source: Source) -> None:
    """What several keys each give a part of: the modules of one list."""
    whole: dict[str, None] = {}
    first = None
    for target, entry in candidates:
        read = translated(target, entry[2])
        if read is AS_WRITTEN:
            read, _ = interpret(entry[2], target.fact.type, name)
        if isinstance(read, tuple):
            whole |= dict.fromkeys(read)
            first = first or entry
    if first is not None:
        part.settings[name] = placed(tuple(whole), first, source, borrowed=True)


def inherit(own: Part, base: Part) -> Part:
    """A section with what the top says that it neither gives nor silences, left to the program included."""
    merged = Part(own.keys)
    merged.unknown_keys = own.unknown_keys
    merged.silenced = {name: span for name, span in base.silenced.items() if name not in own.settings} | own.silenced
    given = own.settings.keys() | own.silenced.keys()
    merged.left_open = [*own.left_open, *(name for name in base.left_open if name not in given)]
    above = {name: each._replace(inherited=True) for name, each in base.settings.items() if name not in own.silenced}
    merged.settings = above | own.settings
    return merged
