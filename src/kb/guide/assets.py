"""What pages load besides their own: fetched from npm by a lock file, checked by hash, served from the site itself."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable

from kb.core.text import UserError

# what of a package is served, and where under assets/vendor/
SERVED = {
    "pyodide/pyodide.mjs": "pyodide/pyodide.mjs",
    "pyodide/pyodide.asm.mjs": "pyodide/pyodide.asm.mjs",
    "pyodide/pyodide.asm.wasm": "pyodide/pyodide.asm.wasm",
    "pyodide/python_stdlib.zip": "pyodide/python_stdlib.zip",
    "pyodide/pyodide-lock.json": "pyodide/pyodide-lock.json",
}
NPM_SECONDS = 600


def fetch_assets(root: str, say: Callable[[str], None]) -> bool:
    """Fill ``docs/theme/assets/vendor`` of the checkout ``root``; nothing is done where the lock has not changed.

    Returns:
        Whether anything was fetched.

    Raises:
        UserError: npm is missing or fails.
    """
    vendor = os.path.join(root, "docs", "theme", "assets", "vendor")
    stamp = os.path.join(vendor, "stamp")
    wanted = _mark(root)
    if _read(stamp) == wanted:
        return False
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("site.no_npm")
    folder = os.path.join(root, "docs", "npm")
    say("npm ci")
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)
    shutil.rmtree(vendor, ignore_errors=True)
    for source, target in SERVED.items():
        _copy(os.path.join(folder, "node_modules", source), os.path.join(vendor, target))
    _bundle(root, folder, os.path.join(vendor, "editor.mjs"))
    _run([_node(), "snapshot.mjs", os.path.join(vendor, "pyodide", "snapshot.bin")], folder)
    with open(stamp, "w", encoding="utf-8") as stream:
        stream.write(wanted)
    return True


def _bundle(root: str, folder: str, target: str) -> None:
    """The editor's modules as one file."""
    esbuild = os.path.join(folder, "node_modules", "esbuild", "bin", "esbuild")
    entry = os.path.join(folder, "editor.mjs")
    options = ["--bundle", "--format=esm", "--minify", "--legal-comments=linked", "--log-level=error"]
    _run([_node(), esbuild, entry, *options, f"--outfile={target}"], root)


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        raise UserError("site.no_npm")
    return node


def _mark(root: str) -> str:
    """A hash of what decides the assets."""
    seen = hashlib.sha256(repr(sorted(SERVED.items())).encode())
    for name in ("package-lock.json", "editor.mjs", "snapshot.mjs"):
        with open(os.path.join(root, "docs", "npm", name), "rb") as stream:
            seen.update(stream.read())
    return seen.hexdigest()


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return None


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _run(command: list[str], folder: str) -> None:
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError("site.npm_failed", command=command[0], reason=str(error)) from None
    if run.returncode:
        reason = (run.stderr or run.stdout).strip()[-400:]
        raise UserError("site.npm_failed", command=" ".join(command[:2]), reason=reason)
