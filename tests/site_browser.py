"""Chromium, headless, with an account of what a page asked for and complained of."""

import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from site_needs import browser_driver, browser_program
from site_server import Server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PATIENCE = 120  # seconds; a busy machine is slow to start Python in a page
PHONE = (390, 844)
DESKTOP = (1280, 900)
# nothing but the site itself can be reached, whatever asks
_ALONE = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-features=OptimizationHints,Translate,MediaRouter", f"--host-resolver-rules={_ALONE}",
)  # fmt: skip


# The page itself looks again and again, for a second at a time: each question from outside passes three processes.
_WAIT = """
const given = arguments, end = performance.now() + 1000;
return new Promise((done, fail) => {
  const look = (found) => found || performance.now() > end ? done(found) : setTimeout(again, 20);
  const again = () => { try { look((function () { return EXPRESSION }).apply(null, given)) } catch (e) { fail(e) } };
  again();
});
"""
# what chromedriver says of a page that was left while it was asked
_LEFT = re.compile("document unloaded|aborted by navigation|execution context", re.IGNORECASE)


class Browser:
    """One window. Pages start in the light scheme, at desktop width, with nothing remembered."""

    def __init__(self, driver: "Chrome", server: Server) -> None:
        self.driver, self.server = driver, server

    def visit(self, path: str, *, dark: bool = False, size: tuple[int, int] = DESKTOP, before: str = "") -> None:
        """Open a page of the site afresh; ``before`` is a script that runs ahead of its own."""
        if self.driver.current_url.partition("#")[0] == (self.server.address + path).partition("#")[0]:
            self.driver.get("about:blank")  # an address that differs in its fragment alone would not load again
        elif dark:  # the page that is left would note the scheme that it is shown in, for the next one
            self.driver.get("about:blank")
        self.forget()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._tell("Emulation.setEmulatedMedia", features=scheme)
        self.resize(size)
        first = f"try {{ localStorage.clear() }} catch {{}};{before}"
        script = self._tell("Page.addScriptToEvaluateOnNewDocument", source=first)
        self.driver.get(self.server.address + path)
        self._tell("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self._tell("Emulation.setDeviceMetricsOverride", **given)

    def without_scripts(self, off: bool) -> None:
        self._tell("Emulation.setScriptExecutionDisabled", value=off)

    def ask(self, script: str, *given: Any) -> Any:
        """What a script with a ``return`` gives."""
        return self.driver.execute_script(script, *given)

    def await_answer(self, script: str, *given: Any) -> Any:
        """What the promise gives that the body of an async function makes."""
        body = f"const done = arguments[arguments.length - 1]; (async (...given) => {{ {script} }})(...arguments)"
        whole = f"{body}.then((value) => done({{ value }}), (error) => done({{ error: String(error) }}))"
        answer = self.driver.execute_async_script(whole, *given)
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def wait(self, script: str, *given: Any, seconds: float = PATIENCE) -> Any:
        """The first truthy value of an expression.

        Raises:
            AssertionError: none within ``seconds``.
        """
        from selenium.common.exceptions import WebDriverException

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if found := self.ask(_WAIT.replace("EXPRESSION", script), *given):
                    return found
            except WebDriverException as error:
                if not _LEFT.search(str(error.msg)):
                    raise
        raise AssertionError(f"after {seconds} s still not: {script}")

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus."""
        from selenium.webdriver import ActionChains

        actions = ActionChains(self.driver, duration=0)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def forget(self) -> None:
        """Whatever was asked for and complained of so far."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.server.missing.clear()

    def complaints(self) -> list[str]:
        """Errors in the console since then: scripts that failed, files that are missing, what the policy refused."""
        return [row["message"] for row in self.driver.get_log("browser") if row["level"] in ("SEVERE", "ERROR")]

    def strangers(self) -> list[str]:
        """Addresses of other hosts that were asked for since then."""
        found = []
        for row in self.driver.get_log("performance"):
            message = json.loads(row["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                parts = urlsplit(address)
                if parts.scheme in ("http", "https", "ws", "wss") and not address.startswith(self.server.address):
                    found.append(address)
        return found

    def _tell(self, command: str, **given: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, given)


@contextmanager
def start_browser(server: Server) -> Iterator[Browser]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser_program() or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="kb-chromium-", ignore_cleanup_errors=True) as profile:
        for argument in (*_QUIET, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(browser_driver()))
        driver.set_script_timeout(PATIENCE)
        driver.set_page_load_timeout(PATIENCE)
        try:
            yield Browser(driver, server)
        finally:
            driver.quit()
