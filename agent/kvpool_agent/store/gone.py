"""Which blocks have made room lately: what tells a block that was evicted from one that nobody has ever published.

Two Bloom filters, the newer one filling up while the older one still answers: of the latest `remembers` keys none is
forgotten, of those before them up to as many again are remembered, too. Four bits a key in sixteen: one that never made
room is taken for one that did once in 400 while one filter is full, once in 200 with both. Block keys are hashes, so
their own bytes say which bits. Four bytes a key, whether it is used or not; used under the arena's lock.
"""

import struct

LEAST_KEYS, MOST_KEYS, KEYS_A_SLOT = 1 << 14, 1 << 18, 8
BITS_A_KEY = 16
_POSITIONS = struct.Struct("<4I")


class Gone:
    """`remembers`: keys of which none is forgotten; a power of two."""

    def __init__(self, slots: int) -> None:
        self.remembers = min(MOST_KEYS, max(LEAST_KEYS, 1 << (KEYS_A_SLOT * slots - 1).bit_length()))
        self._bits = self.remembers * BITS_A_KEY
        self._new, self._old = self._empty(), self._empty()
        self._count = 0

    def _empty(self) -> bytearray:
        return bytearray(self._bits // 8)

    def add(self, key: bytes) -> None:
        """The block with this key, 16 bytes, has made room."""
        if self._count == self.remembers:
            self._new, self._old, self._count = self._empty(), self._new, 0
        self._count += 1
        for position in _POSITIONS.unpack(key):
            at = position % self._bits
            self._new[at >> 3] |= 1 << (at & 7)

    def __contains__(self, key: bytes) -> bool:
        places = [position % self._bits for position in _POSITIONS.unpack(key)]
        return any(all(bits[at >> 3] & 1 << (at & 7) for at in places) for bits in (self._new, self._old))
