"""What the simulator's tests need. Without it they are skipped by name; under CI, where it must be there, they fail."""

import importlib.util
import os
import shutil

import pytest

PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")


def missing() -> str:
    """What is missing here, in words; empty where nothing is."""
    absent = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if not absent and not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        absent.append("a C++ compiler")
    return ", ".join(absent)


def require_simulator() -> None:
    """Skip the calling test, or module, where the simulator cannot run; fail it under CI."""
    if reason := missing():
        if os.environ.get("CI"):
            pytest.fail(f"the simulator needs {reason}", pytrace=False)
        pytest.skip(f"the simulator needs {reason}", allow_module_level=True)
