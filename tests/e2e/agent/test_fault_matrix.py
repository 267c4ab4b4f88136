"""One misbehaving peer, one table: every fault it can commit, what the request is answered, and what is counted.

For each fault: the request gets right bytes, what was loaded and what was computed are exact, each miss has its one
reason, nothing wrong stays in the arena, and when the peer behaves again it is a source again. The engine is never
touched. A hang would be the stand-in engine's failure: it waits for an answer and not for ever.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from agent_pool import AgentPool, Node
from bad_peer import ROW, Answer, BadPeer, honest, keys_in
from standin_engine import Served, prompt

from kvpool_agent.peer import frames
from kvpool_agent.store.tag import tag_of
from kvpool_contract.status import Peer

BLOCKS = 6
DEADLINE_SECONDS = 0.5
TRICKLE_BYTES, TRICKLE_SECONDS = 64, 0.0625  # 1 KiB a second


# -- what a bad peer does with the frame it got -------------------------------------------------------


def silence(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
    peer.ended.wait()


def hang_up(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
    raise ConnectionError


def says(*data: bytes) -> Answer:
    """Sends these bytes whatever was asked."""

    def answer(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        for part in data:
            sock.sendall(part)

    return answer


def sends(*steps: str, then: str = "end") -> Answer:
    """A fetch's answer, step by step: `good 0` is the block asked for at index 0, right in all; others below."""

    def answer(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        keys = keys_in(tail)
        for step in steps:
            word, _, number = step.partition(" ")
            sock.sendall(step_frame(peer, word, int(number or 0), keys))
        if then == "close":
            raise ConnectionError
        if then == "end":
            sock.sendall(frames.encode(frames.FetchEnd()))
        if then == "silence":
            peer.ended.wait()

    return answer


def step_frame(peer: BadPeer, word: str, index: int, keys: Sequence[bytes]) -> bytes:
    key = keys[index % len(keys)]
    right = peer.data[key]
    match word:
        case "good":
            return peer.block(index, key)
        case "half":
            return peer.block(index, key)[: ROW // 2]
        case "altered":
            return peer.block(index, key, bytes([right[0] ^ 1]) + right[1:], tag_of(key, memoryview(right)))
        case "mistagged":
            return peer.block(index, key, tag=b"x" * 16)
        case "short":
            return peer.block(index, key, right[: ROW // 2])
        case "long":
            return peer.block(index, key, right + right)
        case "huge":
            return frames.encode(frames.Block(index, b"t" * 16), frames.MAX_TAIL)
        case "gone":
            return frames.encode(frames.Block(index, b""))
    raise AssertionError(word)


def trickle(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
    data = peer.block(0, keys_in(tail)[0])
    for i in range(0, len(data), TRICKLE_BYTES):
        sock.sendall(data[i : i + TRICKLE_BYTES])
        if peer.ended.wait(TRICKLE_SECONDS):
            return


def busy(times: int) -> Answer:
    left = [times]

    def answer(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        left[0] -= 1
        if left[0] >= 0:
            sock.sendall(frames.encode(frames.Refused("busy", 0.02)))
        else:
            honest(peer, sock, message, tail)

    return answer


# -- the table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """`at`: the message that is answered badly, and how. Expected: blocks loaded; the reason of the misses of the
    rest; counters that go up, by how much; the breaker then."""

    name: str
    at: type[frames.AnyMessage]
    answer: Answer
    loaded: int
    reason: str
    counters: dict[str, int] = field(default_factory=dict)
    breaker: tuple[str, int] = ("closed", 1)


BROKEN = {"fetch_transfer_failed": 1}
LATE = {"fetch_deadline": 1, "breaker_opened": 1}
OPEN = ("open", 1)
GOOD = ("closed", 0)
REFUSED = frames.encode(frames.Refused("other_pool"))
OVER = frames.LENGTHS.pack(frames.MAX_HEADER + 1, 0)
VERSION = frames.encode(frames.Welcome(99, "bad-uid", "0", "Ready(warm)", "", 6))


def at_fetch(name: str, answer: Answer, loaded: int, reason: str, counters: dict[str, int], **more: object) -> Fault:
    return Fault(name, frames.Fetch, answer, loaded, reason, counters, **more)  # type: ignore[arg-type]


# what a peer does at the handshake, and the error that its status shows
HANDSHAKES: dict[str, tuple[Answer, str]] = {
    "never-answers": (silence, "timed out"),
    "hangs-up": (hang_up, "closed by the peer"),
    "garbage": (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "over the limits"),
    "oversized": (says(OVER), "over the limits"),
    "half-a-frame": (says(frames.encode(frames.Ping())[:-1]), "timed out"),
    "another-message": (says(frames.encode(frames.FetchEnd())), "the peer answered FetchEnd"),
    "another-pool": (says(REFUSED), "refused: other_pool"),
    "another-version": (says(frames.encode(frames.Refused("peer_version"))), "refused: peer_version"),
    "a-version-not-offered": (says(VERSION), "version 99, which was not offered"),
}


FAULTS = [
    Fault("silence-after-handshake", frames.Locate, silence, 0, "deadline"),
    Fault("lookup-of-another-length", frames.Locate, says(frames.encode(frames.Located(), 1), b"\1"), 0,
          "directory_unreachable"),
    at_fetch("silence-at-fetch", silence, 0, "deadline", LATE, breaker=OPEN),
    at_fetch("trickle", trickle, 0, "deadline", LATE, breaker=OPEN),
    at_fetch("silence-in-the-middle", sends("good 0", "good 1", then="silence"), 2, "deadline", LATE, breaker=OPEN),
    at_fetch("garbage", says(b"\xff" * 4096), 0, "transfer_failed", BROKEN),
    at_fetch("garbage-header", says(frames.LENGTHS.pack(16, 0), b"\xc1" * 16), 0, "transfer_failed", BROKEN),
    at_fetch("oversized-header", says(OVER), 0, "transfer_failed", BROKEN),
    at_fetch("oversized-block", sends("good 0", "huge 1", then=""), 1, "transfer_failed", BROKEN),
    at_fetch("half-a-frame", sends("good 0", "good 1", "half 2", then="close"), 2, "transfer_failed", BROKEN),
    at_fetch("duplicate", sends("good 0", "good 0"), 1, "transfer_failed", BROKEN),
    at_fetch("reordered", sends("good 1", "good 0"), 0, "transfer_failed", BROKEN),
    at_fetch("unasked-for", sends("good 0", "good 99"), 1, "transfer_failed", BROKEN),
    at_fetch("wrong-tag", sends("good 0", "good 1", "mistagged 2"), 2, "transfer_failed",
             {**BROKEN, "tag_failures": 1}),
    at_fetch("altered-byte", sends("good 0", "altered 1"), 1, "transfer_failed", {**BROKEN, "tag_failures": 1}),
    at_fetch("right-tag-wrong-length", sends("good 0", "short 1"), 1, "transfer_failed", BROKEN),
    at_fetch("right-tag-longer", sends("good 0", "long 1"), 1, "transfer_failed", BROKEN),
    at_fetch("claims-all-and-serves-nothing", sends(), 0, "evicted", {}),
    at_fetch("says-gone-for-each", sends(*(f"gone {n}" for n in range(BLOCKS))), 0, "evicted", {}),
    at_fetch("serves-the-beginning", sends("good 0", "good 1", "good 2"), 3, "evicted", {}, breaker=GOOD),
    at_fetch("answers-with-a-welcome", says(VERSION), 0, "transfer_failed", BROKEN),
    at_fetch("busy-for-ever", busy(1000), 0, "busy", {"fetch_busy": 1, "fetch_asked_again": 8}, breaker=GOOD),
    at_fetch("busy-twice", busy(2), BLOCKS, "", {"fetch_asked_again": 2}, breaker=GOOD),
]  # fmt: skip
TOLD = ("fetch_transfer_failed", "fetch_deadline", "fetch_busy", "fetch_asked_again", "tag_failures", "breaker_opened")


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One agent and its engine for the whole table: what one fault leaves behind would fail the next."""
    pool = AgentPool(tmp_path_factory.mktemp("matrix"), arenaBytes=8 << 20)
    try:
        yield pool.node("asker", loading={"deadlineSeconds": DEADLINE_SECONDS}).start().attach()
    finally:
        pool.stop()


@pytest.fixture(scope="module")
def only_peer(asker: Node) -> Iterator[BadPeer]:
    with contextlib.closing(BadPeer(asker.status().format)) as peer:
        yield peer


@pytest.fixture
def bad(asker: Node, only_peer: BadPeer) -> BadPeer:
    """The one peer of the table, alone in the members file."""
    list_members(asker, only_peer)
    return only_peer


def list_members(node: Node, *peers: BadPeer) -> None:
    node.replica.pool.members.write_text("".join(f"{peer.address}\n" for peer in peers))


def seen(node: Node, peer: BadPeer, **fields: object) -> Peer:
    """The peer in the node's status, once it shows these."""

    def holds(found: Peer) -> bool:
        return all(getattr(found, name) == value for name, value in fields.items())

    status = node.until(f"{fields}", lambda s: any(p.address == peer.address and holds(p) for p in s.peers))
    return next(p for p in status.peers if p.address == peer.address)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_peer_that_misbehaves_costs_its_blocks_and_no_more(asker: Node, bad: BadPeer, fault: Fault) -> None:
    tokens, later = (bad.knows(f"{fault.name}-{n}", BLOCKS) for n in range(2))
    bad.answers[fault.at] = fault.answer
    seen(asker, bad, live=True)
    before = asker.status()

    assert asker.engine.serve(tokens) == Served(pool=fault.loaded, computed=BLOCKS - fault.loaded)
    after = asker.status()
    missed = {r: n - before.misses.get(r, 0) for r, n in after.misses.items() if n != before.misses.get(r, 0)}
    assert missed == ({fault.reason: BLOCKS - fault.loaded} if fault.reason else {})
    counted = {w: after.counters.get(w, 0) - before.counters.get(w, 0) for w in TOLD}
    assert {word: count for word, count in counted.items() if count} == fault.counters
    assert after.transfers.get("demand_out") is None
    if fault.at is frames.Fetch:  # a lookup's silence ends with the ping's, and this count with it
        peer = seen(asker, bad)
        assert (peer.breaker, peer.failures) == fault.breaker

    # what is kept is right, whoever sent it: the engine has nothing and takes all from the arena
    fetches = bad.fetches
    asker.engine.forget()
    assert asker.engine.serve(tokens) == Served(pool=BLOCKS)
    assert bad.fetches == fetches

    bad.answers.clear()
    if fault.at is not frames.Fetch:
        bad.hang_up()
    asker.until(
        "a source", lambda s: [p for p in s.peers if p.address == bad.address and p.live and p.breaker != "open"]
    )
    assert asker.engine.serve(later) == Served(pool=BLOCKS)
    assert bad.fetches == fetches + 1
    assert (seen(asker, bad).breaker, seen(asker, bad).failures) == ("closed", 0)


def test_peers_that_fail_at_the_handshake_are_no_sources_and_named_each_with_its_error(asker: Node) -> None:
    peers = {name: BadPeer(asker.status().format, f"{name}-uid") for name in HANDSHAKES}
    with contextlib.ExitStack() as stack:
        for name, peer in peers.items():
            stack.callback(peer.close)
            peer.answers[frames.Hello] = HANDSHAKES[name][0]
        tokens = {name: peer.knows(name, 2) for name, peer in peers.items()}
        list_members(asker, *peers.values())
        for name, peer in peers.items():
            error = HANDSHAKES[name][1]
            status = asker.until(
                name, lambda s, p=peer, e=error: [q for q in s.peers if q.address == p.address and e in q.error]
            )
            assert not any(found.live for found in status.peers)
        before = asker.status().misses.get("never_published", 0)
        for name in peers:
            assert asker.engine.serve(tokens[name]) == Served(computed=2)
        assert asker.status().misses["never_published"] - before == 2 * len(peers)
        assert sum(peer.fetches for peer in peers.values()) == 0
        later = {name: peer.knows(f"{name}-later", 2) for name, peer in peers.items()}
        for peer in peers.values():
            peer.answers.clear()
            peer.hang_up()
        for peer in peers.values():
            seen(asker, peer, live=True, breaker="closed", failures=0)
        for name, peer in peers.items():
            assert asker.engine.serve(later[name]) == Served(pool=2)
            assert peer.fetches == 1


def test_a_peer_that_fails_three_times_is_asked_no_more_and_again_after_its_pause(asker: Node, bad: BadPeer) -> None:
    prompts = [bad.knows(f"again-{n}", 2) for n in range(5)]
    asked = []

    def fails(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
        asked.append(len(tail))
        raise ConnectionError

    bad.answers[frames.Fetch] = fails
    seen(asker, bad, live=True)
    before = asker.status()
    for tokens in prompts[:3]:
        assert asker.engine.serve(tokens) == Served(computed=2)
    assert asker.engine.serve(prompts[3]) == Served(computed=2)
    after = asker.status()
    assert len(asked) == 3
    assert after.misses["transfer_failed"] - before.misses["transfer_failed"] == 6
    assert after.misses["breaker_open"] - before.misses.get("breaker_open", 0) == 2
    assert after.counters["breaker_opened"] - before.counters["breaker_opened"] == 1
    bad.answers.clear()
    seen(asker, bad, live=True, breaker="half_open")
    assert asker.engine.serve(prompts[4]) == Served(pool=2)
    seen(asker, bad, breaker="closed", failures=0)


@pytest.mark.parametrize("next_one", ["member", "incarnation", "pool"])
def test_an_address_that_comes_to_somebody_else_is_not_used_as_the_old_one(asker: Node, next_one: str) -> None:
    first = BadPeer(asker.status().format, member="first-uid")
    list_members(asker, first)
    with contextlib.closing(first):
        tokens = [first.knows(f"{next_one}-{n}", 3) for n in range(2)]
        seen(asker, first, live=True, blocks=6)
        assert asker.engine.serve(tokens[0]) == Served(pool=3)
    second = BadPeer(first.fingerprint, "second-uid" if next_one == "member" else "first-uid", first.port)
    with contextlib.closing(second):
        second.incarnation = "1"
        if next_one == "pool":
            second.answers[frames.Hello] = says(REFUSED)
            asker.until("refusal", lambda s: [p for p in s.peers if "other_pool" in p.error and not p.live])
            assert asker.engine.serve(tokens[1]) == Served(computed=3)
            assert second.fetches == 0
            return
        second.data = first.data
        seen(asker, second, live=True, member=second.member)
        asker.until("another process", lambda _: second._open)
        assert asker.engine.serve(tokens[1]) == Served(pool=3)
        assert (first.fetches, second.fetches) == (1, 1)


def test_a_prompt_that_nobody_has_is_still_a_plain_miss_after_all_that(asker: Node) -> None:
    list_members(asker)
    asker.until("nobody", lambda s: not s.peers)
    before = asker.status().misses["never_published"]
    assert asker.engine.serve(prompt("nobody", BLOCKS)) == Served(computed=BLOCKS)
    assert asker.status().misses["never_published"] - before == BLOCKS
