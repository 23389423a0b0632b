"""How a program loads the model that it trains, where its source says so as it stands: ``from_pretrained(…,
dtype=torch.float16)``, ``model.gradient_checkpointing_enable()``. A value that comes from flags is not told here.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import permutations

from kb.config.python.declared import called_name, nodes_of

DTYPE, ATTENTION, CHECKPOINTING = "model.torch_dtype", "model.attn_implementation", "training.gradient_checkpointing"
_KEYWORDS = {"torch_dtype": DTYPE, "dtype": DTYPE, "attn_implementation": ATTENTION}
_ENABLES = "gradient_checkpointing_enable"
_SWITCH = "checkpointing"  # in a test: the program asks its flag


@lru_cache(64)
def loaded(text: str) -> Mapping[str, str | bool | None]:
    """The settings of a model that a program gives by itself, whatever its flags are, by the name of the setting.

    None where it does and the value cannot be told: it depends on something else, or two calls say different things.
    """
    if ".from_pretrained(" not in text and _ENABLES not in text:
        return {}
    found: dict[str, set[str | bool | None]] = {}
    nodes = nodes_of(text)
    conditional = {id(inner): node.test for node in nodes if isinstance(node, ast.If) for inner in ast.walk(node)}
    ways: list[tuple[ast.Call, dict[str, str | None]]] = []
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if _loads_model(node):
            ways.append((node, dict(_of_model(node))))
            for name, value in ways[-1][1].items():
                found.setdefault(name, set()).add(value)
        if called_name(node) == _ENABLES:
            test = conditional.get(id(node))
            if test is None or _SWITCH not in ast.unparse(test):
                found.setdefault(CHECKPOINTING, set()).add(True if test is None else None)
    for name in _only_in_one_arm(ways, nodes):
        found[name].add(None)
    return {name: next(iter(values)) if len(values) == 1 else None for name, values in found.items()}


def _only_in_one_arm(ways: list[tuple[ast.Call, dict[str, str | None]]], nodes: list[ast.AST]) -> Iterator[str]:
    """What one arm of an ``if`` gives the model that it loads, and the other, which loads it too, does not."""
    if len(ways) < 2:
        return
    arms: dict[int, dict[int, str]] = {}  # of each call, by the id of an `if` that it lies in
    for node in nodes:
        if isinstance(node, ast.If):
            for arm, body in (("body", node.body), ("orelse", node.orelse)):
                for inner in (each for statement in body for each in ast.walk(statement)):
                    arms.setdefault(id(inner), {})[id(node)] = arm
    for (one, given), (other, not_given) in permutations(ways, 2):
        here, there = arms.get(id(one), {}), arms.get(id(other), {})
        if any(there.get(test, arm) != arm for test, arm in here.items()):
            yield from (name for name in given if name not in not_given)


def _loads_model(call: ast.Call) -> bool:
    """Whether a call loads a model: a loader of adapters, and of what is no model, does not."""
    if called_name(call) != "from_pretrained" or not isinstance(call.func, ast.Attribute):
        return False
    loader = ast.unparse(call.func.value).rpartition(".")[2]
    return "Peft" not in loader and ("Model" in loader or "For" in loader)


def _of_model(call: ast.Call) -> Iterator[tuple[str, str | None]]:
    """What a call that loads a model says of it."""
    for keyword in call.keywords:
        name = _KEYWORDS.get(keyword.arg or "")
        if name is not None and not _of_flags(keyword.value):
            yield name, _literal(keyword.value)


def _of_flags(value: ast.expr) -> bool:
    """Whether a value is, or may be, what the flags say: an attribute or a name that is none of torch's."""
    return not isinstance(value, ast.Constant) and not _is_of_torch(value)


def _literal(value: ast.expr) -> str | None:
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    return value.attr if isinstance(value, ast.Attribute) else None


def _is_of_torch(value: ast.expr) -> bool:
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "torch"
