"""Which row of the catalogue a driver's name and memory mean."""

import pytest

from every_row import for_every
from kb.core.hardware import Gpu
from kb.core.units import MIB
from kb.machine.detect import match_gpu
from native.hardware import gpus

CATALOGUE = gpus()


@pytest.mark.parametrize(
    ("name", "memory_mib", "gpu_id"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("A100-SXM4-40GB", 40536, "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80gb"),
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3060", 12288, "rtx-3060-12gb"),
        ("NVIDIA GeForce RTX 3090", 24576, "rtx-3090"),
        ("GeForce RTX 3090", 24268, "rtx-3090"),  # R510 and before hid what they reserved
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", 32607, "rtx-5090"),
        ("NVIDIA GeForce RTX 2080 Ti", 11264, "rtx-2080-ti"),
        ("NVIDIA TITAN RTX", 24576, "titan-rtx"),
        ("Tesla V100-SXM2-16GB", 16384, "v100-16gb"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-16gb"),
        ("Tesla V100-SXM2-32GB", 32768, "v100-32gb"),
        ("Tesla V100-PCIE-32GB", 32510, "v100-pcie-32gb"),
        ("Tesla V100-DGXS-32GB", 32508, "v100-32gb"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA A10", 23028, "a10"),
        ("NVIDIA A10G", 23028, "a10g"),
        ("NVIDIA A40", 46068, "a40"),  # with ECC
        ("NVIDIA A40", 49140, "a40"),  # without
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000"),
        ("RTX A6000", 46068, "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("NVIDIA RTX 6000 Ada Generation", 46068, "rtx-6000-ada"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA B200", 183359, "b200"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "rtx-4090-laptop"),
        ("NVIDIA GeForce RTX 3080 Ti", 12288, "rtx-3080-ti"),
        ("NVIDIA L40", 46068, "l40"),
    ],
)
def test_driver_name_and_memory_mean_one_row(name: str, memory_mib: int, gpu_id: str) -> None:
    found = match_gpu(name, memory_mib * MIB, CATALOGUE)
    assert found is not None
    assert found.id == gpu_id


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 10240),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", 8192),
        ("NVIDIA GeForce RTX 3060", 8192),  # the later board of the same name
        ("NVIDIA GeForce RTX 3060 Ti", 12288),
        ("NVIDIA GeForce RTX 4090 D", 24564),
        ("NVIDIA RTX 2000 Ada Generation", 16380),
        ("NVIDIA A100-SXM-64GB", 65536),
        ("NVIDIA H100", 81559),  # SXM or PCIe?
        ("NVIDIA H100 96GB HBM3", 97871),
        ("NVIDIA GH200 480GB", 97871),
        ("GRID A100-20C", 20480),
        ("NVIDIA A10-24Q", 24512),
        ("Quadro RTX 6000", 24576),
        ("NVIDIA GeForce RTX 3090", 12288),
        ("", 24576),
        ("NVIDIA", 24576),
        ("Orin (nvgpu)", 62841),
    ],
)
def test_another_gpu_matches_nothing(name: str, memory_mib: int) -> None:
    assert match_gpu(name, memory_mib * MIB, CATALOGUE) is None


@for_every(CATALOGUE)
def test_catalogue_names_match_their_own_row(gpu: Gpu) -> None:
    assert match_gpu(gpu.name, gpu.memory_total, CATALOGUE) is gpu
