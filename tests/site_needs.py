"""What the site's tests need. Without it they are skipped by name; under CI, where it must be there, they fail."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AXE = ROOT / "docs" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browser_program() -> str | None:
    """Chromium or Chrome, whatever it is called here."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def browser_driver() -> str | None:
    """chromedriver; GitHub's machines keep theirs outside of PATH."""
    folder = os.environ.get("CHROMEWEBDRIVER", "")
    return shutil.which("chromedriver", path=os.pathsep.join((os.environ.get("PATH", ""), folder)))


def require_builder() -> None:
    """Skip where the site cannot be built; fail under CI."""
    absent = [name for name in ("mkdocs", "material", "mkdocs_macros") if importlib.util.find_spec(name) is None]
    if not (ROOT / "docs" / "theme" / "assets" / "vendor" / "stamp").exists():
        absent += [name for name in ("node", "npm") if shutil.which(name) is None]
    _give_up("the site's build", absent)


def require_browser() -> None:
    """Skip where no browser can be driven; fail under CI."""
    absent = [] if importlib.util.find_spec("selenium") else ["selenium"]
    absent += [] if browser_program() else ["chromium"]
    absent += [] if browser_driver() else ["chromedriver"]
    absent += [] if AXE.exists() else ["axe-core (npm ci in docs/npm)"]
    _give_up("the site in a browser", absent)


def _give_up(what: str, absent: list[str]) -> None:
    if not absent:
        return
    reason = f"{what} needs {', '.join(absent)}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
