"""GPUs as Ray calls them: a node offers the resource ``accelerator_type:A100``, named by what its driver reports."""

import re
from collections.abc import Iterable

PREFIX = "accelerator_type:"
# As Ray reads a driver's name (ray._private.accelerators.nvidia_gpu, 2.60): words in capitals up to the model's number;
# of a name that has none such the whole, without its vendor.
_MODEL = re.compile(r"(?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*")
_BRANDS = ("NVIDIA ", "Tesla ")


def labels(gpu: str, names: Iterable[str]) -> tuple[str, ...]:
    """What Ray may call a GPU, the most exact first: kb's id as an administrator may have named it, Ray's own names.

    Args:
        gpu: kb's id.
        names: the GPU's name and aliases.
    """
    found = {gpu.casefold(): None, gpu.casefold().removesuffix("b"): None}  # Ray writes A100-40G for a100-40gb
    models: dict[str, None] = {}
    for name in names:
        product = _without_brand(name)
        found |= dict.fromkeys("-".join(each.split()).casefold() for each in (product, name.removeprefix("NVIDIA ")))
        if match := _MODEL.match(product):
            models["-".join(match[0].split()).casefold()] = None
    return tuple(dict.fromkeys((*found, *models)))


def accelerator_of(gpu: str, names: Iterable[str], offered: Iterable[str]) -> str | None:
    """The one of the ``offered`` accelerator types that is the GPU; None where the cluster has none such."""
    by_label = {each.casefold(): each for each in offered}
    return next((by_label[label] for label in labels(gpu, names) if label in by_label), None)


def offered_by(resources: Iterable[str]) -> tuple[str, ...]:
    """The accelerator types among a cluster's resources."""
    return tuple(sorted({name.removeprefix(PREFIX) for name in resources if name.startswith(PREFIX)}))


def _without_brand(name: str) -> str:
    for brand in _BRANDS:
        name = name.removeprefix(brand)
    return name
