"""What is wrong with an expression, in English and Korean: for whoever writes a rule."""

import re
from collections.abc import Collection, Mapping

from kb.core.text import nearest

Said = tuple[str, str]
# The types that expressions have, as Korean names them.
KOREAN: Mapping[str, str] = {"bool": "참·거짓", "number": "수", "text": "문자열", "list": "목록", "version": "판"}
NO_OPERATOR = "this operator is not part of the language", "식에 쓸 수 없는 연산자입니다"
NO_IS = "'is' is not part of the language; compare with ==", "'is'는 식에 쓸 수 없습니다. ==로 비교하십시오"
NO_DOT = "a dot only joins the parts of a fact's name", "점은 사실 이름의 부분을 잇는 데만 씁니다"
NO_EXPONENT = "an exponent must be 2, 3 or 0.5", "지수는 2, 3, 0.5 가운데 하나입니다"


def no_value(value: object) -> Said:
    return (
        f"{value!r} is not part of the language; a missing fact is unknown, not None",
        f"{value!r} 값은 식에 쓸 수 없습니다. 없는 사실은 None이 아니라 모르는 값입니다",
    )


def another_type(kind: str, want: str) -> Said:
    return (
        f"the expression is a {kind}; a {want} is needed here",
        f"식의 값은 {KOREAN[kind]}인데 여기에는 {KOREAN[want]} 자료형이 필요합니다",
    )


def needs(where: str, want: str, kind: str) -> Said:
    korean = f"{where}: {KOREAN[want]} 자료형이 필요한데 {KOREAN[kind]} 값입니다"
    return f"{where} needs a {want}, this is a {kind}", korean


def two_types(kind: str, other: str) -> Said:
    return (
        f"both branches must have one type; these are a {kind} and a {other}",
        f"두 갈래의 자료형이 같아야 합니다: {KOREAN[kind]}, {KOREAN[other]}",
    )


def looks_for(sign: str, left: str, right: str) -> Said:
    return (
        f"'{sign}' looks for a text or number in a list; these are a {left} and a {right}",
        f"'{sign}': 목록에서 문자열이나 수를 찾습니다. 지금은 {KOREAN[left]}, {KOREAN[right]} 값입니다",
    )


def compares(sign: str, left: str, right: str) -> Said:
    korean = f"'{sign}': 자료형이 다른 값을 비교합니다: {KOREAN[left]}, {KOREAN[right]}"
    return f"'{sign}' compares a {left} with a {right}", korean


def orders(sign: str, kind: str) -> Said:
    return (
        f"'{sign}' orders numbers or versions, not a {kind}",
        f"'{sign}': 수나 판의 순서를 비교합니다. 지금은 {KOREAN[kind]} 값입니다",
    )


def takes(name: str, several: bool) -> Said:
    return (
        f"{name} takes {'two values or more' if several else 'one value'}",
        f"{name}: 값을 {'둘 이상' if several else '하나만'} 받습니다",
    )


def never(fact: str, text: str, known: Collection[str]) -> Said:
    guess, listed = nearest(text, known), ", ".join(sorted(known))
    hint = f"did you mean {guess[0]!r}?" if guess else f"its values: {listed}"
    korean = f"{guess[0]!r} 아닙니까?" if guess else f"쓸 수 있는 값: {listed}"
    return f"{fact} is never {text!r}; {hint}", f"{fact}: {text!r} 값이 될 수 없습니다. {korean}"


def unknown(first: str, source: str, known: Collection[str]) -> Said:
    """Every name in the expression that is no fact, ``first`` before the others, each with the one meant."""
    words = re.findall(r"[A-Za-z]\w*(?:\.[A-Za-z]\w*)+", re.sub(r"\"[^\"]*\"|'[^']*'", "", source))
    said, korean = [], []
    for name in dict.fromkeys([first, *words]):
        if name not in known:
            guess = nearest(name, known)
            said.append(f"unknown fact {name!r}" + (f"; did you mean {guess[0]!r}?" if guess else ""))
            korean.append(f"{name!r}: 없는 사실입니다" + (f". {guess[0]!r} 아닙니까?" if guess else ""))
    return "; ".join(said).replace("?; ", "? "), "; ".join(korean).replace("?; ", "? ")
