"""Lending blocks, lot by lot, to an asker that reads them by RDMA: only what it says tells that it has.

A lot is kept from eviction for as long as its lease says. An asker that says nothing until then is cut off, and its
queue pair with it. Its bytes count as moved when they are lent: from then on they can be read, whatever it says.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvpool_agent.peer.connection import BUSY_RETRY_SECONDS, PROGRESS_SECONDS, Connection, PeerBusy, PeerError
from kvpool_agent.peer.lending import Lent, Returned, pack_places


@dataclass(frozen=True)
class Lot:
    """Blocks from index `first` on, that stay for so many seconds: the place and tag of each, None for one that is not
    held, and the bytes of the others together."""

    first: int
    seconds: float
    places: Sequence[tuple[int, bytes] | None]
    size: int


def lend(
    connection: Connection,
    lots: Iterator[Lot],
    last: int,
    in_time: Callable[[int], bool],
    owe: Callable[[int], None],
    taken: Callable[[int], None],
) -> bool:
    """Whether blocks were left out for which the asker would not have waited. Raises PeerBusy where that is all of
    them, PeerError. last: index of the last block. in_time: whether another lot may be lent in time, after what is owed
    was waited for; it is told the bytes of the lot before. owe: is told the bytes of each lot. taken: is told how many
    blocks the asker has read."""
    before = -1
    while True:
        if not in_time(max(before, 0)):
            if before < 0:
                raise PeerBusy(BUSY_RETRY_SECONDS)
            return True
        lot = next(lots, None)
        if lot is None:
            return False
        connection.settimeout(PROGRESS_SECONDS)
        connection.send(Lent(lot.first, lot.seconds), pack_places(lot.places), seconds=PROGRESS_SECONDS)
        owe(lot.size)
        connection.wait(lot.seconds)
        connection.until(time.monotonic() + PROGRESS_SECONDS)
        answer, tail_length = connection.receive()
        connection.until(None)
        before, lent = lot.size, sum(place is not None for place in lot.places)
        if not isinstance(answer, Returned) or tail_length or answer.blocks > lent:
            raise PeerError(f"bad answer to what was lent: {type(answer).__name__} with {tail_length} bytes")
        taken(answer.blocks)
        if lot.first + len(lot.places) > last:  # the asker need not wait for what the next one owes
            return False
