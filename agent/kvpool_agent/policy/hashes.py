"""What an engine calls the blocks of a prompt, made from its token ids without asking: vLLM's chained hashes.

A block's hash is that of its parent's hash, its tokens and whatever else sets it apart; the first one's parent is the
engine's seed, and a salt is of the first one alone. All that it depends on is in the format's fields. So the names of a
prefix are known before anybody has computed it. Where an engine makes them otherwise nothing is found under these, and
its probe, whose prompt is known as well, shows that (kvpool_agent.flows.declare).
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvpool_client.groups import GROUP_BYTES

HASH_BYTES = 32


class UnknownHashError(Exception):
    """The format's engine makes its names in a way that is not known here; the message says what."""


def engine_keys(fields: Mapping[str, Any], tokens: Sequence[int], salt: str = "") -> list[bytes]:
    """The engine's keys, a hash and 4 bytes of group each, of the whole blocks of a prompt, group by group. fields: of
    the format. Raises UnknownHashError."""
    word = fields.get("hash_algorithm")
    digest = _ALGORITHMS.get(str(word))
    if digest is None:
        raise UnknownHashError(f"the hash algorithm is {word!r}")
    try:
        step, seed, block = int(fields["tokens_per_hash"]), bytes.fromhex(fields["hash_seed"]), fields["block_tokens"]
        least = min(fields["engine_block_tokens"])
        sizes = [each * block // least for each in fields["engine_block_tokens"]]
        whole = seed and step > 0 and all(size > 0 and size % step == 0 for size in sizes)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        whole = False
    if not whole:
        raise UnknownHashError("the format does not tell how blocks are cut and hashed")
    hashes, parent = [], seed
    apart = (("cache_salt", salt),) if salt else None
    for begin in range(0, len(tokens) - step + 1, step):
        parent = digest((parent, tuple(tokens[begin : begin + step]), apart))
        hashes.append(parent)
        apart = None
    return [
        hashes[end // step - 1] + number.to_bytes(GROUP_BYTES, "big")
        for number, size in enumerate(sizes)
        for end in range(size, len(tokens) + 1, size)
    ]


def _pickled(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _cbor(value: Any) -> bytes:
    return hashlib.sha256(_encoded(value)).digest()


def _encoded(value: Any) -> bytes:
    """Canonical CBOR of what a hash is made of."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return _head(0, value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            return _head(3, len(value.encode())) + value.encode()
    return _head(4, len(value)) + b"".join(map(_encoded, value))


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    power = next(power for power in range(4) if number < 1 << (8 << power))
    return bytes([major << 5 | 24 + power]) + number.to_bytes(1 << power, "big")


_ALGORITHMS: dict[str, Callable[[Any], bytes]] = {"sha256": _pickled, "sha256_cbor": _cbor}
