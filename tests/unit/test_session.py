"""The session with the agent: never blocks its callers, notices a loss, and attaches again by itself."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica import wait_for

from kvpool_client import session, wire

WAIT = 10.0
ATTACHED = {"verb": "attached", "version": 2, "slot_bytes": 4096, "lease_seconds": 2.0, "load_seconds": 5.0}


class Told:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def on_attached(self, attached: session.Attached) -> None:
        self.words.append(f"attached {attached.epoch}")

    def on_event(self, frame: wire.Frame) -> None:
        self.words.append(frame.verb)

    def on_lost(self) -> None:
        self.words.append("lost")


class FakeAgent:
    """The other end of the socket, frame by frame."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self._listening.settimeout(WAIT)

    def accept(self) -> wire.Channel:
        sock, _ = self._listening.accept()
        channel = wire.Channel(sock)
        channel.settimeout(WAIT)
        return channel

    def grant(self, **fields: object) -> wire.Channel:
        """Accepts an attach; closes what came with it."""
        channel = self.accept()
        for descriptor in channel.receive().descriptors:
            os.close(descriptor)
        arena = os.memfd_create("arena", os.MFD_CLOEXEC)
        os.ftruncate(arena, 8192)
        channel.send({**ATTACHED, "arena_bytes": 8192, **fields}, descriptors=[arena])
        os.close(arena)
        return channel

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RETRY_SECONDS", (0.01,))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    made = FakeAgent(tmp_path / "engine.sock")
    yield made
    made.close()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def client(tmp_path: Path, told: Told) -> Iterator[session.Session]:
    null = os.open(os.devnull, os.O_RDONLY)
    made = session.Session(str(tmp_path / "engine.sock"), {"rows": 8}, [null], told)
    made.start()
    yield made
    made.close()
    os.close(null)


def attached(client: session.Session) -> session.Attached:
    found = wait_for("attach", lambda: client.attached, WAIT, 0.005)
    assert found is not None
    return found


def test_an_attach_carries_header_versions_and_descriptor_and_its_grant_is_taken(
    client: session.Session, agent: FakeAgent
) -> None:
    channel = agent.accept()
    frame = channel.receive()
    assert frame.header == {"rows": 8, "verb": "attach", "versions": [2, 3]}
    assert len(frame.descriptors) == 1
    os.close(frame.descriptors[0])
    channel.close()
    granted = agent.grant()
    found = attached(client)
    assert (found.slot_bytes, found.lease_seconds, found.load_seconds, found.arena.size) == (4096, 2.0, 5.0, 8192)
    granted.close()


def test_without_a_session_nothing_is_posted_and_a_call_gives_none_at_once(client: session.Session) -> None:
    assert not client.post({"verb": "store"})
    assert client.call({"verb": "load"}, b"", WAIT) is None


def test_a_call_gets_its_own_answer_and_other_frames_go_to_the_listener(
    client: session.Session, agent: FakeAgent, told: Told
) -> None:
    channel = agent.grant()
    attached(client)
    answers: dict[int, wire.Frame | None] = {}

    def ask(n: int) -> None:
        answers[n] = client.call({"verb": "load", "n": n}, b"", WAIT)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    calls = [channel.receive().header for _ in range(2)]
    channel.send({"verb": "copied", "job": 1})
    for header in reversed(calls):
        channel.send({"verb": "leased", "call": header["call"], "n": header["n"]})
    for thread in threads:
        thread.join()
    assert {n: frame.header["n"] for n, frame in answers.items() if frame} == {0: 0, 1: 1}
    wait_for("event", lambda: "copied" in told.words, WAIT, 0.005)
    channel.close()


def test_a_call_without_an_answer_ends_after_its_seconds_or_with_the_session(
    client: session.Session, agent: FakeAgent
) -> None:
    channel = agent.grant()
    attached(client)
    assert client.call({"verb": "load"}, b"", 0.01) is None
    answers: list[wire.Frame | None] = []
    thread = threading.Thread(target=lambda: answers.append(client.call({"verb": "load"}, b"", 60.0)))
    thread.start()
    channel.receive(), channel.receive()
    channel.close()
    thread.join(WAIT)
    assert answers == [None]


def test_a_lost_session_is_told_once_and_the_next_attach_has_another_epoch(
    client: session.Session, agent: FakeAgent, told: Told
) -> None:
    for _ in range(3):
        channel = agent.grant()
        found = attached(client)
        channel.close()
        wait_for("loss", lambda found=found: client.attached is not found, WAIT, 0.005)
        assert not found.arena.retain()
    assert told.words == ["attached 1", "lost", "attached 2", "lost", "attached 3", "lost"]


