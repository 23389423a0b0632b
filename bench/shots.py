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
    "", "gpus", "gpus/rtx-3090", "models", "models/mt5-base", "memory", "learn/effective-batch", "learn/lora",
    "inference", "trouble", "trouble/gpu-oom", "trouble/questions", "trouble/checklists", "case", "rules",
    "rules/t5-fp16-overflow", "errata", "accuracy", "sources", "systems", "playground", "contribute", "data",
)  # fmt: skip
TALLEST = 6000  # pixels
SECONDS = 20  # that a page may take to turn dark
SCHEMES = {"light": "default", "dark": "slate"}  # as a reader's system has it, and as the theme calls it


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
                        # the theme keeps the scheme of the first page it showed, and prefers that to the system's;
                        # a page that is still open would write it again
                        chrome.get("about:blank")
                        chrome.execute_cdp_cmd(
                            "Storage.clearDataForOrigin", {"origin": address, "storageTypes": "local_storage"}
                        )
                        target = options.folder / name
                        print(name, shoot(chrome, f"{address}/{path}", width, scheme, target), flush=True)


def shoot(chrome: object, address: str, width: int, scheme: str, target: Path) -> str:
    """One page from top to bottom, in the scheme that is asked for; says where it is wider than the window."""
    import base64

    from selenium.webdriver.support.ui import WebDriverWait

    def emulate(height: int) -> None:
        chrome.execute_cdp_cmd(  # type: ignore[attr-defined]
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    emulate(1000)
    chrome.get(address)  # type: ignore[attr-defined]
    # the theme's script sets the scheme once it is loaded
    scheme_is = f"return document.body.dataset.mdColorScheme === '{SCHEMES[scheme]}'"
    said = f"{target.name}: the page does not turn {scheme}"
    WebDriverWait(chrome, SECONDS).until(lambda shown: shown.execute_script(scheme_is), said)
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
