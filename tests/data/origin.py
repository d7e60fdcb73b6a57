"""A web server on loopback with ranges, and with everything that can go wrong."""

import http.server
import re
import socket
import struct
import time


class Origin(http.server.ThreadingHTTPServer):
    """Files by path; knobs for everything that can go wrong."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked: list[tuple[str, str | None]] = []
        self.break_after: int | None = None
        self.reset, self.ranges, self.announces = False, True, True
        self.shift = 0  # how far beyond the start of a range it sends

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is part of the tests."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.path not in self.server.files:
            self.send_error(404)
            return
        body = self.server.files[self.path]
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.server.ranges else 0
        self.send_response(206 if start else 200)
        if start:
            start += self.server.shift
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if self.server.announces:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start:][: self.server.break_after])
        if self.server.reset:
            time.sleep(0.1)  # what was sent arrives before the reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, *_: object) -> None:
        pass
