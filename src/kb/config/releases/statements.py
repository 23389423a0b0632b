"""What the files of a folder say of releases, each read once and within bounds; and how several statements come to one
record: the nearer file wins.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence

from kb.config.files import is_no_file, read_at_most
from kb.core.record import NamedTuple
from kb.core.release import OR, ProjectRelease, Source, agree, parse_version, pinned_version
from kb.core.typed import Any

LIBRARIES = (
    "transformers",
    "torch",
    "peft",
    "accelerate",
    "trl",
    "deepspeed",
    "bitsandbytes",
    "datasets",
    "unsloth",
    "axolotl",
    "llamafactory",
    "vllm",
    "sglang",
    "liger-kernel",
    "flash-attn",
    "torchtune",
    "torchao",
)
"""The libraries whose release a rule, a default or a prediction of kb can depend on."""
LOCK, MAIN, CONSTRAINTS, DECLARED, OPTIONAL, IMAGE, ELSEWHERE = range(7)
"""The order of files in one folder: a lock; requirements.txt; constraints; pyproject.toml and its like; extras, groups
for development and variants (requirements-dev.txt); the steps of a Dockerfile; those of other images and workflows."""
PARTLY = (OPTIONAL, ELSEWHERE)  # a pin in these is that of some runs
MAX_ALTERNATIVES = 12
MAX_BYTES = 1 << 20  # of a file that people write
MAX_LOCK_BYTES = 16 << 20  # of one that a program writes
MAX_FILES = 60  # that the requirement files of one folder may bring in
MAX_STATEMENTS, MAX_PROBLEMS = 2000, 20  # of one folder

Stamp = tuple[str, int, int]  # path, time of the last change in ns, size; -1 where there is none


class Requirement(NamedTuple):
    """``specifier`` is PEP 440's, alternatives parted by `` || ``; empty: any release.

    ``floating``: the newest of something (a branch, a commit, a local folder): what was pinned elsewhere does not hold.
    ``marker``: what stands after ``;``. ``fault``: what stands where a version should, where it is none.
    """

    library: str
    specifier: str = ""
    marker: str = ""
    floating: bool = False
    fault: str = ""


class Statement(NamedTuple):
    """One file's word on one library. ``level``: as above; ``distance``: folders up from the file that is checked."""

    requirement: Requirement
    place: Source
    level: int = MAIN
    distance: int = 0


class Problem(NamedTuple):
    """Something wrong with a file that says releases. ``key`` is one of i18n's under ``releases.``."""

    key: str
    place: Source
    values: tuple[tuple[str, Any], ...] = ()


class Voice(NamedTuple):
    """All that one file says of one library on one level."""

    specifier: str
    floating: bool
    place: Source
    level: int
    distance: int


class Folder:
    """What the files of one folder say. Readers of each format add to it.

    Args:
        path: absolute.
        root: the project's top; nothing outside it is followed.
    """

    def __init__(self, path: str, root: str) -> None:
        self.path, self.root = path, root
        self.statements: list[Statement] = []
        self.problems: list[Problem] = []
        self.files: dict[str, Stamp] = {}

    def report(self, key: str, path: str, line: int | None = None, **values: object) -> None:
        """Note a problem, each once."""
        problem = Problem(key, Source(path, line), tuple(values.items()))
        if len(self.problems) < MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def say(self, requirement: Requirement | None, path: str, line: int | None, level: int = MAIN) -> None:
        """Note a requirement; one whose version is no version is a problem."""
        if requirement is None:
            return
        if requirement.fault:
            self.report("no_version", path, line, library=requirement.library, value=requirement.fault)
            requirement = requirement._replace(fault="")
        if len(self.statements) < MAX_STATEMENTS and applies(requirement.marker):
            self.statements.append(Statement(requirement, Source(path, line), level))

    def text(self, path: str, limit: int = MAX_BYTES) -> str | None:
        """A file's text; None where it cannot be had, which is noted. A byte that is no UTF-8 is noted and replaced."""
        raw = self._raw(path, limit)
        if raw is None:
            return None
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell's `>` writes
            return raw.decode("utf-16", "replace")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.report("not_utf8", path, raw.count(b"\n", 0, error.start) + 1)
            return raw.decode("utf-8-sig", "replace")

    def _raw(self, path: str, limit: int) -> bytes | None:
        try:
            info = os.stat(path)
            self.files[path] = (path, info.st_mtime_ns, info.st_size)
            if stat.S_ISDIR(info.st_mode):
                return None
            if is_no_file(path, info):
                self.report("not_a_file", path)
            elif info.st_size > limit:
                self.report("too_large", path, size=info.st_size, limit=limit)
            else:
                return read_at_most(path, limit)
        except (OSError, ValueError) as error:
            self.files.setdefault(path, (path, -1, -1))
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.report("unreadable", path, reason=reason)
        return None

    def holds(self, path: str) -> bool:
        """Whether a path lies inside the project, links followed."""
        return within(os.path.realpath(path), os.path.realpath(self.root))


