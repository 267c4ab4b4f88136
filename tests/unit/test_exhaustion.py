"""A container without a thread left: nobody who listens stops listening, and a probe is answered all the same."""

import contextlib
import os
import resource
import socket
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica import wait_for

from kvpool_agent import descriptors
from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import Busy, EnginePort, Port
from kvpool_agent.flows.attach import EngineHandler, Hooks
from kvpool_agent.flows.certify import Certification, IdentityPlace
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slabs
from kvpool_agent.supervisor import Probes
from kvpool_client import wire
from kvpool_client.session import report_bare
from kvpool_contract.config import AgentConfig, Members, Tls

WAIT = 10.0
HOOKS = Hooks(lambda _: None, lambda _: None, lambda: None)


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
    handler = EngineHandler(nobody, nobody, lookup, nobody, nobody, nobody, nobody, HOOKS)
    port: Any = Port()
    handler._ports.add(port)
    handler.load_within(3.0)
    assert (lookup.load_seconds, told.is_set()) == (3.0, False)
    stands_still.set()
    assert told.wait(WAIT)


def test_without_a_thread_the_engines_keep_the_deadline_that_they_have(no_threads: threading.Event) -> None:
    nobody: Any = None
    lookup: Any = types.SimpleNamespace(load_seconds=1.0)
    handler = EngineHandler(nobody, nobody, lookup, nobody, nobody, nobody, nobody, HOOKS)
    no_threads.set()
    handler.load_within(3.0)
    assert lookup.load_seconds == 3.0


def test_an_engine_whose_probe_finds_no_thread_comes_again_and_is_probed_then(no_threads: threading.Event) -> None:
    nobody: Any = None
    row, rows = 4096, 4
    probe = ProbeFlow(1, nobody, nobody, Account(), lambda: None)
    memory = ArenaMemory.anonymous(16 * row)
    lookup: Any = types.SimpleNamespace(load_seconds=1.0)
    handler = EngineHandler(Slabs(memory, 0.0), memory, lookup, nobody, Account(), probe, nobody, HOOKS)
    here, there = socket.socketpair()
    port = Port(wire.Channel(here))
    host_pool = os.memfd_create("rows", os.MFD_CLOEXEC)
    os.ftruncate(host_pool, row * rows)
    groups = [{"number": 0, "kind": "full", "window": 0, "block_tokens": 4, "whole": True}]
    header = {"verb": "attach", "versions": [3], "engine": "e", "format": {"of": "a test"}, "row_bytes": row}
    attach = wire.Frame({**header, "rows": rows, "hash_bytes": 32, "groups": groups}, b"", (host_pool,))

    no_threads.set()
    with pytest.raises(Busy):
        handler.attach(attach, port)
    assert (handler.sessions, handler.attaches) == (0, 0)
    no_threads.clear()
    assert handler.attach(attach, port) is not None
    assert (handler.sessions, handler.attaches) == (1, 1)
    # a format without a block size can't be asked for the prompt: that is a verdict, and lookups need not wait for one
    wait_for("a verdict", lambda: probe.snapshot().state == "not_run", WAIT, 0.005)
    os.close(host_pool)
    here.close()
    there.close()


def test_why_an_engine_starts_bare_is_untold_and_it_starts(no_threads: threading.Event) -> None:
    no_threads.set()
    before = threading.enumerate()
    report_bare("/nowhere", "tier_failed", "no thread")
    assert threading.enumerate() == before


def test_a_worker_takes_all_descriptors_that_it_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        descriptors.take_all()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_newcomer_without_a_certificate_and_a_thread_to_wait_for_it_is_held_back_by_neither(
    no_threads: threading.Event, tmp_path: Path
) -> None:
    tls = Tls(mode="Files", cluster="c", k8sNamespace="n")
    config = AgentConfig(version=1, pool="p", arenaBytes=1 << 20, members=Members(file="m"), tls=tls)
    newcomer = Certification(config, "uid", IdentityPlace(tmp_path, tmp_path, -1), Account())
    told: list[str] = []
    no_threads.set()
    newcomer.when_certified(lambda _: told.append("begun"), lambda: told.append("without"))
    assert told == ["without"]
