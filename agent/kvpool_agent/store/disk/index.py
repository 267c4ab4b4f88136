"""Which block lies in which file, how many bytes that is, and which files go first: no I/O.

Whole files go: first those that no block of the current format lies in, then the one not used for longest. A request
touches the files of its chain from the end, so that the beginning of a prompt, without which the rest is worth nothing,
stays longest. Used under the tier's lock; every call costs the same however many files there are, but those that say
otherwise.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvpool_agent.store.disk.header import Entry, ExtentHeader
from kvpool_agent.store.heads import Heads, name_of


@dataclass(frozen=True)
class Place:
    """A block in a file."""

    name: str
    header: ExtentHeader
    position: int

    @property
    def entry(self) -> Entry:
        return self.header.entries[self.position]


@dataclass(frozen=True)
class Read:
    """Blocks of one file that are to be read, each into its view. `landed(i)`: on the I/O thread, the i-th is read;
    whether it is what was written. `over`: once, when no byte will be written into any view any more."""

    name: str
    header: ExtentHeader
    places: Sequence[tuple[int, memoryview]]
    landed: Callable[[int], bool]
    over: Callable[[], None]


class DiskIndex:
    """`limit`: bytes that all files together may take."""

    def __init__(self, limit: int, heads: Heads) -> None:
        """heads: where the blocks that begin a chain are named."""
        self.limit = limit
        self._heads = heads
        self.used = 0
        self._current = b""
        self._files: dict[str, tuple[int, ExtentHeader | None]] = {}
        self._own: OrderedDict[str, None] = OrderedDict()  # of the current format, those used last at the end
        self._others: OrderedDict[str, None] = OrderedDict()
        self._places: dict[bytes, Place] = {}

    def __len__(self) -> int:
        """Blocks."""
        return len(self._places)

    @property
    def files(self) -> int:
        return len(self._files)

    def headers(self) -> list[tuple[str, ExtentHeader]]:
        """All files of which more than the size is known."""
        return [(name, header) for name, (_, header) in self._files.items() if header is not None]

    def choose(self, fingerprint: bytes) -> None:
        """The format of now. Costs a step for each file when it is another one than before."""
        if fingerprint != self._current:
            self._current = fingerprint
            names = [*self._others, *self._own]
            self._own, self._others = OrderedDict(), OrderedDict()
            for name in names:
                self._rank(name)

    def add(self, name: str, size: int, header: ExtentHeader | None, *, oldest: bool = False) -> None:
        """A file; without header one of which nothing is known but its size. oldest: as if used before all others."""
        self._files[name] = size, header
        self.used += size
        self._rank(name)
        if oldest:
            (self._own if name in self._own else self._others).move_to_end(name, last=False)
        for position, entry in enumerate(header.entries if header is not None else ()):
            if not (oldest and entry.key in self._places):
                self._places[entry.key] = Place(name, header, position)  # type: ignore[arg-type]
                if not entry.parent:
                    self._heads.put(name_of(entry.key))

    def remove(self, name: str) -> None:
        """Costs a step for each block of the file; one that is not here harms nothing."""
        size, header = self._files.pop(name, (0, None))
        self.used -= size
        self._own.pop(name, None)
        self._others.pop(name, None)
        for entry in header.entries if header is not None else ():
            place = self._places.get(entry.key)
            if place is not None and place.name == name:
                del self._places[entry.key]
                if not entry.parent:
                    self._heads.take(name_of(entry.key))

    def clear(self) -> None:
        """Nothing is held any more."""
        for name in list(self._files):
            self.remove(name)

    def find(self, fingerprint: bytes, key: bytes) -> Place | None:
        place = self._places.get(key)
        return place if place is not None and place.header.fingerprint == fingerprint else None

    def touch(self, keys: Iterable[bytes]) -> None:
        """One request contained these blocks; the last one's file is the freshest then."""
        for key in keys:
            place = self._places.get(key)
            if place is not None and place.name in self._own:
                self._own.move_to_end(place.name)

    def make_room(self, size: int) -> list[str]:
        """Gives up files until `size` more bytes fit; which, in that order."""
        gone: list[str] = []
        while self.used + size > self.limit and (self._others or self._own):
            gone.append(next(iter(self._others or self._own)))
            self.remove(gone[-1])
        return gone

    def _rank(self, name: str) -> None:
        _, header = self._files[name]
        own = header is not None and header.fingerprint == self._current
        (self._own if own else self._others)[name] = None