def regular_files(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files of a folder with one of these suffixes, at most as many as one folder may bring in."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names[:MAX_FILES]]


def applies(marker: str) -> bool:
    """Whether a requirement with this marker holds on some Python under Linux, where training runs."""
    if not marker:
        return True
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "extra": "",
    }
    try:
        parsed = Marker(marker)
        return any(
            parsed.evaluate({**linux, "python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"})
            for minor in range(7, 15)
        )
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, RecursionError):
        return True


def line_of(text: str, wanted: Iterable[str]) -> int | None:
    """The line of the first of these that the text holds."""
    for each in wanted:
        at = text.find(each)
        if at >= 0:
            return text.count("\n", 0, at) + 1
    return None


def within(path: str, folder: str) -> bool:
    """Whether ``path`` is the folder or lies below it; both absolute."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def voices(statements: Sequence[Statement], report: Callable[[Problem], object]) -> dict[str, list[Voice]]:
    """By library, each file's word, the nearest first; two pins in one file that contradict are reported."""
    groups: dict[tuple[str, int, int, str], list[Statement]] = {}
    for each in statements:
        library = each.requirement.library
        groups.setdefault((library, each.distance, each.level, each.place.path), []).append(each)
    found: dict[str, list[Voice]] = {}
    for (library, distance, level, _), group in groups.items():
        specifier, floating, place = _one_word(group, level, report)
        found.setdefault(library, []).append(Voice(specifier, floating, place, level, distance))
    for each_library in found.values():
        each_library.sort(key=lambda voice: (voice.distance, voice.level))
    return found


def _one_word(group: Sequence[Statement], level: int, report: Callable[[Problem], object]) -> tuple[str, bool, Source]:
    """What the statements of one file come to. A later line counts more than an upgrade to the newest before it."""
    last = max((at for at, each in enumerate(group) if each.requirement.floating), default=-1)
    said = [each for at, each in enumerate(group) if each.requirement.specifier and at > last]
    if not said:
        return "", last >= 0, group[max(last, 0)].place
    certain = [each for each in said if not each.requirement.marker]
    if not certain or level in (LOCK, OPTIONAL, IMAGE, ELSEWHERE):
        return either(each.requirement.specifier for each in said), False, said[0].place
    together, contradicting = both(each.requirement.specifier for each in certain)
    if contradicting:
        values = (("library", certain[0].requirement.library), ("values", tuple(together.split(OR))))
        report(Problem("contradiction", certain[-1].place, values))
    narrow = next((each for each in certain if each.requirement.specifier == together), certain[-1])
    return together, False, narrow.place


def either(specifiers: Iterable[str]) -> str:
    """The alternatives, each release once."""
    kept: list[str] = []
    for part in (part for each in dict.fromkeys(specifiers) for part in each.split(OR)):
        pin = pinned_version(part)
        if part not in kept and not any(pin and pinned_version(each) and agree(each, part) for each in kept):
            kept.append(part)
        if len(kept) == MAX_ALTERNATIVES:
            break
    return OR.join(kept)


def both(specifiers: Iterable[str]) -> tuple[str, bool]:
    """What all of them allow, and False; where nothing is, the alternatives, and True."""
    unique = list(dict.fromkeys(specifiers))[:MAX_ALTERNATIVES]  # each is compared with each
    if len(unique) == 1:
        return unique[0], False
    pins = [each for each in unique if pinned_version(each)]
    if any(not agree(one, other) for at, one in enumerate(unique) for other in unique[at + 1 :]):
        return either(unique), True
    if pins:
        return pins[0], False
    narrowed = next((each for each in unique if OR in each), None)
    return narrowed if narrowed is not None else ",".join(unique), False


