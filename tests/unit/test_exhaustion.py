"""A container without a thread left: nobody who listens stops listening, and a probe is answered all the same."""

import contextlib
import socket
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import EnginePort
from kvpool_agent.flows.attach import EngineHandler
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.supervisor import Probes

WAIT = 10.0


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While the event is set no thread can be started."""
    none_left, start = threading.Event(), threading.Thread.start

    def start_or_not(thread: threading.Thread) -> None:
        if none_left.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    yield none_left
    none_left.clear()


def ended(sock: socket.socket) -> bool:
    """Whether the other side closes the connection without a word; False where it waits for ours."""
    sock.settimeout(WAIT)
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


def test_probes_are_answered(no_threads: threading.Event) -> None:
    probes = Probes("127.0.0.1", 0)
    probes.start()
    no_threads.set()
    for _ in range(20):  # more than there are places
        with socket.create_connection(probes._socket.getsockname(), timeout=WAIT) as sock:
            sock.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200 OK")
    probes._socket.close()


@pytest.mark.parametrize("kind", ["peers", "engine"])
def test_listeners_turn_away_whom_they_have_no_thread_for_and_take_the_next(
    no_threads: threading.Event, tmp_path: Path, kind: str
) -> None:
    nobody: Any = object()
    account = Account()
    if kind == "peers":
        server: PeerServer | EnginePort = PeerServer("127.0.0.1", 0, nobody, count=account.count)
    else:
        server = EnginePort(tmp_path / "sock", nobody, count=account.count)
    server.start()

    def connected() -> socket.socket:
        if isinstance(server, PeerServer):
            return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(tmp_path / "sock"))
        return sock

    no_threads.set()
    for _ in range(300):  # more than there are places
        with connected() as sock:
            assert ended(sock)
    assert account.counters == {"accepts_failed": 300}
    no_threads.clear()
    with connected() as sock:
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):  # it is listened to: nothing has been said yet
            sock.recv(1)
    server.close()


def test_an_engine_that_stands_still_holds_up_nobody_who_tells_a_new_deadline() -> None:
    stands_still, told = threading.Event(), threading.Event()

    class Port:
        def send(self, header: dict[str, Any]) -> None:
            assert header == {"verb": "limits", "load_seconds": 3.0}
            assert stands_still.wait(WAIT)
            told.set()

    nobody: Any = None
    lookup: Any = types.SimpleNamespace(load_seconds=1.0)
    handler = EngineHandler(nobody, nobody, lookup, nobody, nobody, nobody, nobody, nobody)
    port: Any = Port()
    handler._ports.add(port)
    handler.load_within(3.0)
    assert (lookup.load_seconds, told.is_set()) == (3.0, False)
    stands_still.set()
    assert told.wait(WAIT)


def test_without_a_thread_the_engines_keep_the_deadline_that_they_have(no_threads: threading.Event) -> None:
    nobody: Any = None
    lookup: Any = types.SimpleNamespace(load_seconds=1.0)
    handler = EngineHandler(nobody, nobody, lookup, nobody, nobody, nobody, nobody, nobody)
    no_threads.set()
    handler.load_within(3.0)
    assert lookup.load_seconds == 3.0
