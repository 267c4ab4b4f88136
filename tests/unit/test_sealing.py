"""Blocks at rest: what was sealed comes back, and nothing else does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvpool_agent.store import sealing
from kvpool_agent.store.sealing import HEADER_BYTES, TAG_BYTES, FileKey, Opener, Seal, Sealer, SealError

KEY = FileKey("chat", "acme", b"k" * 32)
OTHER = replace(KEY, key=b"o" * 32)
PARTS = [b"first" * 100, b"", b"third" * 1000]


def sealed() -> tuple[bytes, list[bytes]]:
    sealer = Sealer(KEY)
    return sealer.opened_by.header, [sealer.seal(part, b"about", last=i == 2) for i, part in enumerate(PARTS)]


def opener(header: bytes, key: FileKey = KEY) -> Opener:
    return Opener(Seal(key, header))


def opened(header: bytes, parts: list[bytes], key: FileKey = KEY) -> list[bytes]:
    reader = opener(header, key)
    return [reader.open(part, i, b"about", last=i == 2) for i, part in enumerate(parts)]


def test_what_was_sealed_comes_back_sixteen_bytes_shorter() -> None:
    header, parts = sealed()
    assert opened(header, parts) == PARTS
    assert len(header) == HEADER_BYTES
    assert [len(part) for part in parts] == [len(part) + TAG_BYTES for part in PARTS]
    assert b"first" not in b"".join(parts) + header


def test_every_flipped_bit_of_a_small_file_is_found() -> None:
    header, parts = sealed()
    whole = bytearray(header + parts[0][:40] + parts[0][-TAG_BYTES:])
    for bit in range(8 * len(header)):
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SealError):
            opened(bytes(changed), parts)
    assert len(whole) == len(header) + 56
    for bit in range(8 * len(parts[0])):
        changed = bytearray(parts[0])
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SealError):
            opened(header, [bytes(changed), *parts[1:]])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda header, parts: opened(header, parts, key=OTHER),
        lambda header, parts: opened(header, parts, key=replace(KEY, cache_namespace="umbrella")),
        lambda header, parts: opened(header, parts, key=replace(KEY, pool="other")),
        lambda header, parts: opened(header, [parts[1], parts[0], parts[2]]),
        lambda header, parts: opened(header, [parts[0][:-1], *parts[1:]]),
        lambda header, parts: opened(header, [b"", *parts[1:]]),
        lambda header, parts: opened(sealed()[0], parts),
        lambda header, parts: opened(header, sealed()[1]),
        lambda header, parts: opener(header).open(parts[0], 0, b"another", last=False),
        lambda header, parts: opener(header).open(parts[1], 1, b"about", last=True),  # cut off there
        lambda header, parts: opener(header).open(parts[0], -1, b"about"),
        lambda header, parts: opener(header).open(parts[0], sealing.MAX_PARTS, b"about"),
        lambda header, parts: opener(header[:-1]),
        lambda header, parts: opener(b"\2" + header[1:]),
        lambda header, parts: opener(b""),
    ],
)
def test_another_key_namespace_place_or_file_opens_nothing(wrong: Callable[[bytes, list[bytes]], object]) -> None:
    with pytest.raises(SealError):
        wrong(*sealed())


def test_no_nonce_is_used_twice_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[bytes, bytes]]()

    class Watched:
        def __init__(self, key: bytes) -> None:
            self.key = key

        def encrypt(self, nonce: bytes, _part: bytes, _about: bytes) -> bytes:
            seen.append((self.key, nonce))
            return b""

    monkeypatch.setattr(sealing, "AESGCM", Watched)
    for _ in range(100):
        sealer = Sealer(KEY)
        for _ in range(100):
            sealer.seal(b"")
    assert len(set(seen)) == len(seen) == 10_000


def test_nothing_comes_after_the_last_part() -> None:
    sealer = Sealer(KEY)
    sealer.seal(b"", last=True)
    with pytest.raises(ValueError, match="complete"):
        sealer.seal(b"")


def test_the_same_bytes_twice_are_not_the_same_file_and_no_key_is_shown() -> None:
    assert sealed()[1][0] != sealed()[1][0]
    assert "kkkk" not in repr(Seal(KEY, b""))
