"""What the tests of ``kb probe`` share: a scripted trial, the command itself, and who is still running."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from checkout_kept import KEPT
from kb.torch_runs.probe.trial import Limits, Trial
from warm_runs import run_text

GIB = 1 << 30
SOURCE = Path(__file__).parent.parent / "src"
TINY_T5 = {
    "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "vocab_size": 128, "feed_forward_proj": "relu", "tie_word_embeddings": True,
}  # fmt: skip


def scripted(batch: int = 4, seconds: float = 30, **script: Any) -> Trial:
    """A trial whose training takes 5 GiB of a scripted GPU of 8 GiB."""
    return Trial(
        kind="max-batch",
        backend="fake",
        setup={"per_device_train_batch_size": batch},
        model="kobart",
        predicted={"load": {"process_bytes": GIB}, "train": {"process_bytes": 5 * GIB}},
        fake={"limit_bytes": 8 * GIB, **script},
        limits=Limits(seconds),
    )


def own(*words: str, seconds: float = 30, host_bytes: int | None = None) -> Trial:
    """A trial of a command, without a GPU."""
    return Trial(kind="smoke", backend="cpu", setup={}, command=words, limits=Limits(seconds, host_bytes))


def environment(**more: str) -> dict[str, str]:
    """Of this process; what is predicted of a run is kept where other tests find it, and not where users keep it."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": str(KEPT), **more}


def probe(
    folder: Path, *arguments: str, language: str = "en", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``kb probe`` run in a folder."""
    words = ("--lang", language, *arguments) if "--" in arguments else (*arguments, "--lang", language)
    return run_text("kb.probe", *words, environ=environ or environment(), cwd=folder, timeout=300)


def marked(marker: str) -> list[int]:
    """Processes whose command line holds a word that only one test uses."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as stream:
                    line = stream.read()
                with open(f"/proc/{name}/stat", "rb") as stream:
                    zombie = stream.read().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                continue
            if marker.encode() in line and not zombie:
                found.append(int(name))
    return found


def eventually(holds: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something comes to hold within a generous time."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def require(packages: Sequence[str]) -> None:
    """Skip the calling test where a package is missing; under CI fail it."""
    import importlib.util

    missing = ", ".join(name for name in packages if importlib.util.find_spec(name) is None)
    if missing and os.environ.get("CI"):
        pytest.fail(f"missing: {missing}", pytrace=False)
    if missing:
        pytest.skip(f"missing: {missing}")
