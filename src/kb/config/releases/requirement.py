"""Requirements as pip, Poetry or conda write them → library and PEP 440 specifier; and the files that list them:
requirements and constraints with what they bring in, environment.yml, and lock files.

``packaging`` is asked only about what is not plain: importing it takes longer than reading most projects.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import islice

from kb.config.releases.statements import (
    CONSTRAINTS,
    DECLARED,
    LIBRARIES,
    LOCK,
    MAX_FILES,
    MAX_LOCK_BYTES,
    OPTIONAL,
    Folder,
    Requirement,
    line_of,
)

MAX_LENGTH = 2000  # of one requirement: nothing longer says a release

_NAMES = {**{name: name for name in LIBRARIES}, "llama-factory": "llamafactory"}
_HEAD = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,80})[ \t]*(?:\[[^\]]{0,400}\])?[ \t]*")
_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)[ \t]*([^\s,;|()]{1,80})")
_PLAIN = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}(?:\+[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)?")
_WILD = r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}\.\*"
_GIT_NAME = r"/([A-Za-z0-9_.-]+?)(?:\.git)?(?:@([^#]*))?(?:#(.*))?$"
_EGG = r"(?:^|&)egg=([A-Za-z0-9_.-]+)"
_TAG = r"v?([0-9]{1,6}(?:\.[0-9]{1,6}){1,4}(?:\.post[0-9]{1,4})?)"


def library_of(name: str) -> str | None:
    """The library that kb cares about, by a name as anyone writes it; None of any other."""
    return _NAMES.get(re.sub(r"[-_.]+", "-", name).lower())


def read_requirement(text: str) -> Requirement | None:
    """What a line in pip's format asks for; None where it is of no library that kb cares about, or no requirement."""
    text = text.strip()
    if not text or len(text) > MAX_LENGTH or text[0] in "#-":
        return None
    if "://" in text.split(" ", 1)[0]:
        return _of_address(text.split(" ", 1)[0], None, "")
    head = _HEAD.match(text)
    library = library_of(head[1]) if head else None
    if head is None or library is None:
        return None
    rest = re.split(r"\s#|\s--?[a-z]", text[head.end() :], maxsplit=1)[0]
    if rest.startswith("@"):
        address, _, marker = rest[1:].strip().partition(" ;")
        return _of_address(address.strip(), library, marker.strip())
    written, _, marker = rest.partition(";")
    return specified(library, written.strip(" \t()"), marker.strip())


def specified(library: str, written: str, marker: str = "") -> Requirement | None:
    """The requirement of a specifier in PEP 440's form; None where the text goes on with something else."""
    clauses, at = [], 0
    for found in _CLAUSE.finditer(written):
        if written[at : found.start()].strip(" \t,"):
            break
        clauses.append((found[1], found[2]))
        at = found.end()
    rest = written[at:].strip(" \t,")
    if rest:
        return Requirement(library, marker=marker, fault=rest[:40]) if rest[0] in "<>=~!" or clauses else None
    for operator, version in clauses:
        if not _is_version(operator, version):
            return Requirement(library, marker=marker, fault=version[:40])
    return Requirement(library, ",".join(_joined(*clause) for clause in clauses), marker)


def _joined(operator: str, version: str) -> str:
    return ("==" if operator == "===" else operator) + version


def _is_version(operator: str, version: str) -> bool:
    if not version.isascii():  # ``===`` takes any text, and digits of other scripts are no version
        return False
    if _PLAIN.fullmatch(version) and ("." in version or operator != "~="):
        return "+" not in version or operator in ("==", "===", "!=")
    if operator in ("==", "!=") and re.fullmatch(_WILD, version):
        return True
    if not version[:1].isdigit() or re.match(r"[0-9]{7}", version):  # of such a number kb's own tuples are not made
        return False
    from packaging.specifiers import InvalidSpecifier, Specifier

    try:
        Specifier(_joined(operator, version))
    except InvalidSpecifier:
        return False
    return True


def _of_address(address: str, library: str | None, marker: str) -> Requirement | None:
    """A wheel says its release, a repository's tag may; a branch or a commit says that it is none of the released."""
    if not address.startswith("git+"):
        name, version = _of_file(address)
        library = library or library_of(name)
        if library is not None and _is_version("==", version):
            return Requirement(library, f"=={version}", marker)
        return Requirement(library, marker=marker, floating=True) if library else None
    found = re.search(_GIT_NAME, address)
    egg = re.search(_EGG, found[3] or "") if found else None
    library = library or library_of(egg[1] if egg else found[1] if found else "")
    if library is None:
        return None
    return tagged(library, found[2] or "" if found else "", marker)


def _of_file(address: str) -> tuple[str, str]:
    """Name and version of a wheel or an archive of sources, as its file name has them; empty where it has none."""
    file = re.split(r"[#?]", address, maxsplit=1)[0].rpartition("/")[2].replace("%2B", "+").replace("%2b", "+")
    if file.endswith(".whl"):
        name, _, rest = file.partition("-")
        return name, rest.partition("-")[0]
    name, _, version = file.removesuffix(".zip").removesuffix(".tar.gz").rpartition("-")
    return name, version


