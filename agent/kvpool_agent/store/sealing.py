"""Blocks at rest: sealed by AES-256-GCM under a key for each file, derived from the cache namespace's key.

A file's own key is HKDF-SHA256 over the cache namespace's key for files, salted by 32 random bytes that stand at the
file's beginning, for this pool and cache namespace; so the parts of a file are numbered, and their numbers are the
nonces: none is used twice under one key, and a writer refuses to. Each part is bound to its number, whether it is the
last one, and to what the caller says of it; a part that is changed, moved, left out at the end or brought from
elsewhere does not open.

Pure: bytes in, bytes out. The seal's header is 1 byte of version and the salt; a sealed part is 16 bytes longer than it
was.
"""

import secrets
import struct
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = 1
SALT_BYTES, KEY_BYTES, TAG_BYTES = 32, 32, 16
HEADER_BYTES = 1 + SALT_BYTES
MAX_PARTS = 1 << 32  # and a part is far below the 64 GiB that one nonce may seal
_ABOUT = struct.Struct("!BQ")


class SealError(Exception):
    """The bytes are not what was sealed under this key; nothing of them may be used."""


@dataclass(frozen=True)
class FileKey:
    """What files of a pool's cache namespace are sealed under in one epoch. `key`: 32 bytes, for files alone."""

    pool: str
    cache_namespace: str
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Seal:
    """Of one file: under which key it is sealed, and what stands at its beginning."""

    key: FileKey
    header: bytes


class _File:
    def __init__(self, seal: Seal) -> None:
        """Raises SealError for a header of another version or length."""
        if len(seal.header) != HEADER_BYTES or seal.header[0] != VERSION:
            raise SealError("no header of a file that this version reads")
        context = "\0".join(("kvpool file", seal.key.pool, seal.key.cache_namespace)).encode()
        self._cipher = AESGCM(HKDF(SHA256(), KEY_BYTES, seal.header[1:], context).derive(seal.key.key))


class Sealer(_File):
    """Writes one file, its parts in the order of their numbers. `opened_by` is what opens it."""

    def __init__(self, key: FileKey) -> None:
        self.opened_by = Seal(key, bytes([VERSION]) + secrets.token_bytes(SALT_BYTES))
        super().__init__(self.opened_by)
        self._next, self._ended = 0, False

    def seal(self, part: bytes | memoryview, about: bytes = b"", *, last: bool = False) -> bytes:
        """The next part, sealed. about: what must be said again to open it. Nothing comes after the last one."""
        if self._ended or self._next >= MAX_PARTS:
            raise ValueError("the file is complete")
        number, self._next, self._ended = self._next, self._next + 1, last
        return self._cipher.encrypt(_nonce(number), part, _about(number, about, last=last))


class Opener(_File):
    """Reads one file, its parts in any order."""

    def open(self, sealed: bytes | memoryview, number: int, about: bytes = b"", *, last: bool = False) -> bytes:
        """The part with this number. Raises SealError."""
        if not 0 <= number < MAX_PARTS:
            raise SealError("no file has a part of this number")
        try:
            return self._cipher.decrypt(_nonce(number), sealed, _about(number, about, last=last))
        except InvalidTag:
            raise SealError("the bytes are not what was sealed") from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _about(number: int, about: bytes, *, last: bool) -> bytes:
    return _ABOUT.pack(last, number) + about
