"""What of kb and its optional companions is installed, and what the parts that are missing would add."""

import os
import platform
import shutil
import sys
from collections.abc import Mapping

from kb.core.record import NamedTuple
from kb.machine.software import installed_versions

# Each with what it is for (a key of i18n under ``doctor.for.``), and the extra that brings it; None: part of kb itself.
PACKAGES = (
    ("pyyaml", "config", None),
    ("pathspec", "folders", None),
    ("jsonschema", "rules", None),
    ("nvidia_ml_py", "gpu", None),
    ("psutil", "processes", None),
    ("shtab", "completion", None),
    ("torch", "simulate", "torch"),
    ("transformers", "simulate", "torch"),
    ("accelerate", "simulate", "torch"),
    ("peft", "adapters", "torch"),
    ("bitsandbytes", "quantized", "torch"),
    ("rich", "monitor", "monitor"),
    ("prometheus_client", "prometheus", "monitor"),
    ("ray", "cluster", "ray"),
    ("huggingface_hub", "online", "hub"),
    ("pygls", "editor", "lsp"),
    ("mkdocs_material", "site", "docs"),
)
NAMESAKES = ("kb", "kb_manager")  # packages of the index that install a module called kb
OWN_WORDS = "know before you run"  # this package's first line
COMPILERS = ("c++", "g++", "clang++")


class Package(NamedTuple):
    """``version`` is None where it is missing. ``purpose`` is a key of i18n under ``doctor.for.``."""

    name: str
    version: str | None
    purpose: str
    extra: str | None


class Installation(NamedTuple):
    """This Python and what lies beside kb in it. Paths are None where there is nothing."""

    python: str
    platform: str
    libyaml: bool
    packages: tuple[Package, ...]
    compiler: str | None
    cuda_build: bool | None  # of torch; None without torch
    cache_folder: str
    cache_writable: bool
    foreign: tuple[str, ...] = ()  # other packages' modules of the name kb: where they lie, or who installs them


def look_around(cache: str) -> Installation:
    """Reads metadata and file names; imports no package but PyYAML. ``cache`` is the folder of kept results."""
    import yaml

    versions = installed_versions()
    torch = versions.get("torch")
    return Installation(
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        libyaml=hasattr(yaml, "CSafeLoader"),
        packages=tuple(
            Package(name.replace("_", "-"), versions.get(name), purpose, extra) for name, purpose, extra in PACKAGES
        ),
        compiler=next(filter(None, map(shutil.which, [os.environ.get("CXX") or COMPILERS[0], *COMPILERS])), None),
        cuda_build=None if torch is None else not torch.endswith("+cpu") and _has_cuda_library(),
        cache_folder=cache,
        cache_writable=_writable(cache),
        foreign=_foreign(versions),
    )


def _foreign(versions: Mapping[str, str]) -> tuple[str, ...]:
    """What else is called kb: installed packages that bring such a module, and modules on Python's path."""
    own = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = [f"{name.replace('_', '-')} {versions[name]}" for name in NAMESAKES if name in versions]
    for entry in dict.fromkeys(os.path.abspath(entry) for entry in sys.path):
        for name in ("kb/__init__.py", "kb.py"):
            path = os.path.join(entry, *name.split("/"))
            if os.path.realpath(os.path.dirname(path)) != own and _is_foreign(path):
                found.append(path)
    return tuple(dict.fromkeys(found))


def _is_foreign(path: str) -> bool:
    """Whether a module of the name is another package's, and not a second copy of this one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return OWN_WORDS not in stream.read(200)
    except OSError:
        return False


def _has_cuda_library() -> bool:
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    folder = os.path.join(os.path.dirname(spec.origin), "lib")
    return any(os.path.exists(os.path.join(folder, name)) for name in ("libtorch_cuda.so", "torch_cuda.dll"))


def _writable(folder: str) -> bool:
    """Whether it, or the nearest folder above that is there, takes files."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
