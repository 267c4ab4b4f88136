"""Whether two engines of one format computed the same block: the rows of one fixed prompt, compared.

Equal bytes are the rule on equal hardware. Other kernels and other batch shapes round differently, so numbers may
differ a little; what lies elsewhere (heads or layers permuted, K for V) or comes from other weights differs by as much
as the numbers themselves. Windows from all over the block are judged one by one, so that a fault in a few layers shows.
"""

import math
import struct
from collections.abc import Callable, Sequence

SAME, CLOSE, MISMATCH = "same", "close", "mismatch"

WINDOWS, WINDOW = 512, 256  # samples of a block, and numbers in each
# root mean square of the differences over that of the numbers; layers deep in a model gather rounding
TOLERANCES = {"float32": 0.02, "float16": 0.05, "bfloat16": 0.15, "fp8_e5m2": 0.25, "fp8_e4m3": 0.25, "fp8": 0.25}
FAINT = 8.0  # a window that is this much fainter than the block is judged by the block's level
SPARED = 64  # of so many windows one may be beyond the tolerance


def compare(ours: Sequence[memoryview], theirs: Sequence[memoryview], dtype: str) -> str:
    """`same`, `close` or `mismatch`, for the rows of one prompt in the same order. A type that isn't known here is
    compared byte by byte."""
    if len(ours) != len(theirs) or any(len(a) != len(b) for a, b in zip(ours, theirs, strict=True)):
        return MISMATCH
    if all(a == b for a, b in zip(ours, theirs, strict=True)):
        return SAME
    decode = _DECODERS.get(dtype)
    if decode is None:
        return MISMATCH
    near = all(_close(a, b, dtype, *decode) for a, b in zip(ours, theirs, strict=True))
    return CLOSE if near else MISMATCH


def _close(ours: memoryview, theirs: memoryview, dtype: str, size: int, decode: "Decode") -> bool:
    window = WINDOW * size
    last = max(0, len(ours) // size * size - window)
    starts = sorted({last * i // (WINDOWS - 1) // size * size for i in range(WINDOWS)})
    judged = [_distance(decode(ours[at : at + window]), decode(theirs[at : at + window])) for at in starts]
    level = math.sqrt(sum(power for _, power in judged) / len(judged))
    tolerance = TOLERANCES[dtype]
    beyond = sum(
        1 for error, power in judged if not math.sqrt(error) <= tolerance * max(math.sqrt(power), level / FAINT)
    )
    return beyond <= len(judged) // SPARED


def _distance(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean squares of the differences and of the larger side. Numbers that are none on both sides are left out."""
    error = own = other = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if math.isfinite(a) and math.isfinite(b):
            error += (a - b) * (a - b)
            own += a * a
            other += b * b
        elif math.isfinite(a) or math.isfinite(b):
            return math.inf, 0.0
    count = max(1, len(ours))
    return error / count, max(own, other) / count


Decode = Callable[[memoryview], Sequence[float]]


def _float32(data: memoryview) -> Sequence[float]:
    return struct.unpack(f"<{len(data) // 4}f", data)


def _float16(data: memoryview) -> Sequence[float]:
    return struct.unpack(f"<{len(data) // 2}e", data)


def _bfloat16(data: memoryview) -> Sequence[float]:
    """The upper half of a float32."""
    whole = bytearray(2 * len(data))
    whole[2::4], whole[3::4] = data[0::2], data[1::2]
    return struct.unpack(f"<{len(data) // 2}f", whole)


def _e5m2(data: memoryview) -> Sequence[float]:
    """The upper half of a float16."""
    whole = bytearray(2 * len(data))
    whole[1::2] = data
    return struct.unpack(f"<{len(data)}e", whole)


def _e4m3_number(byte: int) -> float:
    sign, exponent, fraction = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    return sign * (fraction / 8 * 2.0**-6 if not exponent else (1 + fraction / 8) * 2.0 ** (exponent - 7))


_E4M3 = [_e4m3_number(byte) for byte in range(256)]


def _e4m3(data: memoryview) -> Sequence[float]:
    return [_E4M3[byte] for byte in data]


# bytes of a number, and how it is read
_DECODERS: dict[str, tuple[int, Decode]] = {
    "float32": (4, _float32),
    "float16": (2, _float16),
    "bfloat16": (2, _bfloat16),
    "fp8_e5m2": (1, _e5m2),
    "fp8_e4m3": (1, _e4m3),
    "fp8": (1, _e4m3),
}
