"""The page from a server of the standard library: on the loopback address alone, for whoever has its token.

A request is answered only if it names this very host and port, comes from this page or from no page at all, and
carries the token. Input is bounded; text that is typed is data to the model and never anything else.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.explore.bundle import Bundle, page

HOST = "127.0.0.1"
MOST_BYTES = 10_000  # of a request's body
MOST_CHARACTERS = 2_000  # of a sentence
WAIT = 10  # seconds for a request to arrive

Answer = Callable[[str], dict[str, Any]]


class PageServer(ThreadingHTTPServer):
    """A bundle and the function that answers typed sentences, on a port of this machine."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, bundle: Bundle, answer: Answer | None, port: int = 0, *, token: str | None = None) -> None:
        self.token = secrets.token_urlsafe(24) if token is None else token
        self.content = page(bundle, token=self.token).encode()
        self.answer, self.one_at_a_time = answer, threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise DataError(
                f"port {port} on {HOST} cannot be served: {error.strerror}.\n  Give another --port."
            ) from None

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "rankfold", ""
    timeout = WAIT

    def do_GET(self) -> None:
        """The page itself; it comes with the token in its address."""
        found = urlsplit(self.path)
        if not self._trusted(parse_qs(found.query).get("token", [""])[0]):
            return
        if found.path != "/":
            self._refuse(404, "there is nothing at this address")
            return
        self._send(200, "text/html; charset=utf-8", self.server.content)

    def do_POST(self) -> None:
        """The answer to a typed sentence."""
        if not self._trusted(self.headers.get("X-Rankfold-Token", "")):
            return
        if urlsplit(self.path).path != "/api/sentence" or self.server.answer is None:
            self._refuse(404, "there is nothing at this address")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or not 0 < int(length) <= MOST_BYTES:
            self._refuse(413, f"a sentence of at most {MOST_CHARACTERS:,} characters was expected")
            return
        try:
            content = json.loads(self.rfile.read(int(length)))
            text = content["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
            self._refuse(400, f'JSON with "text", at most {MOST_CHARACTERS:,} characters, was expected')
            return
        try:
            with self.server.one_at_a_time:
                found = self.server.answer(text)
        except (DataError, DomainError, ShapeError, UnsupportedError) as error:
            self._refuse(422, str(error))
            return
        self._send(200, "application/json", json.dumps(found).encode())

    def _trusted(self, token: str) -> bool:
        """Whether host, origin and token are ours; if not, the request is refused."""
        own = {f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        if self.headers.get("Host", "") not in own:
            self._refuse(403, "this server answers to its own address alone")
            return False
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in own}:
            self._refuse(403, "requests from other pages are refused")
            return False
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(403, "the token is missing or wrong: open the address that rankfold explore printed")
            return False
        return True

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True
        self._send(status, "application/json", json.dumps({"error": reason}).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: requests hold the token."""


def serve(bundle: Bundle, answer: Answer | None, *, port: int = 0, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C; the address is printed once the server is there."""
    with PageServer(bundle, answer, port) as server:
        print(server.address, flush=True)
        say("open this address in a browser; Ctrl-C ends the server")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("ended")
    return 0
