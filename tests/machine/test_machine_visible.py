"""``CUDA_VISIBLE_DEVICES`` and MIG: what a CUDA process would see of the GPUs that the driver reports."""

import pytest

from kb.core.hardware import DetectedGpu
from kb.core.units import GIB
from kb.machine.reading import Reported
from kb.machine.sources import hides_all, visible

UUIDS = ("GPU-9942190a-aa31", "GPU-9e8d35e3-a134", "GPU-e429a63e-c61c", "GPU-eee1dfbc-0a0f")
GPUS = [
    Reported(gpu=DetectedGpu(number=index, name="NVIDIA GeForce RTX 3090", memory_total=24 * GIB, uuid=uuid))
    for index, uuid in enumerate(UUIDS)
]


def seen(value: str | None) -> tuple[list[int], tuple[str, ...]]:
    devices, notes = visible(GPUS, {} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    return [reported.gpu.number for reported in devices], notes


INVALID = ("visible_devices_invalid",)


@pytest.mark.parametrize(
    ("value", "indices", "notes"),
    [
        (None, [0, 1, 2, 3], ()),
        ("0", [0], ()),
        ("2,1", [2, 1], ()),
        (" 3 , 0", [3, 0], ()),
        ("0,2,-1,1", [0, 2], ()),
        ("0,2,9,1", [0, 2], INVALID),
        ("0,two,1", [0], INVALID),
        ("NoDevFiles", [], INVALID),
        ("1gpu2,2ampere", [1, 2], ()),
        ("0,1,1", [], INVALID),
        ("GPU-9e8d35e3-a134", [1], ()),
        ("GPU-9e8", [1], ()),
        ("GPU-eee,GPU-99", [3, 0], ()),
        ("GPU-e", [], INVALID),  # two begin so
        ("GPU-9e8,GPU-e,GPU-99", [1], INVALID),
        ("GPU-9e8,GPU-9e8d", [], INVALID),
        ("GPU-9e8,2", [1], INVALID),
        ("GPU-123", [], INVALID),
    ],
)
def test_list_is_read_as_cuda_reads_it(value: str | None, indices: list[int], notes: tuple[str, ...]) -> None:
    assert seen(value) == (indices, notes)


@pytest.mark.parametrize(("value", "hidden"), [("", True), (" ", True), ("-1", True), ("0", False), ("GPU-1", False)])
def test_empty_and_minus_one_hide_every_gpu(value: str, hidden: bool) -> None:
    assert hides_all({"CUDA_VISIBLE_DEVICES": value}) is hidden


def test_unset_variable_hides_nothing() -> None:
    assert not hides_all({})


MIXED = [
    Reported(gpu=DetectedGpu(number=0, name="NVIDIA GeForce RTX 2080 Ti", memory_total=11 * GIB, uuid="GPU-a")),
    Reported(gpu=DetectedGpu(number=1, name="NVIDIA GeForce RTX 4090", memory_total=24 * GIB, uuid="GPU-b")),
]


@pytest.mark.parametrize(
    ("environ", "uncertain"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, False),
    ],
)
def test_number_of_a_gpu_among_different_ones_is_uncertain(environ: dict[str, str], uncertain: bool) -> None:
    assert ("device_order_uncertain" in visible(MIXED, environ)[1]) is uncertain


def slices(driver: str | None, *places: tuple[int, int | None]) -> list[Reported]:
    return [
        Reported(
            gpu=DetectedGpu(
                number=index, name="A100 MIG", memory_total=5 * GIB, uuid=f"MIG-{number}a", mig=True, driver=driver
            ),
            parent_uuid=f"GPU-{index}",
            parent_memory_total=40 * GIB,
            instance=instance,
        )
        for number, (index, instance) in enumerate(places)
    ]


def names(devices: list[Reported], value: str | None = None) -> tuple[list[str | None], tuple[str, ...]]:
    found, notes = visible(devices, {} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    return [reported.gpu.uuid for reported in found], notes


WHOLE = Reported(gpu=DetectedGpu(number=9, name="NVIDIA A100", memory_total=40 * GIB, uuid="GPU-w", driver="575.57"))


def test_older_drivers_show_one_slice_and_no_whole_gpu() -> None:
    assert names([*slices("550.54.14", (0, 1), (0, 2)), WHOLE]) == (["MIG-0a"], ("mig_not_all_visible",))


def test_driver_of_unknown_version_is_taken_for_an_older_one() -> None:
    assert names(slices(None, (0, 1), (0, 2)))[0] == ["MIG-0a"]


def test_newer_drivers_show_one_slice_of_each_instance_and_whole_gpus() -> None:
    devices = [*slices("570.133.20", (0, 1), (0, 2), (0, 2)), WHOLE]
    assert names(devices) == (["MIG-0a", "MIG-1a", "GPU-w"], ("mig_not_all_visible",))


def test_slice_is_chosen_by_its_uuid() -> None:
    assert names(slices("550.54", (0, 1), (0, 2)), "MIG-1a") == (["MIG-1a"], ())


def test_slice_of_a_driver_before_r470_is_chosen_by_gpu_and_instances() -> None:
    old = slices("450.80", (0, 1), (0, 2))
    uuids = ("MIG-GPU-0/1/0", "MIG-GPU-0/2/0")
    renamed = [
        reported._replace(gpu=DetectedGpu(number=0, name="A100 MIG", memory_total=5 * GIB, uuid=uuid, mig=True))
        for reported, uuid in zip(old, uuids, strict=True)
    ]
    assert names(renamed, "MIG-GPU-0/2/0") == (["MIG-GPU-0/2/0"], ())


def test_gpu_with_slices_is_chosen_by_number_or_by_its_own_uuid() -> None:
    devices = slices("575.57", (0, 1), (1, 1))
    assert names(devices, "1")[0] == ["MIG-1a"]
    assert names(devices, "GPU-1")[0] == ["MIG-1a"]
