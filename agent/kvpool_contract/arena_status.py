"""What a status says of the arena."""

import msgspec


class Capacity(msgspec.Struct, frozen=True):
    """What of the arena's bytes can hold blocks (`effective`): all but those of slots under a lease, of slots reserved
    by writers, and of what no slot covers (`unusable`: headers and remainders). `adjoining_blocks`: those that lie
    right behind their parent; the fewer of all, the more scattered. The rest is about the finished requests' prompt
    blocks: asked, and estimates of those among them that an arena of this size, and one of twice the size, would have
    had if it had seen these requests alone."""

    effective_bytes: int = 0
    leased_bytes: int = 0
    reserved_bytes: int = 0
    unusable_bytes: int = 0
    adjoining_blocks: int = 0
    asked_blocks: int = 0
    hit_blocks: int = 0
    double_hit_blocks: int = 0


class HugePages(msgspec.Struct, frozen=True):
    """Transparent huge pages for the arena: whether they are asked for, bytes of the agent's shared memory that lie in
    some, and why it gets none."""

    asked: bool = False
    bytes: int = 0
    reason: str = ""


class Arena(msgspec.Struct, frozen=True):
    """The arena: byte limit, bytes of slots in use, blocks held (own, foreign), evicted, and orphans (no parent)."""

    limit_bytes: int = 0
    used_bytes: int = 0
    blocks: int = 0
    foreign_blocks: int = 0
    evicted_blocks: int = 0
    orphan_blocks: int = 0
    capacity: Capacity = Capacity()
    huge_pages: HugePages = HugePages()
