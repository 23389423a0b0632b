"""Tables that take long to compute are kept by what they rest on."""

import subprocess
import sys

from kb.guide import all_fits, choices

MARKS = "from kb.guide import all_fits, choices; print(choices._mark(), all_fits._mark())"


def test_every_process_finds_what_another_kept() -> None:
    run = subprocess.run([sys.executable, "-c", MARKS], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == [choices._mark(), all_fits._mark()]
