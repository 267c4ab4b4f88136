"""The KV-cache groups of a model, as the engine port's two ends speak of them.

A group is a set of layers that keep the same tokens. A block belongs to one group; an engine's key of a block is the
engine hash and 4 bytes of the group's number. What a group must hold for a request to go on at a boundary is its kind:
`full` all blocks from the beginning, `window` those of the last `window` tokens before it, `state` the one block that
ends there: it holds what recurrent layers make of all tokens up to its end. Other kinds (attention in chunks) are
named, and so are groups of a draft model's own; such models share nothing yet.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

GROUP_BYTES = 4
FULL, WINDOW, STATE = "full", "window", "state"
MAX_GROUPS = 64


@dataclass(frozen=True)
class Group:
    """number: as in the keys; window: tokens before a boundary that must be held, 0 for all, 1 for a state;
    block_tokens: tokens of one block of ours; whole: its blocks fill a row of the host pool with numbers of the
    format's data type. A group with fewer layers than another one leaves the rest of the row as it was, so that equal
    blocks need not be equal rows. draft: its layers are all a draft model's."""

    number: int
    kind: str
    window: int
    block_tokens: int
    whole: bool = True
    draft: bool = False


def to_header(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [asdict(group) for group in groups]


def from_header(described: Any) -> list[Group]:
    """The groups of an attach header. Raises ValueError when it describes none that can be."""
    if not isinstance(described, list) or not 0 < len(described) <= MAX_GROUPS:
        raise ValueError("groups is no list of at least one group")
    groups = []
    for entry in described:
        if not isinstance(entry, dict):
            raise ValueError("a group is no object")
        draft = entry.get("draft", False)  # which older clients don't say
        names = ("number", "kind", "window", "block_tokens", "whole")
        group = replace(Group(*(entry.get(name) for name in names)), draft=draft)  # type: ignore[arg-type]
        numbers = (group.number, group.window, group.block_tokens)
        typed = isinstance(group.kind, str) and isinstance(group.whole, bool) and isinstance(draft, bool)
        if not typed or not all(type(n) is int and 0 <= n < 1 << 32 for n in numbers):
            raise ValueError(f"group {group.number!r} has a field of the wrong type or size")
        if not group.block_tokens or (group.kind == FULL) != (not group.window):
            raise ValueError(f"group {group.number} has no block tokens, or a window that is not its kind's")
        groups.append(group)
    if len({group.number for group in groups}) != len(groups):
        raise ValueError("two groups have the same number")
    return groups


def obstacle(groups: Sequence[Group]) -> str:
    """Why plans can't be made for these groups, as a reason's word; empty when they can."""
    if any(group.draft for group in groups):
        return "draft_missing"
    return "" if {group.kind for group in groups} <= {FULL, WINDOW, STATE} else "groups_unsupported"


def reference(groups: Sequence[Group]) -> int:
    """Index of the group in whose blocks a request's prompt is counted: the first with full attention, else the
    first."""
    return next((i for i, group in enumerate(groups) if group.kind == FULL), 0)


def number_of(key: bytes) -> int:
    """The group's number in an engine's key."""
    return int.from_bytes(key[-GROUP_BYTES:], "big")
