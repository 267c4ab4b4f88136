"""Which of an arena's two classes makes room: owned blocks or copies.

Owned blocks were computed by the engine beside this agent, or taken over from a member that has left; copies came from
other members, which may still hold them. Either class may use what the other leaves free. Under pressure the one gives
back that has borrowed; where none has, copies go before owned blocks.
"""


def owned_first(owned: int, copies: int, capacity: int, owned_percent: int) -> bool:
    """Whether an owned block goes before a copy. Counts of blocks; owned_percent: the part of the capacity that copies
    can't take from owned blocks."""
    budget = capacity * owned_percent // 100
    return owned > budget and copies <= capacity - budget
