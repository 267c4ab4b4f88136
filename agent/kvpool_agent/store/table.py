"""The headers in the arena's memory: written so that no moment of death leaves a slot that looks filled and isn't.

A block's bytes come first, its header after them, the header's state last; a header is taken back by its state
first, before the slot can be given to a writer. Stores of one process are seen by the next in their order, since
both map the same pages.
"""

from collections.abc import Iterator
from typing import Any

from kvpool_agent.store import headers
from kvpool_agent.store.headers import ArenaHeader, SlotHeader


class HeaderTable:
    """The slot headers of one cut of the memory."""

    def __init__(self, memory: memoryview, header: ArenaHeader) -> None:
        self.header = header
        tail = headers.ARENA_HEADER_BYTES + len(headers.encode_fields(header.fields))
        self._memory = memory
        self._at = len(memory) - tail - header.slot_count * headers.SLOT_HEADER_BYTES

    @classmethod
    def found(cls, memory: memoryview) -> "HeaderTable | None":
        """The table that an earlier worker has left in the memory."""
        header = headers.decode_arena(memory)
        return cls(memory, header) if header is not None else None

    @classmethod
    def made(cls, memory: memoryview, fingerprint: bytes, fields: dict[str, Any], slot_bytes: int) -> "HeaderTable":
        """Cuts the memory anew, all slots free. Slots of an earlier cut may be overwritten."""
        count = headers.slots_that_fit(len(memory), slot_bytes, len(headers.encode_fields(fields)))
        table = cls(memory, ArenaHeader(fingerprint, fields, slot_bytes, count))
        table.wipe()
        length = count * headers.SLOT_HEADER_BYTES
        memory[table._at : table._at + length] = bytes(length)
        encoded = headers.encode_arena(table.header)
        end = len(memory) - headers.ARENA_HEADER_BYTES
        first = len(headers.MAGIC)
        memory[len(memory) - len(encoded) : end] = encoded[: -headers.ARENA_HEADER_BYTES]
        memory[end + first :] = encoded[first - headers.ARENA_HEADER_BYTES :]
        memory[end : end + first] = headers.MAGIC
        return table

    def wipe(self) -> None:
        """Makes the memory one without headers: nobody recovers anything from it."""
        end = len(self._memory) - headers.ARENA_HEADER_BYTES
        self._memory[end : end + len(headers.MAGIC)] = bytes(len(headers.MAGIC))

    def fill(self, slot: int, block: SlotHeader) -> None:
        """The slot holds this block; its bytes are in."""
        data, at = headers.encode_slot(slot, block), self._offset(slot)
        self._memory[at + 1 : at + len(data)] = data[1:]
        self._memory[at] = data[0]

    def clear(self, slot: int) -> None:
        self._memory[self._offset(slot)] = headers.FREE

    def read(self, slot: int) -> SlotHeader | None:
        """The block that the slot says it holds; None where that does not check."""
        at = self._offset(slot)
        return headers.decode_slot(slot, bytes(self._memory[at : at + headers.SLOT_HEADER_BYTES]))

    def not_free(self) -> Iterator[int]:
        """Slots whose state is another than free."""
        step = headers.SLOT_HEADER_BYTES
        states = bytes(self._memory[self._at : self._at + self.header.slot_count * step : step])
        return (slot for slot, state in enumerate(states) if state != headers.FREE)

    def _offset(self, slot: int) -> int:
        return self._at + slot * headers.SLOT_HEADER_BYTES
