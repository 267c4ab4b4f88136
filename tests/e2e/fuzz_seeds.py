"""Where a fuzzer begins: well-formed inputs of each target, and pieces of the protocols for its dictionary."""

import json
import struct
from collections.abc import Sequence

from fuzz_parts import END, SLAB_BYTES
from fuzz_targets import BLOCK, FIELDS, FORMAT, HELLO, KEYS, REQUESTS, VERBS

from kvpool_agent.peer import frames
from kvpool_agent.peer.entitlement import PROOF_BYTES, PROOFS
from kvpool_agent.peer.lending import Borrow, Joined, Lent, Returned, pack_places
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told
from kvpool_agent.store.tag import tag_of
from kvpool_client import wire


def seeds() -> dict[str, list[bytes]]:
    """Well-formed inputs of each target, from which a fuzzer and the replay begin."""
    answers = [
        (0, frames.Located(), b"\1\0\1\0"), (1, frames.Block(1, b"t" * 16), BLOCK), (1, frames.FetchEnd(), b""),
        (1, frames.Refused("busy", 0.2), b""), (2, frames.HotList(), frames.pack_hot([HotBlock(KEYS[0], b"", 0, 1.0)])),
        (3, frames.Described(), frames.pack_fields(FIELDS)),
        (4, frames.Found([("uid", "inc")]), frames.pack_held([[True] * len(KEYS)])), (5, frames.Announced(7), b""),
        (6, *frames.pack_heads(Told(7, True, (KEYS[0][:8],), (KEYS[1][:8],)))),
        (7, frames.Renewed(7, [("10.0.0.1:7700", "uid")]), b""), (8, frames.Taken(), b"\1\0"),
    ]  # fmt: skip
    places = pack_places([(n * len(BLOCK), tag_of(KEYS[n], memoryview(BLOCK))) for n in range(2)])
    conversations = [
        (9, [(frames.Entitling(bytes(frames.NONCE_BYTES)), bytes(PROOFS * PROOF_BYTES)), (frames.Proved(), b"")]),
        (10, [(Joined(END, 1 << 20, SLAB_BYTES, 5), b""), (Lent(0, 1.0), places), (frames.FetchEnd(), b"")]),
    ]
    borrowed = [(Borrow(FORMAT, "demand", 1.0), b"".join(KEYS[:3])), (Returned(2), b""), (Returned(1), b"")]
    return {
        "peer": [
            *(HELLO + _joined([request]) for request in REQUESTS),
            HELLO + _joined(borrowed),
            *(bytes([0x80, n]) + len(tail).to_bytes(2, "big") + tail for n, (_, tail) in enumerate(REQUESTS)),
        ],
        "asker": [
            *(bytes([n, 1]) + _joined([(message, tail)]) for n, message, tail in answers),
            *(bytes([n, 1]) + _joined(parts) for n, parts in conversations),
        ],
        "engine": [
            *(b"\x06" + wire.encode(header, tail) for header, tail in VERBS),
            *(bytes([0x86, n]) + len(tail).to_bytes(2, "big") + tail for n, (_, tail) in enumerate(VERBS)),
        ],
        "probes": [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in ("/startedz", "/readyz", "/livez")],
    }


def _joined(parts: Sequence[tuple[frames.AnyMessage, bytes]]) -> bytes:
    return b"".join(frames.encode(message, len(tail)) + tail for message, tail in parts)


def words() -> list[bytes]:
    """Pieces of the protocols, for a fuzzer's dictionary."""
    lengths = [struct.pack("!I", n) for n in (0, 1, 16, 17, 1 << 16, (1 << 20) + 1, (1 << 30) + 1, 2**32 - 1)]
    names = [
        "hello", "locate", "fetch", "announce", "where", "found", "offer", "entitling", "proved", "join", "joined",
        "borrow", "lent", "returned", "attach", "lookup", "store", "finished",
    ]  # fmt: skip
    return [*lengths, *(json.dumps(name).encode() for name in names), b"GET ", b"\r\n", b"1e999", b"null", b"[["]
