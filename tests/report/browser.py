"""A headless chromium for tests, driven through chromedriver with the W3C WebDriver protocol.

The protocol is JSON over HTTP, so that the standard library suffices.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
)


class Browser:
    """A WebDriver session with one window."""

    def __init__(self, driver_url: str, profile: Path) -> None:
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        response = _post(f"{driver_url}/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = f"{driver_url}/session/{response['sessionId']}"

    def open(self, file: Path, width: int = 1200, height: int = 900, **media: str) -> None:
        """Open a local file in a window of this size, with media features such as ``prefers_color_scheme="dark"``."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self._devtools("Emulation.setEmulatedMedia", features=features)
        _post(f"{self.session}/url", {"url": file.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return its result."""
        return _post(f"{self.session}/execute/sync", {"script": script, "args": arguments})

    def console_messages(self) -> list[str]:
        """Console messages since the last call: errors, warnings, and what the policy blocked."""
        return [entry["message"] for entry in _post(f"{self.session}/se/log", {"type": "browser"})]

    def screenshot(self, file: Path, full_page: bool = False) -> Path:
        """Save a screenshot of the window, or of the full page."""
        response = self._devtools("Page.captureScreenshot", captureBeyondViewport=full_page)
        file.write_bytes(base64.b64decode(response["data"]))
        return file

    def print_pdf(self, file: Path) -> Path:
        """Print the page to a PDF."""
        file.write_bytes(base64.b64decode(_post(f"{self.session}/print", {"background": True})))
        return file

    def close(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.session, method="DELETE"), timeout=60)

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return _post(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile; skips the test if chromium or chromedriver is not installed."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs a browser: apt install chromium chromium-driver")
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        browser = Browser(f"http://127.0.0.1:{line.split()[-1].rstrip('.')}", folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()


def _post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["value"]
