"""What a bad peer does with the frame it got, and the table of all of it with what a request then gets.

The fault matrix checks each row to the unit; the soak joins such peers to a pool under load.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from bad_peer import Answer, BadPeer, honest, keys_in

from kvpool_agent.peer import frames
from kvpool_agent.store.tag import tag_of

BLOCKS = 6  # asked for at once, by the table
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
            return peer.block(index, key)[: peer.row_bytes // 2]
        case "altered":
            return peer.block(index, key, bytes([right[0] ^ 1]) + right[1:], tag_of(key, memoryview(right)))
        case "mistagged":
            return peer.block(index, key, tag=b"x" * 16)
        case "short":
            return peer.block(index, key, right[: peer.row_bytes // 2])
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
