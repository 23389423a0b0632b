"""Detects the machine in a process of its own and prints it as JSON; the arguments are those of ``detect``, as JSON.

With it: which modules that took (``imported``).
"""

import json
import sys
from typing import Any

from native.hardware import gpus


def plain(value: Any) -> Any:
    """Named tuples as objects, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def main() -> None:
    arguments = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    catalogue = gpus()
    before = set(sys.modules)
    from kb.machine.detect import detect

    machine = detect(catalogue, **arguments)
    watched = ("pynvml", "ctypes", "subprocess", "threading", "torch")
    imported = [name for name in watched if name in sys.modules and name not in before]
    print(json.dumps({**plain(machine), "imported": imported}))


if __name__ == "__main__":
    main()
