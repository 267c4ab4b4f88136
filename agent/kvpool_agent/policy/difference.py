"""How another member's format differs from ours, in words for people: `dtype: float32 here, bfloat16 there`.

The other side's fields are a stranger's text: they are cut, and nothing in them reaches a terminal as a control
character.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_LINES = 12
MAX_TEXT = 48
MAX_DEPTH = 4
ABSENT = "none"


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """One line for each field that differs, by name; fields of fields are named with a dot."""
    own, other = dict(_flat(here, "", MAX_DEPTH)), dict(_flat(there, "", MAX_DEPTH))
    lines = [
        f"{_printable(name)}: {_text(own, name)} here, {_text(other, name)} there"
        for name in sorted(own.keys() | other.keys())
        if name not in own or name not in other or own[name] != other[name]
    ]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} fields more"]
    return lines


def _flat(fields: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping) and value and depth:
            yield from _flat(value, f"{prefix}{name}.", depth - 1)
        else:
            yield f"{prefix}{name}", value


def _text(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        return ABSENT
    value = fields[name]
    return _printable(value if isinstance(value, str) and value else json.dumps(value, sort_keys=True))


def _printable(text: str) -> str:
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    return "".join(one if one.isprintable() else "?" for one in cut)
