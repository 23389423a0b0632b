"""Values that a config leaves to the machine: known once a fact of it is, ``bf16=is_bfloat16_supported()``."""

from kb.core.expression import Unknown

FACT = "gpu.native_bf16"
NATIVE_BF16 = Unknown(frozenset((FACT,)), "as the fact")
NATIVE_BF16_IF_TRUE = Unknown(frozenset((FACT,)), "as the fact, where that is true")
_NOT_NATIVE_BF16 = Unknown(frozenset((FACT,)), "not the fact")
_NOT_NATIVE_BF16_IF_TRUE = Unknown(frozenset((FACT,)), "not the fact, where that is true")
_PAIRS = ((NATIVE_BF16, _NOT_NATIVE_BF16), (NATIVE_BF16_IF_TRUE, _NOT_NATIVE_BF16_IF_TRUE))


def negated(value: Unknown) -> Unknown:
    """The contrary of a value that waits for a fact; of any other unknown one, unknown."""
    for one, other in _PAIRS:
        if value is one or value is other:
            return other if value is one else one
    return Unknown(value.needs, value.reason)


def settled(value: Unknown, native_bf16: bool) -> bool | None:
    """What the value is on a GPU with or without native bf16; None where that does not tell."""
    if value.needs != NATIVE_BF16.needs:
        return None
    if value.reason.endswith("where that is true") and not native_bf16:
        return None
    if value.reason.startswith("as the fact"):
        return native_bf16
    return not native_bf16 if value.reason.startswith("not the fact") else None
