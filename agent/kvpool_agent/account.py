"""What the agent counts: transfers, misses by reason, hits by who computed, an event log. Any thread may add."""

import collections
import threading
from collections.abc import Iterable, Sequence

from kvpool_contract.status import ARENA, Event, Hits, Transfer, now

EVENTS_KEPT = 256
ORIGINS_KEPT = 65_536  # 16 million tokens in blocks of 256; at its bound it takes 11 MiB


class Account:
    """Counts since the worker's start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: collections.Counter[str] = collections.Counter()
        self._misses: collections.Counter[str] = collections.Counter()
        self._transfers: dict[str, list[int]] = {}
        self._computed = 0
        self._found: dict[bool, collections.Counter[str]] = {False: collections.Counter(), True: collections.Counter()}
        self._ways: collections.OrderedDict[bytes, str] = collections.OrderedDict()
        self._events: collections.deque[Event] = collections.deque(maxlen=EVENTS_KEPT)
        self._foreign: collections.OrderedDict[bytes, str] = collections.OrderedDict()  # and from which address

    def count(self, word: str, amount: int = 1) -> None:
        with self._lock:
            self._counters[word] += amount

    def miss(self, reason: str, blocks: int) -> None:
        if blocks > 0:
            with self._lock:
                self._misses[reason] += blocks

    def moved(self, what: str, blocks: int, size: int) -> None:
        """`what`: purpose and direction, for example demand_in."""
        with self._lock:
            entry = self._transfers.setdefault(what, [0, 0])
            entry[0] += blocks
            entry[1] += size

    def event(self, word: str, **detail: float | int | str) -> None:
        with self._lock:
            self._events.append(Event(now(), word, detail))

    def computed_elsewhere(self, key: bytes, address: str = "") -> None:
        """A block came from another replica: from this address (STORE for the external store), empty where nobody
        knows. Remembered beyond its time in the arena, since the engine may keep it."""
        with self._lock:
            self._foreign[key] = address
            self._foreign.move_to_end(key)
            if len(self._foreign) > ORIGINS_KEPT:
                self._foreign.popitem(last=False)

    def computed_here(self, key: bytes) -> None:
        with self._lock:
            self._foreign.pop(key, None)

    def brought(self, key: bytes, way: str) -> None:
        """A request's plan has brought a block into the arena from there (PEER, DISK or STORE)."""
        with self._lock:
            self._ways[key] = way
            if len(self._ways) > ORIGINS_KEPT:
                self._ways.popitem(last=False)

    def forget_ways(self, keys: Iterable[bytes]) -> None:
        """Whoever finds these next finds them in the arena."""
        with self._lock:
            for key in keys:
                self._ways.pop(key, None)

    def request(self, hits: Sequence[bytes], computed: int, places: Sequence[str]) -> None:
        """A finished request: the blocks of its prompt that were found, and how many were computed. places: where the
        first ones of them lay, which the engine itself held; the others came from the arena, or through it."""
        with self._lock:
            for i, key in enumerate(hits):
                place = places[i] if i < len(places) else self._ways.get(key, ARENA)
                self._found[key in self._foreign][place] += 1
            self._computed += computed

    def foreign(self, keys: Iterable[bytes]) -> bool:
        """Whether another replica computed one of these."""
        with self._lock:
            return any(key in self._foreign for key in keys)

    def givers(self, keys: Iterable[bytes]) -> set[str]:
        """The addresses that those of these came from which other replicas have computed."""
        with self._lock:
            return {self._foreign[key] for key in keys if key in self._foreign}

    def given_by(self, addresses: Iterable[str]) -> list[bytes]:
        """What is known to have come from there."""
        wanted = set(addresses)
        with self._lock:
            return [key for key, address in self._foreign.items() if address in wanted]

    def forget(self, address: str) -> None:
        """Whoever was at this address is there no more."""
        with self._lock:
            for key, giver in self._foreign.items():
                if giver == address:
                    self._foreign[key] = ""

    # -- reading -------------------------------------------------------------------------------------

    @property
    def hits(self) -> Hits:
        with self._lock:
            local, shared = self._found[False], self._found[True]
            return Hits(self._computed, local.total(), shared.total(), dict(local), dict(shared))

    @property
    def counters(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counters)

    @property
    def misses(self) -> dict[str, int]:
        with self._lock:
            return dict(self._misses)

    @property
    def transfers(self) -> dict[str, Transfer]:
        with self._lock:
            return {what: Transfer(blocks, size) for what, (blocks, size) in self._transfers.items()}

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)
