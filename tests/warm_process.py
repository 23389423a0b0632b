"""The parent of warm processes, run as a file by :mod:`warm_runs`: has imported kb, and forks for each request.

    python warm_process.py SOCKET     a file descriptor; it ends where the other end is closed

A request is one message: JSON, and the child's standard input, output and error. The answer is two lines: the child's
process id when it starts, and its exit code when it has ended.
"""

import atexit
import collections
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading

LONGEST = 1 << 20  # bytes of a request
# These import torch or Ray, or are started as programs themselves; the last two import an editor's and a site's
# libraries, which take as long as all of kb, and no command that is asked for here needs them.
LEFT_OUT = (
    "kb.torch_runs", "kb.transformers", "kb.integrations.trainer", "kb.integrations.editor", "kb.guide.hooks",
)  # fmt: skip


def serve(asked: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for each request; in a child the module and the arguments that it is to run, None in the parent's end."""
    while True:
        text, files, _, _ = socket.recv_fds(asked, LONGEST, 3)
        if not text:
            return None
        child = os.fork()
        if not child:
            asked.close()
            return _become(json.loads(text), files)
        for file in files:
            os.close(file)
        asked.sendall(b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict, files: list[int]) -> tuple[str, list[str]]:
    """Take everything of the request that a process of its own would have been started with."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    if not request["among_tests"]:
        checkout_kept.keep_as_told()
    elif not request["found"]:
        checkout_kept.keep_nowhere()
    sys.path.insert(0, request["cwd"])  # as `python -m` does
    return request["module"], request["arguments"]


def import_kb() -> None:
    """Every module of kb that a command may need; nothing is run but their imports."""
    kb = importlib.import_module("kb")
    folders = [(kb.__path__, "kb.")]
    while folders:
        for found in pkgutil.iter_modules(*folders.pop()):
            # `kb.check` and its like are left to be run
            program = found.name.count(".") == 1 and not found.ispkg
            if not program and not found.name.endswith("__main__") and found.name not in LEFT_OUT:
                with contextlib.suppress(ImportError):  # of an extra that is not installed
                    module = importlib.import_module(found.name)
                    if found.ispkg:
                        folders.append((module.__path__, f"{found.name}."))


def load_rules() -> None:
    """The checkout's rules and facts as a command has them, read once for all that is forked."""
    knowledge = importlib.import_module("kb.session.knowledge")
    load, known = knowledge.load_catalog, knowledge.load_catalog()
    for entries in (known.rules, known.facts):
        collections.deque(map(entries.__getitem__, entries), maxlen=0)

    def loaded(rules: object = None, *, whole: bool = False) -> object:
        own = rules is None and not whole and knowledge.current() == checkout_kept.CHECKOUT
        return known if own else load(rules, whole=whole)

    knowledge.load_catalog = loaded


def end(code: int) -> None:
    """As Python ends, but that what was imported is not taken apart: that would copy every page of the parent's."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import checkout_kept  # before what imports of kb's modules what it replaces

    del sys.path[0]  # this folder: a command does not see it
    import_kb()
    checkout_kept.look()
    load_rules()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as of the tests' own processes
    if work := serve(socket.socket(fileno=int(sys.argv[1]))):
        sys.argv[1:] = work[1]
        try:
            runpy.run_module(work[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if not isinstance(ended.code, int | None):
                raise
            end(ended.code or 0)
        else:
            end(0)
