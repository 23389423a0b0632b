"""The shipped catalogue and guide, read once for all of a process's tests, and a machine of one of its GPUs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kb import knowledge
from kb.advice.estimator import on_gpu
from kb.core.catalog import Catalog
from kb.core.hardware import Machine


@cache
def load_catalog(*, whole: bool = False) -> Catalog:
    return knowledge.load_catalog(whole=whole)


@cache
def load_guide() -> Mapping[str, Any]:
    return knowledge.load_guide()


CATALOG = load_catalog()


def machine(gpu: str, **values: int) -> Machine:
    return on_gpu(CATALOG.gpus[gpu])._replace(**{"host_memory_bytes": 60 * 10**9, "cpus": 48, **values})