def test_frames_of_an_old_session_are_not_sent_in_a_new_one(client: session.Session, agent: FakeAgent) -> None:
    first = agent.grant()
    old = attached(client)
    client._outbox.put((old.epoch - 1, {"verb": "stale"}, b""))
    assert client.post({"verb": "fresh"})
    assert first.receive().verb == "fresh"
    first.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"version": 9},
        {"verb": "welcome"},
        {"arena_bytes": 1 << 40},
        {"slot_bytes": "many"},
    ],
    ids=str,
)
def test_a_grant_that_cannot_be_used_is_no_session_and_is_tried_again(
    client: session.Session, agent: FakeAgent, told: Told, answer: dict[str, object]
) -> None:
    bad = agent.grant(**answer)
    good = agent.grant()
    assert attached(client).epoch
    assert told.words[-1].startswith("attached") and "lost" not in told.words
    bad.close()
    good.close()


def test_bytes_that_are_no_frame_end_the_session_and_it_comes_back(client: session.Session, agent: FakeAgent) -> None:
    channel = agent.grant()
    attached(client)
    channel._socket.sendall(wire._LENGTHS.pack(100_000, 0) + b"[" * 100_000)
    again = agent.grant()
    attached(client)
    channel.close()
    again.close()


def test_a_full_queue_refuses_and_never_blocks(
    tmp_path: Path, agent: FakeAgent, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "QUEUE_FRAMES", 2)
    monkeypatch.setattr(session.Session, "_write", lambda self: None)  # nobody empties the queue
    client = session.Session(str(tmp_path / "engine.sock"), {}, [], told)
    client.start()
    channel = agent.grant()
    attached(client)
    assert [client.post({"verb": "x"}) for _ in range(3)] == [True, True, False]
    client.close()
    channel.close()


def test_a_bare_start_is_reported_when_the_agent_comes(tmp_path: Path) -> None:
    session.report_bare(str(tmp_path / "engine.sock"), "no_shm_room", "d" * 1000)
    late = FakeAgent(tmp_path / "engine.sock")
    channel = late.accept()
    assert channel.receive().header == {"verb": "bare", "reason": "no_shm_room", "detail": "d" * 500}
    channel.send({"verb": "noted"})
    channel.close()
    late.close()


def test_a_paused_session_is_over_at_once_and_comes_back_with_its_new_header_when_it_is_wanted(
    client: session.Session, agent: FakeAgent, told: Told
) -> None:
    first = agent.grant()
    attached(client)
    client.pause({"rows": 9})
    assert client.attached is None
    assert not client.post({"verb": "store"})
    with pytest.raises(wire.WireError):
        first.receive()
    agent._listening.settimeout(0.3)
    with pytest.raises(TimeoutError):
        agent.accept()
    agent._listening.settimeout(WAIT)
    client.resume()
    channel = agent.accept()
    frame = channel.receive()
    os.close(frame.descriptors[0])
    assert frame.header == {"rows": 9, "verb": "attach", "versions": [2, 3]}
    channel.close()
    first.close()


def test_an_attach_that_is_granted_for_a_header_of_before_is_not_taken(
    client: session.Session, agent: FakeAgent, told: Told
) -> None:
    channel = agent.accept()
    os.close(channel.receive().descriptors[0])
    client.pause({"rows": 9})
    client.resume()
    arena = os.memfd_create("arena", os.MFD_CLOEXEC)
    os.ftruncate(arena, 8192)
    channel.send({**ATTACHED, "arena_bytes": 8192}, descriptors=[arena])
    os.close(arena)
    again = agent.accept()
    frame = again.receive()
    os.close(frame.descriptors[0])
    assert frame.header["rows"] == 9
    assert told.words == []
    channel.close()
    again.close()


def test_who_leaves_waits_for_nobody_and_comes_back_no_more(client: session.Session, agent: FakeAgent) -> None:
    channel = agent.grant()
    wait_for("the attach", lambda: client.attached is not None, WAIT, 0.005)
    client.leave()
    with pytest.raises(wire.WireError):
        channel.receive()
    wait_for("the end of its threads", lambda: not any(t.is_alive() for t in client._threads), WAIT, 0.005)
    client.resume()
    assert not client.post({"verb": "store"})
