"""What one cache namespace has of the disk: which of its blocks lie there, what waits to be written, and its keys.

Each has a part of the quota, as large a part as of the arena, and a queue of its own: so what one tenant writes makes
no other's blocks go, and keeps none waiting. Used under the tier's lock.
"""

from collections.abc import Iterable, Iterator

from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.store.arena import Held
from kvpool_agent.store.disk.folder import Found
from kvpool_agent.store.disk.header import DEFAULT_NAMESPACE, Entry, ExtentHeader
from kvpool_agent.store.disk.index import DiskIndex, Place
from kvpool_agent.store.disk.pending import Pending
from kvpool_agent.store.heads import Heads
from kvpool_agent.store.sealing import FileKey, Seal
from kvpool_agent.store.slab import Slab


class Shelf:
    """Of one cache namespace."""

    def __init__(self, space: Space, pool: str, heads: Heads) -> None:
        self._space, self._pool = space, pool
        self.index = DiskIndex(0, heads)
        self.pending = Pending()
        self._of: tuple[bytes, ...] = ()
        self._keys: tuple[FileKey, ...] = ()
        self._swept: tuple[FileKey, ...] = ()

    @property
    def keys(self) -> tuple[FileKey, ...]:
        """What its files may be sealed under, that of now first; none where they lie in clear, or it has no key yet."""
        if self._space.files is not self._of:
            files = self._space.files
            self._keys = tuple(FileKey(self._pool, self._space.name, key) for key in files)
            self._of = files
        return self._keys

    def find(self, slab: Slab, key: bytes) -> Place | None:
        """Where the block lies; a file whose key was taken back holds nothing."""
        place = self.index.find(slab.fingerprint, key)
        if place is None or place.header.block_bytes != slab.slot_bytes:
            return None
        return place if place.header.seal is None or place.header.seal.key in self.keys else None

    def keys_changed(self) -> bool:
        """Whether it has other keys than when this was asked before."""
        before, self._swept = self._swept, self.keys
        return before != self._swept

    def give_up_unopened(self) -> list[str]:
        """Gives up the files of keys that were taken back; which. Costs a step for each file."""
        gone = [name for name, header in self.index.headers() if header.seal and header.seal.key not in self.keys]
        for name in gone:
            self.index.remove(name)
        return gone


class Shelves:
    """One for each cache namespace, in the keyring's order: the default one first, which has to do with what is
    nobody's, too."""

    def __init__(self, keyring: Keyring, heads: Heads) -> None:
        """heads: where blocks of the default one are named that begin a chain."""
        self._keyring = keyring
        self._all = [Shelf(space, keyring.pool, Heads() if i else heads) for i, space in enumerate(keyring.spaces)]

    def __iter__(self) -> Iterator[Shelf]:
        return iter(self._all)

    def of(self, slab: Slab) -> Shelf:
        return self._all[slab.number]

    @property
    def sealed(self) -> bool:
        return self._keyring.keyed

    @property
    def keys(self) -> list[FileKey]:
        return [key for shelf in self._all for key in shelf.keys]

    @property
    def all_have_keys(self) -> bool:
        """Whether a file that none of the keys opens is nobody's here."""
        return all(space.open for space in self._keyring.spaces)

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(shelf.index.used for shelf in self._all)

    @property
    def blocks(self) -> int:
        return sum(len(shelf.index) for shelf in self._all)

    @property
    def files(self) -> int:
        return sum(shelf.index.files for shelf in self._all)

    @property
    def waiting(self) -> int:
        return sum(len(shelf.pending) for shelf in self._all)

    def limit(self, quota: int) -> None:
        """Gives each its part of so many bytes; what the others leave is the default one's."""
        left = quota
        for shelf, space in list(zip(self._all, self._keyring.spaces, strict=True))[1:]:
            shelf.index.limit = quota * space.percent // 100
            left -= shelf.index.limit
        self._all[0].index.limit = max(0, left)

    def limit_to_used(self) -> None:
        for shelf in self._all:
            shelf.index.limit = shelf.index.used

    def choose(self, fingerprint: bytes) -> None:
        for shelf in self._all:
            shelf.index.choose(fingerprint)

    def add(self, found: Found, header: ExtentHeader | None) -> None:
        """A file that was found, as if used before all others; without header it is nobody's."""
        owner = next((s for s in self._all if header and header.seal and header.seal.key in s.keys), self._all[0])
        owner.index.add(found.name, found.size, header, oldest=True)

    def remove(self, name: str) -> None:
        for shelf in self._all:
            shelf.index.remove(name)

    def begin(self, fingerprint: bytes, quota: int) -> None:
        """No file is known any more. fingerprint: as of `choose`."""
        for shelf in self._all:
            shelf.index.clear()
            shelf.keys_changed()
        self.choose(fingerprint)
        self.limit(quota)


def header_of(slab: Slab, blocks: Iterable[Held], key: FileKey | None) -> ExtentHeader:
    """Of a file of these blocks that is to be written, sealed under the key if there is one."""
    entries = tuple(Entry(block.key, block.parent, block.tag) for block in blocks)
    namespace, seal = (slab.id, Seal(key, b"")) if key is not None else (DEFAULT_NAMESPACE, None)
    return ExtentHeader(slab.fingerprint, slab.slot_bytes, entries, namespace, seal)
