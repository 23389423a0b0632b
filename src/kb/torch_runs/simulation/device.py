"""Gives a build of PyTorch without CUDA a device on paper, so that fake ``cuda`` tensors run through autograd.

A CUDA build needs nothing. For a CPU build the 50 lines of ``guard.cpp`` are compiled once into the user's cache
folder; the name holds torch's version and the source's hash, so that a change of either compiles anew.
"""

import os
import sys

from kb.knowledge import locations
from kb.torch_runs.simulation.job import NoCompilerError

COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 300
REASON_CHARACTERS = 300


def install() -> None:
    """Make ``cuda`` usable for fake tensors in this process. Must come before torch is imported on a CPU build.

    Raises:
        NoCompilerError: the shim is needed, is not cached, and could not be compiled.
    """
    import ctypes
    import importlib.util

    if getattr(sys.modules.get("torch"), "_kb_paper_device", False):
        return
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "the caller has made sure that torch is installed"
    folder = os.path.dirname(spec.origin)
    libraries = os.path.join(folder, "lib")
    if os.path.exists(os.path.join(libraries, _library("torch_cuda"))):
        import torch

        torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
        return
    shim = shim_path(folder)
    # torch looks the hooks up once, while it is imported: they must be there before.
    assert "torch" not in sys.modules, "device.install() must come before torch is imported"
    ctypes.CDLL(os.path.join(libraries, _library("torch_global_deps")), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.path.join(libraries, _library("torch_cpu")))
    ctypes.CDLL(shim)
    import torch

    torch._kb_paper_device = True  # type: ignore[attr-defined]


def shim_path(torch_folder: str) -> str:
    """The compiled shim for the torch in ``torch_folder``; compiled where the cache has none.

    Raises:
        NoCompilerError: no compiler, or it failed; ``reason`` is its first error.
    """
    import hashlib

    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.cpp")
    with open(source, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()[:12]
    name = f"guard-{_torch_version(torch_folder)}-{sys.implementation.cache_tag}-{digest}{_SUFFIX}"
    path = os.path.join(cache_folder(), name)
    if not os.path.exists(path):
        _compile(source, path, torch_folder)
    return path


def cache_folder() -> str:
    """Where the platform keeps what a program can make again: ``…/kb/simulation``."""
    return os.path.join(locations.cache_folder(), "simulation")


_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


def _library(name: str) -> str:
    return f"lib{name}{_SUFFIX}"


def _torch_version(folder: str) -> str:
    """Read, not imported: the shim must be loaded before torch is."""
    import re

    with open(os.path.join(folder, "version.py"), encoding="utf-8") as stream:
        found = re.search(r"__version__ = ['\"]([^'\"]+)", stream.read())
    return found[1] if found else "unknown"


def _compile(source: str, path: str, torch_folder: str) -> None:
    import shutil
    import subprocess
    import tempfile

    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else list(COMPILERS)
    compiler = next(filter(None, map(shutil.which, wanted)), None)
    if compiler is None:
        raise NoCompilerError(reason=f"none of {', '.join(wanted)} found")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            made = os.path.join(folder, "guard")
            include, libraries = os.path.join(torch_folder, "include"), os.path.join(torch_folder, "lib")
            undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
            flags = ["-O1", "-shared", "-fPIC", "-std=c++20", f"-I{include}", f"-L{libraries}", *undefined]
            command = [compiler, *flags, source, "-ltorch_cpu", "-lc10", "-o", made]
            run = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
            if run.returncode:
                raise NoCompilerError(reason=_first_error(run.stderr, compiler))
            os.replace(made, path)  # in one step: two simulations may compile at once
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(reason=str(error)[:REASON_CHARACTERS]) from error


def _first_error(text: str, compiler: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if "error" in line), f"{compiler} failed")[:REASON_CHARACTERS]
