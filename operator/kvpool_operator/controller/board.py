"""What the passes have seen last of each pool, kept for the page: nothing of it is asked for, and nothing outlives the
controller."""

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvpool_operator.controller.cluster import Key
from kvpool_operator.desired.status import Member
from kvpool_operator.view.pool import Moment, Seen

MOMENT_SECONDS = 60.0
MOMENTS = 360  # six hours


class Board:
    """Written and read in one event loop. clock: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[Key, Seen] = {}
        self._moments: dict[Key, collections.deque[Moment]] = {}

    @property
    def pools(self) -> Mapping[Key, Seen]:
        return self._seen

    def saw(self, key: Key, status: Mapping[str, Any], members: Sequence[Member]) -> None:
        """A pass over the pool has written, or found, this status."""
        now = self._clock()
        moments = self._moments.setdefault(key, collections.deque(maxlen=MOMENTS))
        if not moments or now - moments[-1].at >= MOMENT_SECONDS:
            told = [member.status.benefit for member in members if member.status is not None]
            moments.append(Moment(now, sum(b.waiting for b in told), sum(b.gpu for b in told)))
        self._seen[key] = Seen(now, status, members, tuple(moments))

    def forget(self, key: Key) -> None:
        self._seen.pop(key, None)
        self._moments.pop(key, None)
