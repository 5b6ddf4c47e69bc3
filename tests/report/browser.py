"""A real browser for tests: Debian's chromium, driven through its chromedriver in the W3C's WebDriver protocol.

The protocol is JSON over HTTP to this machine, so that the standard library is enough.
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
    """One page in a browser."""

    def __init__(self, address: str, profile: Path) -> None:
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = _post(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"{address}/session/{answer['sessionId']}"

    def open(self, file: Path, width: int = 1200, height: int = 900, **media: str) -> None:
        """Open a local file in a window of this size; ``prefers_color_scheme="dark"`` and the like by name."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self._devtools("Emulation.setEmulatedMedia", features=features)
        _post(f"{self.session}/url", {"url": file.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns in the page."""
        return _post(f"{self.session}/execute/sync", {"script": script, "args": arguments})

    def complaints(self) -> list[str]:
        """Everything that the console has shown since the last time: errors, what the policy blocked, warnings."""
        return [entry["message"] for entry in _post(f"{self.session}/se/log", {"type": "browser"})]

    def picture(self, file: Path, whole: bool = False) -> Path:
        """Take a picture of the window, or of the page from top to bottom."""
        shot = self._devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file

    def print(self, file: Path) -> Path:
        """Print the page as a PDF."""
        file.write_bytes(base64.b64decode(_post(f"{self.session}/print", {"background": True})))
        return file

    def close(self) -> None:
        """Close the browser."""
        urllib.request.urlopen(urllib.request.Request(self.session, method="DELETE"), timeout=60)

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return _post(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile; skips the test, and says so, where none is installed."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs a browser: apt install chromium chromium-driver")
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        line = next(line for line in driver.stdout if "started successfully on port" in line)
        opened = Browser(f"http://127.0.0.1:{line.split()[-1].rstrip('.')}", folder / "profile")
        try:
            yield opened
        finally:
            opened.close()
    finally:
        driver.terminate()
        driver.wait()


def _post(address: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["value"]
