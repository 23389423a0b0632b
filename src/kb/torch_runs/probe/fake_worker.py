"""A trial on a GPU that is not there: a real process that behaves as a script says, with a limit of its own.

Its memory is what kb predicts times the script's factor.
``python -m kb.torch_runs.probe.fake_worker TRIAL EVENTS``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from kb.torch_runs.probe.events import Teller
from kb.torch_runs.probe.trial import trial_from

LONG_SECONDS = 3600


def main(trial_path: str, events_path: str) -> int:
    with open(trial_path, encoding="utf-8") as stream:
        trial = trial_from(json.load(stream))
    teller, script = Teller(events_path), dict(trial.fake or {})
    if script.get("child"):  # a helper of the run, that would outlive it
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SECONDS})"], start_new_session=True)
    number = trial.workers if trial.kind == "host" else trial.batch
    for phase in ("load", *trial.phases):
        teller.begin(phase)
        if phase != "load":
            _misbehave(script, number)
        time.sleep(float(script.get("seconds", 0)) / (1 + len(trial.phases)))
        factor = script.get("factor", 1.0) * script.get("phases", {}).get(phase, 1.0)
        sizes = {name: round(size * factor) for name, size in trial.predicted.get(phase, {}).items()}
        if sizes and max(sizes.values()) > script.get("limit_bytes", float("inf")):
            needed, limit = max(sizes.values()) / 2**20, script["limit_bytes"] / 2**20
            reason = f"CUDA out of memory. The scripted GPU has {limit:.0f} MiB, this takes {needed:.0f} MiB."
            teller.fault("oom", reason, "gpu")
            return 0
        if sizes:
            teller.sizes(phase, sizes)
    share = script.get("utilisation")
    known = share.get(str(number)) if isinstance(share, dict) else share
    if known is not None:
        teller.fact(utilisation=known)
    teller.done()
    return 0


def _misbehave(script: dict[str, Any], number: int) -> None:
    """Do what the script has for this batch, if anything."""
    if number in script.get("hang_at", ()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(LONG_SECONDS)
    if number in script.get("crash_at", ()):
        raise RuntimeError("scripted: the loss is NaN")
    if number in script.get("kill_at", ()):
        os.kill(os.getpid(), signal.SIGKILL)
    if number in script.get("host_oom_at", ()):
        raise MemoryError("scripted")
    if number in script.get("oom_at", ()):
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB (scripted)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
