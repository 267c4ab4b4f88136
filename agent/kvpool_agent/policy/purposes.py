"""The purposes of a transfer and the bounds of each, at both ends: the one table in which a purpose is added.

Each purpose has streams, bytes per second and a part of the arena of its own, so that none can starve another: a
cohort of newcomers takes no place from a request. Whatever a bound is, one block at a time always passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvpool_contract.config import Drain, Loading, Prewarm, Replication

DEMAND, PREWARM, DRAIN, REPLICATE, PROBE = "demand", "prewarm", "drain", "replicate", "probe"
PACED_SECONDS = 0.1  # of a bounded rate are asked for at a time
PARTS = 4  # that share the bytes in flight: a long fetch goes in parts and lets others in between
STREAM_BYTES = 8 << 20  # that one stream of a source keeps in their slots at a time
LENT_BYTES = 64 << 20  # likewise where the reader takes them itself, with one question and answer for all of them


@dataclass(frozen=True)
class Receiving:
    """Of one member's fetches: streams at a time, bytes per second (0: no bound), the part of the arena that may be
    reserved for bytes on their way, fetches that wait for a stream, times that a busy source is asked again."""

    streams: int
    bytes_per_second: float
    arena_percent: int
    queue: int
    busy_tries: int

    def room(self, arena_bytes: int) -> int:
        """Bytes that may be on their way at a time."""
        return arena_bytes * self.arena_percent // 100

    def places(self, arena_bytes: int) -> dict[str, int]:
        """What may be on its way at a time, and who waits, as a gate takes it."""
        return {"streams": self.streams, "room": self.room(arena_bytes), "queue": self.queue}

    def part_blocks(self, slot_bytes: int, arena_bytes: int) -> int:
        """Blocks that are asked for at a time."""
        part = self.room(arena_bytes) // PARTS
        if self.bytes_per_second:
            part = min(part, int(self.bytes_per_second * PACED_SECONDS))
        return max(1, part // slot_bytes)


@dataclass(frozen=True)
class Sending:
    """Of one source, to all members together: streams at a time, bytes per second (0: no bound), and the part of the
    arena that may be kept from eviction by what is being read. Who finds no place is told when to ask again."""

    streams: int
    bytes_per_second: float
    arena_percent: int

    def room(self, arena_bytes: int) -> int:
        """Bytes that may be kept at a time."""
        return arena_bytes * self.arena_percent // 100

    def window_blocks(self, slot_bytes: int, arena_bytes: int, most: int = STREAM_BYTES) -> int:
        """Blocks that one stream keeps at a time, of `most` bytes."""
        return max(1, min(most, self.room(arena_bytes) // self.streams) // slot_bytes)


@dataclass(frozen=True)
class Purpose:
    receiving: Receiving
    sending: Sending


Purposes = Mapping[str, Purpose]

# Reads of this member's own disk for its own requests: no purpose that another member may name.
DISK_READS = Receiving(streams=4, bytes_per_second=0, arena_percent=25, queue=64, busy_tries=0)


def purposes(prewarm: Prewarm, loading: Loading, drain: Drain, replication: Replication) -> Purposes:
    """The table under this configuration. A warm-up asks busy sources again at a pace of its own; of members that
    leave two at a time are taken over from, and one gives to four; second copies are one
    stream's work; a probe's few rows come from the source's engine,
    not from its arena."""
    rate, warm_rate, drain_rate = loading.maxBytesPerSecond, prewarm.maxBytesPerSecond, drain.maxBytesPerSecond
    copy_rate = max(1, replication.maxBytesPerSecond)  # with 0 nobody offers
    return {
        DEMAND: Purpose(Receiving(16, rate, 50, 64, 8), Sending(8, rate, 25)),
        PREWARM: Purpose(
            Receiving(prewarm.maxStreams, warm_rate, 25, prewarm.maxStreams, 0),
            Sending(prewarm.sourceMaxStreams, warm_rate, 10),
        ),
        DRAIN: Purpose(Receiving(2, drain_rate, 15, 64, 8), Sending(4, drain_rate, 10)),
        REPLICATE: Purpose(Receiving(1, copy_rate, 5, 16, 8), Sending(2, copy_rate, 3)),
        PROBE: Purpose(Receiving(1, 0, 1, 1, 0), Sending(2, 0, 1)),
    }


def default_purposes() -> Purposes:
    return purposes(Prewarm(), Loading(), Drain(), Replication())
