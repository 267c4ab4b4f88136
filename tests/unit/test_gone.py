"""What is remembered of blocks that made room: none of the latest is forgotten, few others are taken for one, and its
size does not grow."""

import hashlib
import sys

import pytest

from kvpool_agent.store.gone import LEAST_KEYS, MOST_KEYS, Gone

KEYS = 4 * LEAST_KEYS


def key(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def test_none_of_the_latest_is_forgotten_and_the_oldest_are() -> None:
    gone = Gone(1)
    for i in range(KEYS):
        gone.add(key(i))
        if i % 997 == 0:
            assert all(key(j) in gone for j in range(max(0, i - LEAST_KEYS + 1), i + 1))
    assert sum(key(i) in gone for i in range(LEAST_KEYS)) < LEAST_KEYS // 100


def test_one_that_never_made_room_is_taken_for_one_that_did_less_than_once_in_a_hundred() -> None:
    gone = Gone(1)
    strangers = [key(KEYS + i) for i in range(20_000)]
    assert not any(stranger in gone for stranger in strangers)
    for i in range(2 * LEAST_KEYS):  # both filters are full
        gone.add(key(i))
    taken = sum(stranger in gone for stranger in strangers)
    assert 0 < taken < 0.01 * len(strangers), taken


@pytest.mark.parametrize(("slots", "keys"), [(15, LEAST_KEYS), (5000, 65_536), (1_000_000, MOST_KEYS)])
def test_it_takes_four_bytes_a_key_however_many_there_were(slots: int, keys: int) -> None:
    gone = Gone(slots)
    assert gone.remembers == keys
    size = sum(sys.getsizeof(part) for part in (gone._new, gone._old))
    assert keys * 4 <= size <= keys * 4 + 256
