"""One question to the signer over HTTPS: bounded, and each way in which no certificate comes is told apart."""

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from authority import DAY, Authority
from trusted import load_pair

from kvpool_agent.identity.credentials import Problem
from kvpool_agent.identity.signer import sign
from kvpool_contract import identity
from kvpool_contract.identity import SignAnswer

WAIT = 10.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@contextlib.contextmanager
def https(authority: Authority, answer: Callable[[bytes], tuple[int, bytes]], **leaf: Any) -> Iterator[str]:
    """A server for `localhost` and what it answers to a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, data = answer(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != identity.SIGN_PATH:
                status = 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    certificate, key = authority.leaf(dns=("localhost",), **leaf)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, certificate + key)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(address: str, trusted: bytes, seconds: float = WAIT) -> SignAnswer:
    return sign(address, trusted, "chat", "secret-token", b"csr", seconds)


def test_the_signers_answer_comes_over_https(authority: Authority) -> None:
    bodies = []

    def answer(body: bytes) -> tuple[int, bytes]:
        bodies.append(identity.decode_request(body))
        return 200, identity.encode_document(SignAnswer(1, "leaf", "bundle"))

    with https(authority, answer) as address:
        assert ask(address, authority.certificate) == SignAnswer(1, "leaf", "bundle")
    assert bodies == [identity.SignRequest(1, "chat", "secret-token", "csr")]


REFUSED = identity.encode_document(identity.SignRefused(1, "other_pool", "It is not in the pool."))


@pytest.mark.parametrize(
    ("status", "data", "reason", "text"),
    [
        (403, REFUSED, "signer_refused", "other_pool: It is not in the pool."),
        (403, b"<html>", "signer_answer", "answers 403"),
        (503, b"", "signer_unreachable", "answers 503"),
        (200, b"{}", "signer_answer", "can't be read"),
        (200, json.dumps({"version": 2, "certificate": "", "bundle": ""}).encode(), "signer_answer", "version 2"),
        (200, b" " * (identity.MAX_ANSWER + 1), "signer_answer", "over the limit"),
    ],
)
def test_what_the_signer_answers_instead_is_told_apart(
    authority: Authority, status: int, data: bytes, reason: str, text: str
) -> None:
    with https(authority, lambda _: (status, data)) as address, pytest.raises(Problem, match=text) as raised:
        ask(address, authority.certificate)
    assert raised.value.reason == reason and "secret-token" not in str(raised.value)


@pytest.mark.parametrize(
    ("begin", "reason"),
    [(-2 * DAY, "signer_expired"), (2 * DAY, "signer_not_yet_valid"), (None, "signer_untrusted")],
)
def test_why_a_signer_is_not_believed_is_told_apart(authority: Authority, begin: Any, reason: str) -> None:
    trusted = authority.certificate if begin is not None else Authority("another").certificate
    leaf = {"begin": datetime.now(UTC) + begin} if begin is not None else {}
    with https(authority, lambda _: (200, b""), **leaf) as address, pytest.raises(Problem) as raised:
        ask(address, trusted)
    assert raised.value.reason == reason


def test_a_signer_of_another_name_is_not_believed(authority: Authority) -> None:
    with https(authority, lambda _: (200, b"")) as address, pytest.raises(Problem) as raised:
        ask(address.replace("localhost", "127.0.0.1"), authority.certificate)
    assert raised.value.reason == "signer_untrusted"


def test_a_signer_that_is_slow_or_away_ends_at_the_deadline(authority: Authority) -> None:
    def slow(_: bytes) -> tuple[int, bytes]:
        time.sleep(1.0)
        return 200, b""

    with https(authority, slow) as address:
        with pytest.raises(Problem, match=r"no answer within 0 s|timed out") as raised:
            ask(address, authority.certificate, 0.3)
        assert raised.value.reason == "signer_unreachable"
    with pytest.raises(Problem) as raised:
        ask(address, authority.certificate, 0.3)
    assert raised.value.reason == "signer_unreachable"
