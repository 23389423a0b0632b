"""torch, for the modules that run only in the simulator's process.

One place to import it at module level: the shim for CPU builds must have been loaded before.
"""

from kb.torch_runs.simulation import device

device.install()

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

__all__ = ["FakeTensor", "FakeTensorMode", "TorchDispatchMode", "torch"]
