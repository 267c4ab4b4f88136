"""Kubernetes quantities (`4Gi`, `500M`, `1e9`) as whole bytes and back.

Sizes are compared and added here (an engine's memory limit plus its host pool), and the API server accepts
more spellings than people expect, so all of them are read, exactly: no floats, fractions of a byte round up
as they do in Kubernetes.
"""

import math
import re
from fractions import Fraction

_UNITS = {
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 1000**2),
    "n": Fraction(1, 1000**3),
}
_QUANTITY = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?:[eE](?P<power>[+-]?\d{1,2})|(?P<suffix>[A-Za-z]{0,2}))")


class QuantityError(ValueError):
    """The text is no quantity; the message says how one is written."""


def parse_quantity(value: object) -> int:
    """Bytes of a quantity, given as text or as a plain number; raises QuantityError."""
    return math.ceil(_exact(value))


def parse_milli(value: object) -> int:
    """Thousandths of a quantity: cpu is counted in them; raises QuantityError."""
    return math.ceil(1000 * _exact(value))


def _exact(value: object) -> Fraction:
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _QUANTITY.fullmatch(text)
    if match is None or (match["suffix"] or "") not in _UNITS:
        raise QuantityError(f"{value!r} is no quantity; write a number with a unit, such as 500Mi or 4Gi")
    scale = Fraction(10) ** int(match["power"]) if match["power"] else _UNITS[match["suffix"] or ""]
    return Fraction(match["number"]) * scale


def format_quantity(count: int) -> str:
    """The shortest exact spelling of `count` bytes with a binary unit."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_UNITS[suffix])
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)
