"""kb's records are named tuples in every way but the time that their classes take."""

import copy
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from kb.core import record


class Ours(record.NamedTuple):
    """A doc."""

    a: int
    b: str = "x"
    c: "tuple[int, ...] | None" = None

    @property
    def twice(self) -> int:
        return 2 * self.a

    @classmethod
    def of(cls, a: int) -> "Ours":
        return cls(a)


class Theirs(typing.NamedTuple):
    """A doc."""

    a: int
    b: str = "x"
    c: "tuple[int, ...] | None" = None

    @property
    def twice(self) -> int:
        return 2 * self.a

    @classmethod
    def of(cls, a: int) -> "Theirs":
        return cls(a)


class Nothing(record.NamedTuple):
    """Without fields."""


class Spoken(record.NamedTuple):
    a: int

    def __repr__(self) -> str:
        return f"<{self.a}>"


def matched(made: Any) -> Any:
    match made:
        case Ours(a, b) | Theirs(a, b):
            return a, b


ASKED: list[Callable[[Any], Any]] = [
    lambda kind: (kind._fields, kind._field_defaults, kind.__doc__, kind.__match_args__, kind.__slots__),
    lambda kind: repr(kind(1)).partition("(")[2],
    lambda kind: (kind(1), kind(1, b="y"), kind(a=3, c=(1,)), hash(kind(1)), kind(1) == (1, "x", None)),
    lambda kind: (kind(1).a, kind(1).b, kind(1).twice, kind.of(4), kind(1)._asdict(), kind(2)._replace(b="z")),
    lambda kind: (kind._make([1, 2, 3]), copy.copy(kind(1)), copy.deepcopy(kind(1)), kind(1).__getnewargs__()),
    lambda kind: (type(pickle.loads(pickle.dumps(kind(1)))) is kind, pickle.loads(pickle.dumps(kind(7)))),
    lambda kind: (matched(kind(5)), sorted([kind(2), kind(1)]), [*kind(9)], typing.get_type_hints(kind)),
    lambda kind: hasattr(kind(1), "__dict__"),
]


@pytest.mark.parametrize("ask", ASKED)
def test_a_record_answers_as_a_named_tuple_does(ask: Callable[[Any], Any]) -> None:
    assert ask(Ours) == ask(Theirs)


WRONG: list[Callable[[Any], Any]] = [
    lambda kind: kind(),
    lambda kind: kind(1, 2, 3, 4),
    lambda kind: kind(1, a=1),
    lambda kind: kind(1, z=2),
    lambda kind: kind._make([1]),
    lambda kind: kind(1)._replace(z=2),
    lambda kind: setattr(kind(1), "a", 2),
]


@pytest.mark.parametrize("ask", WRONG)
def test_what_a_named_tuple_refuses_a_record_refuses(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as theirs:
        ask(Theirs)
    with pytest.raises(theirs.type) as ours:
        ask(Ours)
    assert str(ours.value).replace("Ours", "Theirs") == str(theirs.value)


def test_a_class_keeps_what_it_says_of_itself() -> None:
    class More(Ours):
        """With a method of its own."""

        def more(self) -> int:
            return self.a + 1

    assert More(1).more() == 2 and type(More(1)._replace(a=5)) is More and More._make((1, 2, 3)).c == 3
    assert repr(Spoken(3)) == "<3>" and Nothing() == () and repr(Nothing()) == "Nothing()"


def test_the_thousandth_record_is_made_as_the_first() -> None:
    """From some number on a compiled function makes them."""

    class Many(record.NamedTuple):
        a: int
        b: str = "x"

    made = [(Many(at), Many(at, b="x"), Many(b="x", a=at), Many(at, "x")) for at in range(1000)]
    assert all(each == ((at, "x"),) * 4 for at, each in enumerate(made))
    assert {type(one) for each in made for one in each} == {Many}
    assert Many.__new__.__code__.co_varnames[1:] == ("a", "b")


def test_the_first_of_a_class_may_be_made_of_a_sequence() -> None:
    class Late(record.NamedTuple):
        a: int
        b: int = 2

    assert Late._make((1, 5)) == (1, 5) and Late._make((1, 5)).b == 5 and Late(1).b == 2