def tagged(library: str, tag: str, marker: str = "") -> Requirement:
    """What is installed from a repository at a tag, a branch or a commit: a release only where the tag is one."""
    release = re.fullmatch(_TAG, tag)
    return Requirement(library, f"=={release[1]}" if release else "", marker, floating=release is None)


def poetry_requirement(library: str, written: str) -> Requirement:
    """Poetry's form: ``^4.40``, ``~4.40``, ``4.40.0`` (that one), ``4.*``, ``>=4 <5``, alternatives by ``||``."""
    alternatives = []
    for part in re.split(r"\|\|?", written[:MAX_LENGTH]):
        clauses = [_from_poetry(clause) for clause in re.findall(r"[~^<>=!]*\s*[^\s,]+", part)]
        requirement = specified(library, ",".join(filter(None, clauses)))
        if requirement is None or requirement.fault:
            return Requirement(library, fault=written.strip()[:40])
        alternatives.append(requirement.specifier)
    return Requirement(library, "" if "" in alternatives else " || ".join(alternatives))


def _from_poetry(clause: str) -> str:
    clause = clause.replace(" ", "")
    if clause == "*":
        return ""
    if clause[0] in "^~" and not clause.startswith("~="):
        numbers = re.match(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}", clause[1:])
        if numbers is None:
            return clause
        version = [int(part) for part in numbers[0].split(".")]
        return f">={clause[1:]},<{'.'.join(map(str, _next(version, clause[0])))}"
    if clause[0].isdigit():
        return f"=={clause}"
    return f"={clause}" if re.match(r"=[0-9]", clause) else clause


def _next(version: list[int], sign: str) -> list[int]:
    """The first release that is too new: for ``^`` after the first number that is not 0, for ``~`` after the second."""
    if sign == "~":
        at = min(1, len(version) - 1)
    else:
        at = next((at for at, number in enumerate(version) if number), len(version) - 1)
    return [*version[:at], version[at] + 1]


def conda_requirement(text: str) -> Requirement | None:
    """conda's form: ``pytorch=2.1.0=py3.10_cuda12``, ``conda-forge::transformers>=4.40``; ``=2.1`` means ``2.1.*``."""
    text = text.strip().rpartition("::")[2][:MAX_LENGTH]
    head = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]{0,80})[ \t]*", text)
    if head is None:
        return None
    library = "torch" if head[1].lower() == "pytorch" else library_of(head[1])
    if library is None:
        return None
    rest = text[head.end() :].strip()
    if rest.startswith("["):
        bracket = re.search(r"version=['\"]?([^'\"\]]*)", rest)
        rest = bracket[1] if bracket else ""
    single = re.fullmatch(r"=?[ \t]*([0-9][^=\s,|<>!]*?)(\.?\*)?(?:[= ][^=\s]*)?", rest)
    if single:
        fuzzy = rest.startswith("=") and single[1].count(".") < 2
        wild = ".*" if single[2] or fuzzy else ""
        return specified(library, f"=={single[1]}{wild}")
    exact = re.fullmatch(r"(==[^=\s,|]+)=[^=\s]+", rest)  # ==2.1.0=build
    alternatives = [specified(library, part.strip()) for part in (exact[1] if exact else rest).split("|")]
    if any(part is None or part.fault for part in alternatives):
        return Requirement(library, fault=rest[:40])
    specifiers = [part.specifier for part in alternatives if part is not None]
    return Requirement(library, "" if "" in specifiers else " || ".join(specifiers))


_OPTION = re.compile(r"\s*(-r|--requirement|-c|--constraint|-e|--editable)(?:\s+|=|(?<=-[rce]))(\S+)")
_PACKAGE = re.compile(r"^\[\[packages?\]\][ \t]*$", re.M)
_FIELD = re.compile(r'^(name|version)[ \t]*=[ \t]*["\']([^"\'\n]{1,120})["\']', re.M)
MAX_LINE = 20_000
MAX_ASKED = 500  # names after -r and -c in one file and what it brings in
MAX_PACKAGES = 50_000  # of a lock file


def read_requirements(folder: Folder, path: str, level: int) -> None:
    """A requirements file with what its ``-r`` and ``-c`` bring in."""
    _Includes(folder).read(path, level)


def bring_in(folder: Folder, path: str, number: int, named: str, level: int, *, must: bool = True) -> None:
    """What ``-r named`` in the file at ``path`` brings in. What ``must`` not be there is no fault where it is not: the
    commands of an image run in the image."""
    if must or os.path.isfile(os.path.join(os.path.dirname(path), named)):
        _Includes(folder).bring_in(path, number, named, level)


