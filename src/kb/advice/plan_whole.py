"""A unit of a config → its plan: the GPU's ledger and the host's, each by its own steps. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from kb.advice.estimator import Estimator
from kb.advice.plan import Plan, combined
from kb.advice.plan_gpu import plan_gpu
from kb.advice.plan_host import plan_host
from kb.core.hardware import Gpu
from kb.core.result import UnitResult


class PlannedUnit(NamedTuple):
    """What was planned, where, and the plan."""

    result: UnitResult
    estimator: Estimator
    plan: Plan


def plan_unit(result: UnitResult, estimator: Estimator, gpus: Mapping[str, Gpu]) -> PlannedUnit:
    """Both ledgers of a checked unit whose model is known.

    Raises:
        UnsupportedArchitectureError: no closed form for the model's family.
    """
    setup = result.setup
    if setup is None:
        raise ValueError(f"{result.unit.path}: nothing is set up to run")
    gpu = plan_gpu(setup, estimator, gpus)
    return PlannedUnit(result, estimator, combined(gpu, plan_host(setup, gpu.setup, estimator), setup))
