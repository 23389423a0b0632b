"""A model's modules and parameters, read off the engine's model: for types that are not known."""

import re
from functools import lru_cache
from math import prod

from kb.core.model import Architecture
from kb.memory.engine.families import model_class
from kb.memory.engine.modules import KEPT_HEADS, Model
from kb.memory.engine.options import Options
from kb.memory.engine.world import AMPERE, held, world
from kb.memory.parameters import Counts, Kind, LinearModule, Stack

_EXPERTS = re.compile(r"\.(?:experts|router|mlp\.gate|shared_expert_gate)\.")  # with their routers
_NUMBER = re.compile(r"\.\d+\.")
Key = tuple[str, Stack, int, int, Kind]


@lru_cache(maxsize=64)
def inventory(architecture: Architecture) -> tuple[tuple[LinearModule, ...], Counts]:
    """The linear layers and embeddings under transformers' names, and the parameters by part.

    Raises:
        NotFollowedError: the engine has no such family.
    """
    with held():
        world.begin(AMPERE)
        model = model_class(architecture)(architecture, Options())
        found: dict[Key, int] = {}
        linears = {id(linear.weight): linear for linear in model.linears}
        for path, tensor in model.parameters:
            if id(tensor) in model.wide:
                key: Key = (path.removesuffix(".weight"), "embedding", tensor.shape[0], tensor.shape[1], "embedding")
                found[key] = 1
        for linear in model.linears:
            rows, columns = linear.sides()
            name = _NUMBER.sub(".*.", linear.path, count=1)
            key = (name, _stack(linear.path, head=linear.head, model=model), columns, rows, "linear")
            found[key] = found.get(key, 0) + 1
        modules = tuple(LinearModule(*key[:4], number, key[4]) for key, number in found.items())
        return modules, _counts(model, {path for path, t in model.parameters if id(t) in linears})


def count_parts(architecture: Architecture) -> Counts:
    """The parameters by part."""
    return inventory(architecture)[1]


def modules_of(architecture: Architecture) -> tuple[LinearModule, ...]:
    """Linear layers and embeddings."""
    return inventory(architecture)[0]


def trained_whole(architecture: Architecture) -> int:
    """Parameters that PEFT trains beside the adapters: the classifier, where the task is classification."""
    if architecture.head not in ("sequence", "token"):
        return 0
    found = (module for module in modules_of(architecture) if module.name.partition(".")[0].endswith(KEPT_HEADS))
    return sum((module.in_features + 1) * module.out_features for module in found)


def _stack(path: str, *, head: bool, model: Model) -> Stack:
    if head:
        return "head"
    if not model.encodes:
        return "decoder" if model.generates else "encoder"
    return "encoder" if ".encoder." in f".{path}" else "decoder"


def _counts(model: Model, weights: set[str]) -> Counts:
    """Parameters (not bytes): the words' table is the first of the tables, positions the others; a tower's positions
    come before it."""
    sizes = {path: prod(tensor.shape) for path, tensor in model.parameters}
    tables = [path for path, tensor in model.parameters if id(tensor) in model.wide]
    tables.sort(key=lambda path: "vision_tower" in path)
    heads = {linear.path + ".weight" for linear in model.linears if linear.head}
    wide = {linear.path + ".weight" for linear in model.linears if not linear.packs}
    block = weights - heads - set(tables)
    encoder = sum(sizes[path] for path in block if _stack(path, head=False, model=model) == "encoder")
    linear = sum(sizes[path] for path in block)
    head = sum(size for path, size in sizes.items() if _weight_of(path) in heads)
    found = Counts(
        embedding=sizes[tables[0]],
        head=head,
        positions=sum(sizes[path] for path in tables[1:]),
        encoder_linear=encoder,
        decoder_linear=linear - encoder,
        biases=sum(size for path, size in sizes.items() if path not in block and _weight_of(path) in block),
        kept_wide=sum(sizes[path] for path in block & wide),
        norms=0,
        experts=sum(size for path, size in sizes.items() if _EXPERTS.search(path) and path not in block),
    )
    return found._replace(norms=sum(sizes.values()) - found.total)


def _weight_of(path: str) -> str:
    """The weight that a bias is added behind; of a weight, itself."""
    return path.removesuffix(".bias") + ".weight" if path.endswith(".bias") else path
