"""The server answers its own page alone: other hosts, other origins and requests without the token are refused."""

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DataError
from rankfold.explore.bundle import Bundle
from rankfold.explore.serve import HOST, PageServer


def answer(text: str) -> dict[str, Any]:
    if text == "bad":
        raise DataError("no words: type a sentence.")
    return {"words": text.split()}


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(Bundle({"title": "a run"}, {"a": np.zeros(3, np.uint8)}), answer, token="secret") as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def ask(
    server: PageServer, method: str = "POST", path: str = "/api/sentence", body: Any = None, **headers: str | None
) -> tuple[int, bytes, Any]:
    """Status, content and headers; a header of None is left out."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    sent: dict[str, str | None] = {"Host": f"{HOST}:{server.server_port}", "X-Rankfold-Token": "secret"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes) else json.dumps({"text": "a b"} if body is None else body).encode()
    connection.putrequest(method, path, skip_host=True)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    if method == "POST" and "Content_Length" not in headers:
        connection.putheader("Content-Length", str(len(content)))
    connection.endheaders(content if method == "POST" and len(content) <= 10_000 else None)
    reply = connection.getresponse()
    found = reply.status, reply.read(), reply.headers
    connection.close()
    return found


def test_it_listens_on_the_loopback_address_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/?token=secret"


def test_the_page_and_its_questions_are_answered(server: PageServer) -> None:
    status, content, headers = ask(server, "GET", "/?token=secret", X_Rankfold_Token=None)
    assert status == 200
    assert b"connect-src 'self'" in content
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    status, content, _ = ask(server)
    assert (status, json.loads(content)) == (200, {"words": ["a", "b"]})
    own = f"http://localhost:{server.server_port}"
    assert ask(server, Origin=own, Host=f"localhost:{server.server_port}")[0] == 200
    assert ask(server, body={"text": "bad"})[0] == 422


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X_Rankfold_Token": None}, "token"),
        ({"X_Rankfold_Token": "guess"}, "token"),
        ({"X_Rankfold_Token": "secret2"}, "token"),
        ({"Host": "evil.example"}, "own address"),
        ({"Host": "evil.example:80"}, "own address"),
        ({"Host": None}, "own address"),
        ({"Origin": "http://evil.example"}, "other pages"),
        ({"Origin": "null"}, "other pages"),
        ({"Origin": "https://127.0.0.1"}, "other pages"),
    ],
)
def test_others_are_refused(server: PageServer, headers: dict[str, str | None], reason: str) -> None:
    status, content, _ = ask(server, **headers)
    assert status == 403
    assert reason in json.loads(content)["error"]
    assert b"words" not in content


def test_the_page_is_refused_without_its_token(server: PageServer) -> None:
    for path in ("/", "/?token=", "/?token=guess", "/?other=secret"):
        assert ask(server, "GET", path)[0] == 403  # the header does not open the page
    assert ask(server, "GET", "/?token=secret", Host="evil.example")[0] == 403
    assert ask(server, "GET", "/other?token=secret")[0] == 404


def test_input_is_bounded(server: PageServer) -> None:
    assert ask(server, body={"text": "x" * 20_000})[0] == 413
    assert ask(server, body={"text": "x" * 3000})[0] == 400
    assert ask(server, body=b"[")[0] == 400
    assert ask(server, body=b"[1]")[0] == 400
    assert ask(server, body={"text": 7})[0] == 400
    assert ask(server, body=b"[" * 5000)[0] == 400
    assert ask(server, Content_Length="-1")[0] == 413
    assert ask(server, Content_Length="many")[0] == 413
    assert ask(server, path="/etc/passwd")[0] == 404
    assert ask(server, "PUT")[0] == 501


def test_a_port_in_use_is_named(server: PageServer) -> None:
    with pytest.raises(DataError, match=f"port {server.server_port} on 127.0.0.1 cannot be served"):
        PageServer(Bundle({}, {}), None, server.server_port)
