"""What `kb` and `gpu-memory-kb` start: it stands beside the package, so that another package of its name is found out.

PyPI has a `kb` and a `kb-manager` that install a module of the same name. Where one of them comes first, or was
installed over this one, nothing in this package would be asked.
"""

import os
import sys

UNUSABLE = 2
SAID = {
    "en": "kb: the module that Python finds under the name kb is another package's: {path}. Use an environment without "
    "it (python -m venv), or remove it: pip uninstall kb kb-manager && pip install --force-reinstall gpu-memory-kb",
    "ko": "kb: 파이썬이 kb라는 이름으로 찾은 모듈은 다른 패키지의 것입니다: {path}. 그것이 없는 가상 환경"
    "(python -m venv)을 쓰거나 지우십시오: pip uninstall kb kb-manager && pip install --force-reinstall gpu-memory-kb",
}


def main() -> int:
    """Start the program, or say whose module stands in its place: exit code 2."""
    _leave_out_folder_of_scripts()
    try:
        import kb

        own = getattr(kb, "PROJECT", None) == "gpu-memory-kb"
        path = (kb.__file__ or str(list(kb.__path__))) if not own else ""
    except Exception as error:  # another package's code ran: whatever it raises, it is not this one's
        own, path = False, f"{type(error).__name__}: {error}"
    if not own:
        spoken = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
        print(SAID["ko" if spoken.startswith("ko") else "en"].format(path=path), file=sys.stderr)
        return UNUSABLE
    from kb.__main__ import main as start

    return start()


def _leave_out_folder_of_scripts() -> None:
    """Take the folder that this was started from off the path, where Python puts it first.

    A folder of programs may hold a ``json.py`` of somebody's own, which would stand in for Python's. And every import
    would look there in vain.
    """
    if sys.path and sys.argv and sys.path[0] == os.path.dirname(os.path.realpath(sys.argv[0])):
        del sys.path[0]
