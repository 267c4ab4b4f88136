"""The chains that the pool knows, as the agent tells them: a prompt of another one is a miss without asking.

The agent names the first block of each chain that any member holds. A name is the beginning of the block's key in the
pool, which this side can make of the engine's own key and the format. What the agent has told holds for a time that it
says with it: an agent that stands still, or is gone, hides nothing that others have published meanwhile.

Taken by the session's thread, asked by the scheduler's.
"""

import hashlib
import time
from typing import Any

from kvpool_client.groups import GROUP_BYTES

NAME_BYTES = 8
MAX_NAMES = 65_536
BLOCK_KEY_BYTES = 16  # of the key whose beginning a name is


def name_of(engine_key: bytes, fingerprint: bytes) -> bytes:
    """The name of a block by the engine's key of it, as the pool makes it (kvpool_contract.names.block_key)."""
    engine_hash, group = engine_key[:-GROUP_BYTES], engine_key[-GROUP_BYTES:]
    material = len(engine_hash).to_bytes(2, "big") + engine_hash + group + fingerprint
    return hashlib.blake2b(material, digest_size=BLOCK_KEY_BYTES).digest()[:NAME_BYTES]


class KnownHeads:
    """`number`: of the last word of the agent, 0 while nothing holds."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self._fingerprint = b""
        self._until = 0.0
        self.number = 0

    def take(self, header: dict[str, Any], tail: bytes) -> None:
        """A frame of the agent. Raises KeyError, TypeError or ValueError where it makes no sense."""
        number = int(header["number"])
        if not number:
            self.clear()
            return
        added, seconds, fingerprint = int(header["added"]), float(header["seconds"]), bytes.fromhex(header["format"])
        names = [tail[i : i + NAME_BYTES] for i in range(0, len(tail), NAME_BYTES)]
        if len(tail) % NAME_BYTES or not 0 <= added <= len(names):
            raise ValueError(f"{len(tail)} bytes are no {added} names and more")
        if header["whole"]:
            self._names = set(names[:added])
        else:
            self._names.update(names[:added])
            self._names.difference_update(names[added:])
        if len(self._names) > MAX_NAMES:
            raise ValueError(f"more than {MAX_NAMES} names")
        self._fingerprint, self._until, self.number = fingerprint, time.monotonic() + seconds, number

    def clear(self) -> None:
        """Nothing is known any more."""
        self._until, self.number = 0.0, 0
        self._names = set()

    def rule_out(self, engine_key: bytes, now: float) -> bool:
        """Whether no member holds a chain that begins with this block."""
        return now < self._until and name_of(engine_key, self._fingerprint) not in self._names
