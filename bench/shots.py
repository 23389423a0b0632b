"""Screenshots of the guide's main pages, to be looked at: both languages, light and dark, wide and phone.

    python bench/shots.py SITE FOLDER [--pages memory,case] [--widths 1280,390] [--schemes light,dark]

A maintainer's tool: needs selenium with Chromium. SITE is a built site; the pictures go into FOLDER.
"""

import argparse
import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

PAGES = (
    "", "gpus", "gpus/rtx-3090", "models", "models/mt5-base", "memory", "inference", "trouble", "trouble/questions",
    "trouble/checklists", "case", "rules", "errata", "accuracy", "systems", "playground", "data",
)  # fmt: skip
TALLEST = 6000  # pixels


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=lambda text: text.split(","), default=PAGES)
    parser.add_argument("--widths", type=lambda text: [int(part) for part in text.split(",")], default=[1280, 390])
    parser.add_argument("--schemes", type=lambda text: text.split(","), default=["light", "dark"])
    parser.add_argument("--languages", type=lambda text: text.split(","), default=["ko", "en"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with served(options.site) as address, browser() as chrome:
        for language in options.languages:
            for page in options.pages:
                path = ("en/" if language == "en" else "") + (f"{page}/" if page else "")
                for scheme in options.schemes:
                    chrome.execute_cdp_cmd(
                        "Emulation.setEmulatedMedia",
                        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
                    )
                    for width in options.widths:
                        name = f"{language}-{page.replace('/', '-') or 'index'}-{width}-{scheme}.png"
                        print(name, shoot(chrome, f"{address}/{path}", width, options.folder / name))


def shoot(chrome: object, address: str, width: int, target: Path) -> str:
    """One page from top to bottom; says where it is wider than the window."""
    import base64

    def emulate(height: int) -> None:
        chrome.execute_cdp_cmd(  # type: ignore[attr-defined]
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    emulate(1000)
    chrome.get(address)  # type: ignore[attr-defined]
    root = "document.documentElement"
    high, wide = chrome.execute_script(f"return [{root}.scrollHeight, {root}.scrollWidth]")  # type: ignore[attr-defined]
    emulate(min(high, TALLEST))
    picture = chrome.execute_cdp_cmd("Page.captureScreenshot", {})["data"]  # type: ignore[attr-defined]
    target.write_bytes(base64.b64decode(picture))
    return f"{wide} pixels wide: scrolls sideways" if wide > width else ""


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def browser() -> Iterator[object]:
    import shutil

    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(flag)
    for flag in ("--disable-background-networking", "--disable-component-update", "--disable-sync"):
        options.add_argument(flag)
    driver = shutil.which("chromedriver")  # named, so that nothing is looked up on the net
    chrome = webdriver.Chrome(options=options, service=Service(driver) if driver else None)
    try:
        yield chrome
    finally:
        chrome.quit()


if __name__ == "__main__":
    main()
