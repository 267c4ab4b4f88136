"""What the types of a pool's spec are made of: fields that say what they are, and when a change of them holds."""

from typing import Any

import msgspec

# When a change of a field takes effect. What pods run with is fixed when they are made, so a field of theirs is for
# new pods only.
LIVE, NEW_PODS, IMMUTABLE = "live", "new pods only", "immutable"
MIB, GIB = 2**20, 2**30


class PoolError(ValueError):
    """The pool can't be used; the message names the field and the fix."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping of the document, in which every field is known."""


class Bytes(int):
    """A count of bytes, written as a Kubernetes quantity."""


def field(description: str, applies: str = NEW_PODS, *, least: int | None = None, **bounds: Any) -> msgspec.Meta:
    """What the API says of a field beyond its type. applies: when a change of it takes effect; least: of Bytes."""
    extra: dict[str, Any] = {"applies": applies} | ({} if least is None else {"least": least})
    return msgspec.Meta(description=description, extra=extra, **bounds)
