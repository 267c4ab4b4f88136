"""Where a fuzzer begins: well-formed inputs of each target, and pieces of the protocols for its dictionary."""

import json
import struct

from fuzz_targets import BLOCK, FIELDS, HELLO, KEYS, REQUESTS, VERBS

from kvpool_agent.peer import frames
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told
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
    return {
        "peer": [
            *(HELLO + frames.encode(message, len(tail)) + tail for message, tail in REQUESTS),
            *(bytes([0x80, n]) + len(tail).to_bytes(2, "big") + tail for n, (_, tail) in enumerate(REQUESTS)),
        ],
        "asker": [bytes([n, 1]) + frames.encode(message, len(tail)) + tail for n, message, tail in answers],
        "engine": [
            *(b"\x06" + wire.encode(header, tail) for header, tail in VERBS),
            *(bytes([0x86, n]) + len(tail).to_bytes(2, "big") + tail for n, (_, tail) in enumerate(VERBS)),
        ],
        "probes": [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in ("/startedz", "/readyz", "/livez")],
    }


def words() -> list[bytes]:
    """Pieces of the protocols, for a fuzzer's dictionary."""
    lengths = [struct.pack("!I", n) for n in (0, 1, 16, 17, 1 << 16, (1 << 20) + 1, (1 << 30) + 1, 2**32 - 1)]
    names = ["hello", "locate", "fetch", "announce", "where", "found", "offer", "attach", "lookup", "store", "finished"]
    return [*lengths, *(json.dumps(name).encode() for name in names), b"GET ", b"\r\n", b"1e999", b"null", b"[["]
