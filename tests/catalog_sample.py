"""The shipped catalogue, and a machine of one of its GPUs."""

from kb.advice.estimator import on_gpu
from kb.core.hardware import Machine
from kb.knowledge import load_catalog

CATALOG = load_catalog()


def machine(gpu: str, **values: int) -> Machine:
    return on_gpu(CATALOG.gpus[gpu])._replace(**{"host_memory_bytes": 60 * 10**9, "cpus": 48, **values})