def settle(library: str, heard: Sequence[Voice], *, own: bool = False) -> ProjectRelease:
    """One library's record from each file's word, the nearest first.

    Args:
        own: what lies nearest is what the file itself installs. Without a release that is the newest where the library
            is not there yet: what a file around it pins may be it, or an older one.
    """
    first = next((voice for voice in heard if _counts(voice, heard)), None)
    if first is None:
        return ProjectRelease(library, "", None, "assumed", heard[0].place)
    chosen, place = first.specifier, first.place
    peers = [voice for voice in heard if (voice.distance, voice.level) == (first.distance, first.level)]
    if first.level >= OPTIONAL and not first.floating:
        chosen = either(voice.specifier for voice in peers if voice.specifier)
    elif chosen and pinned_version(chosen) is None:
        chosen, place = _narrowed(first, heard)
    elif len(said_twice := _pins_beside(first, heard)) > 1:
        chosen = either(said_twice)
    if own and heard[0].distance == 0 and not (heard[0].specifier or heard[0].floating):
        pin = pinned_version(chosen)
        chosen = f">={pin}" if pin is not None else chosen
    others = tuple(
        (voice.place, voice.specifier)
        for voice in heard
        if voice.place != place and voice.specifier and voice.level <= max(first.level, IMAGE)
        if _disagrees(voice, chosen, first, peers)
    )
    record = _record(library, chosen, place, others, partly=first.level in PARTLY)
    return record._replace(floating=first.floating and not chosen)


def _counts(voice: Voice, heard: Sequence[Voice]) -> bool:
    """Whether a file's word on the release is one to go by. An extra's or a workflow's is not where the project itself
    asks for any release; of installations of which one takes the newest, none is."""
    if not voice.specifier and not voice.floating:
        return False
    peers = [each for each in heard if (each.distance, each.level) == (voice.distance, voice.level)]
    if voice.level in PARTLY and any(each.floating for each in peers):
        return False
    return voice.level not in PARTLY or all(each.level > DECLARED for each in heard)


def _narrowed(first: Voice, heard: Sequence[Voice]) -> tuple[str, Source]:
    """A range with what narrows it: constraints and files of its own kind beside it (a requirements file brings in
    others), and the lock of the workspace that a declared project belongs to."""
    chosen, place = first.specifier, first.place
    for voice in heard:
        beside = voice.distance == first.distance and voice.level in (CONSTRAINTS, first.level)
        resolved = voice.level == LOCK and first.level == DECLARED and pinned_version(voice.specifier) is not None
        if voice.specifier and (beside or resolved) and agree(chosen, voice.specifier):
            together = both((chosen, voice.specifier))[0]
            if together != chosen and pinned_version(together):
                place = voice.place
            chosen = together
    return chosen, place


def _pins_beside(first: Voice, heard: Sequence[Voice]) -> tuple[str, ...]:
    """The pins of the two files of one folder that say what the project needs (a list for pip, one for conda) where
    they differ: nobody knows which of the two environments runs."""
    if first.level not in (MAIN, DECLARED):
        return ()
    beside = [each for each in heard if each.distance == first.distance and each.level in (MAIN, DECLARED)]
    pins = [each.specifier for each in beside if pinned_version(each.specifier) is not None]
    return tuple(dict.fromkeys(pins)) if any(not agree(each, first.specifier) for each in pins) else ()


def _disagrees(voice: Voice, chosen: str, first: Voice, peers: Sequence[Voice]) -> bool:
    if voice in peers and first.level >= OPTIONAL:
        return len(peers) > 1 and not all(agree(voice.specifier, each.specifier) for each in peers)
    return not agree(voice.specifier, chosen)


def _record(
    library: str, specifier: str, place: Source, others: tuple[tuple[Source, str], ...], *, partly: bool
) -> ProjectRelease:
    pin = pinned_version(specifier) if not partly else None
    if pin is not None:
        return ProjectRelease(library, specifier, parse_version(pin), "pinned", place, others)
    return ProjectRelease(library, specifier, None, "ranged" if specifier else "assumed", place, others, partly)
