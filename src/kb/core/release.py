"""Versions and releases of libraries: read, ordered, ranges, and what a project allows."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from kb.core.facts import Origin
from kb.core.record import NamedTuple

_NUMBERS = r"[0-9]{1,6}(?:\.[0-9]{1,6})*"


def parse_version(text: str) -> tuple[int, ...]:
    """``"4.51"`` → ``(4, 51)``; what follows the numbers (``rc1``, ``.dev0``, ``+cu128``) does not count.

    Raises:
        ValueError: the text does not begin with a number.
    """
    numbers = []
    for part in text.split("."):  # no pattern: it would be compiled at the start of every check
        number = part[: len(part) - len(part.lstrip("0123456789"))][:6]
        if number:
            numbers.append(int(number))
        if not number or number != part:
            break
    if not numbers:
        raise ValueError(f"{text!r} is not a version such as 4.51")
    return tuple(numbers)


Bound = tuple[int, ...]
LATEST = 9999  # stands for the last part of a release before the next
OR = " || "
_CLAUSE = r"(~=|==|!=|<=|>=|<|>)\s*([0-9]{1,6}(?:\.[0-9]{1,6})*)(\.\*)?"


class Source(NamedTuple):
    """Where a requirement is written. ``line`` counts from 1; None where the file has no lines to name."""

    path: str
    line: int | None = None

    def text(self) -> str:
        """``requirements.txt:3``."""
        return self.path if self.line is None else f"{self.path}:{self.line}"


class ProjectRelease(NamedTuple):
    """What is known of one library's release.

    ``specifier`` is as PEP 440 writes it (``==4.54.0``, ``>=4.40,<5.3``), alternatives parted by `` || ``; empty where
    any release is allowed: the library is named and its release is not. ``exact`` is the one release that is meant,
    None of a range. ``place`` is where it is written, None where no file says it. ``others`` are places that say
    something else of the same library, farther away, each with its specifier. ``partly``: it is said of some
    installations only (an extra, a workflow), so that what follows from it is likely at best. ``names``: which of them
    have every name that a program uses, as a specifier. ``floating``: of a branch, a commit or a fork.
    """

    library: str
    specifier: str
    exact: Bound | None
    origin: Origin
    place: Source | None = None
    others: tuple[tuple[Source, str], ...] = ()
    partly: bool = False
    names: str = ""
    floating: bool = False

    def allows(self, version: Bound) -> bool:
        """Whether the specifier admits this release (final releases only)."""
        if self.exact is not None:
            return _padded(self.exact, len(version)) == _padded(version, len(self.exact))
        text = ".".join(map(str, version))
        return admits(self.specifier, text) and admits(self.names, text)

    def within(self, *bounds: Bound) -> Bound | None:
        """A release that stands for all that are allowed, where they lie on one side of each bound; else None."""
        if self.exact is not None or self.partly:
            return self.exact
        said = self.specifier or self.names
        kinds = {*bounds, *map(just_below, bounds), *self.edges()} if said else set()
        allowed = [kind for kind in kinds if self.allows(kind)]
        agreed = bounds and allowed and all(len({kind >= bound for kind in allowed}) == 1 for bound in bounds)
        return max(allowed) if agreed else None

    def edges(self) -> tuple[Bound, ...]:
        """The versions that the specifier names, and what lies just beside each: between them nothing changes."""
        if self.exact is not None:
            return (self.exact,)
        said = f"{self.specifier} {self.names}"
        named = [parse_version(each) for each in re.findall(r"[<>=~]\s*([0-9]+(?:\.[0-9]+)*)", said)]
        return tuple(edge for bound in named for edge in (just_below(bound), bound, (*bound, 1)))


def just_below(version: Bound) -> Bound:
    """The newest release that is thinkable before this one: ``(5, 15)`` → ``(5, 14, LATEST)``."""
    *head, last = version
    while last == 0 and head:
        *head, last = head
    return (*head, max(last - 1, 0), LATEST)


def _padded(version: Bound, length: int) -> Bound:
    return version + (0,) * (length - len(version))


def exact_release(library: str, version: str, origin: Origin, place: Source | None = None) -> ProjectRelease:
    """The record of one release.

    Raises:
        ValueError: ``version`` does not begin with numbers and dots.
    """
    return ProjectRelease(library, f"=={version}", parse_version(version), origin, place)


Versions = Callable[[str], tuple[int, ...] | None]


def named_releases(versions: Versions) -> Callable[[str], ProjectRelease | None]:
    """The releases that a caller names, each exactly."""

    def release(library: str) -> ProjectRelease | None:
        exact = versions(library)
        return None if exact is None else exact_release(library, ".".join(map(str, exact)), "given")

    return release


def pinned_version(specifier: str) -> str | None:
    """The one version that a specifier admits, as written; None of a range, of alternatives and of none."""
    operator, version = specifier.strip()[:2], specifier.strip()[2:].strip()
    return version if operator == "==" and version and not any(sign in version for sign in " \t,|*") else None


@lru_cache(maxsize=4096)
def admits(specifier: str, version: str) -> bool:
    """Whether a version is one of those that the specifier allows; releases before the final one are, too."""
    if not specifier:
        return True
    version = _without_build(version)
    return any(_holds(_without_build(part), version) for part in specifier.split(OR))


def _holds(specifiers: str, version: str) -> bool:
    """Whether a version fulfils each of the specifiers between commas. PEP 440's order of final releases is that of
    their numbers; ``packaging``, which takes longer to import than a project to read, is asked of everything else."""
    clauses = [re.fullmatch(_CLAUSE, part.strip()) for part in specifiers.split(",")]
    if not (re.fullmatch(_NUMBERS, version) and all(clause and _is_plain(*clause.groups()) for clause in clauses)):
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(specifiers).contains(version, prereleases=True)
    release = parse_version(version)
    return all(
        _in_clause(clause[1], parse_version(clause[2]), bool(clause[3]), release) for clause in clauses if clause
    )


def _is_plain(operator: str, named: str, wild: str | None) -> bool:
    """``.*`` goes with ``==`` and ``!=`` alone, and ``~=`` needs two numbers: packaging refuses anything else."""
    return operator in ("==", "!=") if wild else operator != "~=" or "." in named


def _in_clause(operator: str, named: Bound, wild: bool, version: Bound) -> bool:
    """One clause of PEP 440 over final releases; ``wild`` is ``.*`` behind the version that is named."""
    left, right = _padded(version, len(named)), _padded(named, len(version))
    if operator == "~=":
        return left >= right and left[: len(named) - 1] == named[:-1]
    if operator in ("==", "!="):
        same = left[: len(named)] == named if wild else left == right
        return same == (operator == "==")
    order: dict[str, bool] = {"<=": left <= right, ">=": left >= right, "<": left < right, ">": left > right}
    return order[operator]


def _without_build(text: str) -> str:
    """``2.6.0+cu124`` is the release 2.6.0, built for a CUDA."""
    return re.sub(r"\+[A-Za-z0-9._-]+", "", text)


def same_release(one: str, other: str) -> bool:
    """Whether two versions are one release: ``2.6`` and ``2.6.0+cu124`` are."""
    left, right = _without_build(one), _without_build(other)
    if left == right:
        return True
    if not (left.replace(".", "").isdigit() and right.replace(".", "").isdigit()):
        return admits(f"=={left}", right)
    first, second = parse_version(left), parse_version(right)
    return _padded(first, len(second)) == _padded(second, len(first))


def agree(one: str, other: str) -> bool:
    """Whether some release is allowed by both specifiers."""
    if not one or not other:
        return True
    first, second = pinned_version(one), pinned_version(other)
    if first is not None and second is not None:
        return same_release(first, second)
    if first is not None:
        return admits(other, first)
    if second is not None:
        return admits(one, second)
    return any(admits(one, each) and admits(other, each) for each in _near(f"{one},{other}"))


def _near(specifiers: str) -> list[str]:
    """The versions that the specifiers name, and one just below and just above each: where two ranges meet, one of
    these lies in both."""
    found = ["0", "99999"]
    for text in re.findall(r"[<>=~]\s*([0-9]+(?:\.[0-9]+)*)", specifiers):
        numbers = [int(part) for part in text.split(".")[:6]]
        around = [numbers, [*numbers, 0, 1], [*numbers[:-1], numbers[-1] + 1]]
        if numbers[-1]:
            around.append([*numbers[:-1], numbers[-1] - 1, 999])
        found += [".".join(map(str, each)) for each in around]
    return found


def bounds_of(span: Mapping[str, str]) -> str:
    """``>= 0.8.0, < 0.13.0`` of what a library has ``since`` a release and ``before`` another, or ``again`` later."""
    until = ", ".join(f"{sign} {span[end]}" for end, sign in (("since", ">="), ("before", "<")) if end in span)
    return f"{until}{OR}>= {span['again']}" if "again" in span else until
