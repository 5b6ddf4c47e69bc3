"""Fixtures: the real data if available, an empty cache per test, and a local HTTP server."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from equipoise.data.catalog import CATALOG, DatasetInfo, RawFile
from tests.real_data import require


@pytest.fixture(scope="session")
def real_data() -> Path:
    return require(*(name for name, info in CATALOG.items() if info.files))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "equipoise" / "data" / "raw"


class Server:
    """Serves ``content`` by name, after one fault per request: "cut", "unavailable" or "wrong"."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.content: dict[str, bytes] = {}
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self.requests: list[str] = []

    def offer(self, path: str, content: bytes) -> RawFile:
        name = path.rpartition("/")[2]
        self.content[name] = content
        return RawFile(path, hashlib.sha256(content).hexdigest(), f"{self.address}/{name}")

    def offer_dataset(self) -> DatasetInfo:
        files = (self.offer("tiny/one.bin", b"one" * 1000), self.offer("tiny/raw/two.bin", b"two" * 50_000))
        return DatasetInfo("tiny", "Tiny", 1, 1, 1, 1, (1, 0, 0), 0, files)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            offered.requests.append(name)
            fault = offered.faults[name].pop(0) if offered.faults[name] else ""
            content = offered.content[name]
            if fault == "unavailable":
                return self.send_error(503)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if fault == "wrong":
                content = bytes(len(content))
            self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
            return None

        def log_message(self, *args: object) -> None:
            """Do not log requests."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    offered = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield offered
    http.shutdown()
    http.server_close()
    thread.join()