class _Includes:
    """Files bring one another in: each is read once, and only inside the project."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._open: list[str] = []
        self._done: set[str] = set()
        self._asked: set[tuple[str, str]] = set()

    def read(self, path: str, level: int) -> None:
        real = os.path.realpath(path)
        text = None if real in self._done else self._folder.text(path)
        self._done.add(real)
        if text is None:
            return
        self._open.append(real)
        for number, line in logical_lines(text):
            option = _OPTION.match(line)
            if option is None:
                self._folder.say(read_requirement(line), path, number, level)
            elif option[1] in ("-e", "--editable"):
                self._folder.say(read_requirement(option[2]), path, number, level)
            else:
                # a file of constraints says nothing of its own: it narrows what is asked for beside it
                inner = CONSTRAINTS if option[1] in ("-c", "--constraint") and level < CONSTRAINTS else level
                self.bring_in(path, number, option[2].strip("\"'"), inner)
        self._open.pop()

    def bring_in(self, path: str, number: int, named: str, level: int) -> None:
        if "://" in named or "$" in named or "\0" in named:
            return
        wanted = os.path.join(os.path.dirname(path), named)
        if (path, wanted) in self._asked or len(self._asked) > MAX_ASKED:
            return
        self._asked.add((path, wanted))
        real = os.path.realpath(wanted)
        if real in self._open:
            self._folder.report("cycle", path, number, name=named)
        elif not self._folder.holds(wanted):
            self._folder.report("outside", path, number, name=named)
        elif not os.path.lexists(wanted):
            self._folder.report("missing", path, number, name=named)
        elif len(self._done) >= MAX_FILES:
            self._folder.report("too_many", path, number, limit=MAX_FILES)
        else:
            self.read(os.path.normpath(wanted), level)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its number; one that ends in a backslash goes on. Of a huge line only the beginning is read."""
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        pending += line[:MAX_LINE]
        if pending.endswith("\\") and len(pending) < MAX_LINE and not pending.lstrip().startswith("#"):
            pending = pending[:-1] + " "
            continue
        yield start, pending
        pending, start = "", 0
    if pending:
        yield start, pending


def read_environment(folder: Folder, path: str) -> None:
    """conda's environment.yml: the items of ``dependencies``, and below ``pip:`` those in pip's format."""
    text = folder.text(path)
    inside, pip_indent = False, -1
    for number, line in enumerate((text or "").splitlines(), 1):
        bare = line[:MAX_LINE].strip()
        if not bare or bare.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 and not bare.startswith("-"):
            inside, pip_indent = bare.startswith("dependencies:"), -1
        elif inside and bare.startswith("-"):
            item = re.split(r"\s#", bare[1:].strip())[0].strip().strip("\"'")
            if pip_indent >= 0 and indent <= pip_indent:
                pip_indent = -1
            if re.fullmatch(r"pip\s*:", item):
                pip_indent = indent
            elif pip_indent < 0:
                folder.say(conda_requirement(item), path, number, DECLARED)
            elif option := _OPTION.match(item):
                bring_in(folder, path, number, option[2], DECLARED)
            else:
                folder.say(read_requirement(item), path, number, DECLARED)


def read_lock(folder: Folder, path: str) -> None:
    """uv.lock, poetry.lock, pdm.lock, pylock.toml: a table for each package, written by a program, so that a scan of
    its lines is enough: a parser takes seconds for a large one.
    """
    text = folder.text(path, MAX_LOCK_BYTES)
    if text is None:
        return
    starts = [found.end() for found in islice(_PACKAGE.finditer(text), MAX_PACKAGES)]
    if not starts and text.strip() and "[" not in text:
        folder.report("no_lock", path)
    counted, line = 0, 1
    for at, start in enumerate(starts):
        end = starts[at + 1] if at + 1 < len(starts) else len(text)
        name = _FIELD.search(text, start, min(end, start + 400))
        library = library_of(name[2]) if name and name[1] == "name" else None
        if library is None:
            continue
        stop = text.find("\n[", start, end)  # a table inside the package's own
        version = next(
            (each for each in _FIELD.finditer(text, start, stop if stop > 0 else end) if each[1] != "name"), None
        )
        if version is not None:
            line += text.count("\n", counted, version.start())
            counted = version.start()
            folder.say(read_requirement(f"{library}=={version[2]}"), path, line, LOCK)


def read_pipfile_lock(folder: Folder, path: str) -> None:
    """Pipfile.lock: JSON with ``default`` and ``develop``."""
    text = folder.text(path, MAX_LOCK_BYTES)
    if text is None:
        return
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        folder.report("not_json", path, getattr(error, "lineno", None), error=str(error)[:200])
        return
    for section, own in (("default", LOCK), ("develop", OPTIONAL)):
        packages = data.get(section) if isinstance(data, dict) else None
        for name, entry in packages.items() if isinstance(packages, dict) else ():
            library = library_of(name)
            if library is None or not isinstance(entry, dict):
                continue
            line = line_of(text, (f'"{name}": {{', f'"{name}":{{'))
            if isinstance(entry.get("version"), str):
                folder.say(read_requirement(library + entry["version"]), path, line, own)
            elif isinstance(entry.get("git"), str):
                folder.say(tagged(library, str(entry.get("ref") or "")), path, line, own)
            else:
                folder.say(Requirement(library), path, line, own)
