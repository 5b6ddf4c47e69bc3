"""A headless chromium for tests, driven with the DevTools protocol.

The protocol is JSON over a pair of pipes (``--remote-debugging-pipe``), so that the standard library suffices.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
COMMANDS, REPLIES = 3, 4  # file descriptors on which chromium reads and writes


class Browser:
    """A browser with one window."""

    def __init__(self, commands: int, replies: int) -> None:
        self.commands, self.replies = os.fdopen(commands, "wb", buffering=0), os.fdopen(replies, "rb")
        self.number, self.session, self.events = 0, None, []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, file: Path, width: int = 1200, height: int = 900, **media: str) -> None:
        """Open a local file in a window of this size, with media features such as ``prefers_color_scheme="dark"``."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self._call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self._call("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, with its ``arguments``, and return its result."""
        expression = f"(function () {{ {script} }}).apply(null, {json.dumps(arguments)})"
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse between two points of the window."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def console_messages(self) -> list[str]:
        """Console messages since the page was opened: errors, warnings, and what the policy blocked."""
        self.run("")  # collects the pending events
        names = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in names]

    def screenshot(self, file: Path, full_page: bool = False) -> Path:
        """Save a screenshot of the window, or of the full page."""
        response = self._call("Page.captureScreenshot", captureBeyondViewport=full_page)
        file.write_bytes(base64.b64decode(response["data"]))
        return file

    def print_pdf(self, file: Path) -> Path:
        """Print the page to a PDF."""
        file.write_bytes(base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"]))
        return file

    def _call(self, method: str, **parameters: Any) -> Any:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self.number:
            self.events.append(reply)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self.replies.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return json.loads(text)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile; skips the test if chromium is not installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs a browser: apt install chromium")
    (child_in, parent_out), (parent_in, child_out) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (child_in, child_out)]

    def connect() -> None:
        os.dup2(high[0], COMMANDS)
        os.dup2(high[1], REPLIES)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
        stderr=subprocess.DEVNULL,
        pass_fds=(COMMANDS, REPLIES),
        preexec_fn=connect,  # noqa: PLW1509 - only duplicates descriptors
    )
    for descriptor in (child_in, child_out, *high):
        os.close(descriptor)
    try:
        yield Browser(parent_out, parent_in)
    finally:
        process.terminate()
        process.wait()
