"""Rows of one prompt by two engines: rounding is no mismatch, another layout or other weights are one."""

import random
import struct

import pytest

from kvpool_agent.policy.proof import CLOSE, MISMATCH, SAME, WINDOW, WINDOWS, compare

LAYERS, HEADS, TOKENS, WIDTH = 8, 4, 16, 128  # K and V of a head lie side by side in WIDTH numbers
COUNT = LAYERS * HEADS * TOKENS * WIDTH


def numbers(seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 1 + i * 7 // COUNT) for i in range(COUNT)]  # layers of different strength


def row(values: list[float], dtype: str = "float32") -> memoryview:
    if dtype == "float16":
        return memoryview(struct.pack(f"<{len(values)}e", *values))
    data = struct.pack(f"<{len(values)}f", *values)
    if dtype == "bfloat16":
        halves = bytearray(len(data) // 2)
        halves[0::2], halves[1::2] = data[2::4], data[3::4]
        return memoryview(bytes(halves))
    return memoryview(data)


def noisy(values: list[float], relative: float) -> list[float]:
    chance = random.Random(2)
    return [value + relative * chance.gauss(0, abs(value)) for value in values]


def swapped(values: list[float], size: int, first: int, second: int) -> list[float]:
    """Two pieces of `size` numbers change places."""
    out = list(values)
    a, b = first * size, second * size
    out[a : a + size], out[b : b + size] = values[b : b + size], values[a : a + size]
    return out


def k_for_v(values: list[float]) -> list[float]:
    half = WIDTH // 2
    return [value for i in range(0, COUNT, WIDTH) for value in (*values[i + half : i + WIDTH], *values[i : i + half])]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_equal_bytes_are_the_same_and_rounding_is_close(dtype: str) -> None:
    ours = row(numbers(), dtype)
    assert compare([ours], [row(numbers(), dtype)], dtype) == SAME
    relative = {"float32": 0.005, "float16": 0.01, "bfloat16": 0.03}[dtype]
    assert compare([ours], [row(noisy(numbers(), relative), dtype)], dtype) == CLOSE


@pytest.mark.parametrize(
    "other",
    [
        numbers(3),
        k_for_v(numbers()),
        swapped(numbers(), COUNT // LAYERS, 2, 5),
        swapped(numbers(), TOKENS * WIDTH, 4, 6),
        noisy(numbers(), 0.5),
        [float("nan")] * COUNT,
        [0.0] * COUNT,
    ],
    ids=["other weights", "K for V", "two layers", "two heads of one layer", "far off", "no numbers", "nothing"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_layout_of_the_same_numbers_and_other_numbers_are_a_mismatch(other: list[float], dtype: str) -> None:
    assert compare([row(numbers(), dtype)], [row(other, dtype)], dtype) == MISMATCH


def test_types_that_are_not_known_are_compared_byte_by_byte() -> None:
    ours = bytearray(row(numbers()))
    theirs = bytes(ours)
    assert compare([memoryview(ours)], [memoryview(theirs)], "nvfp4") == SAME
    ours[COUNT] ^= 1
    assert compare([memoryview(ours)], [memoryview(theirs)], "nvfp4") == MISMATCH


def test_eight_bit_numbers_are_read_by_their_type() -> None:
    data = bytes(random.Random(4).choices([byte for byte in range(256) if byte & 127 < 120], k=COUNT))
    for dtype in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        # the last bit of a number is its rounding; another place is another number
        rounded = bytes(byte ^ (i % 16 == 0) for i, byte in enumerate(data))
        assert compare([memoryview(data)], [memoryview(rounded)], dtype) == CLOSE
        assert compare([memoryview(data)], [memoryview(data[::-1])], dtype) == MISMATCH


def test_every_row_counts_and_so_does_its_length() -> None:
    one, other = row(numbers()), row(numbers(3))
    assert compare([one, other], [one, other], "float32") == SAME
    assert compare([one, other], [one, one], "float32") == MISMATCH
    assert compare([one], [one, one], "float32") == MISMATCH
    assert compare([one], [one[:-4]], "float32") == MISMATCH


def test_windows_lie_within_a_row_of_any_size() -> None:
    for count in (1, WINDOW - 1, WINDOW + 1, WINDOW * WINDOWS + 3):
        ours = [1.0 + i % 7 for i in range(count)]
        assert compare([row(ours)], [row([1.001 * value for value in ours])], "float32") == CLOSE
        assert compare([row(ours)], [row([-value for value in ours])], "float32") == MISMATCH
