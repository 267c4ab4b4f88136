"""Blocks that are lent to be read by RDMA: what they owe to the pace, who is cut off, and what is counted."""

import socket
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence

import pytest

from kvpool_agent.account import Account
from kvpool_agent.flows.answer import OwnBlocks
from kvpool_agent.flows.reading import Reading
from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import BUSY_RETRY_SECONDS, Connection, PeerBusy, PeerError
from kvpool_agent.peer.dial import Identity
from kvpool_agent.peer.lend import Lot, lend
from kvpool_agent.peer.lending import Borrow, Lent, Returned, unpack_places
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_contract.config import Drain, Loading, Prewarm, Replication
from kvpool_contract.names import format_fingerprint

WAIT = 20.0
FIELDS = {"engine": "lend"}
FORMAT = format_fingerprint(FIELDS)
SLOT, BLOCKS = 1 << 20, 8
Pair = tuple[Connection, Connection]


def key(n: int) -> bytes:
    return bytes([n]) * 16


def lot(first: int, blocks: int, seconds: float = WAIT) -> Lot:
    return Lot(first, seconds, [(SLOT * i, b"t" * 16) for i in range(blocks)], blocks * SLOT)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The source's end of a connection and the asker's."""
    ours, theirs = (Connection(sock) for sock in socket.socketpair())
    theirs.settimeout(WAIT)
    yield ours, theirs
    ours.close()
    theirs.close()


class Told:
    """What lend has told in order; `times`: whether there is time for a lot, one after the other."""

    def __init__(self, *times: bool) -> None:
        self.times, self.order = list(times), list[tuple[str, int]]()

    def lend(self, source: Connection, lots: Sequence[Lot], last: int) -> bool:
        return lend(source, iter(lots), last, self.in_time, self.note("owed"), self.note("taken"))

    def in_time(self, before: int) -> bool:
        self.order.append(("waited", before))
        return self.times.pop(0)

    def note(self, what: str) -> Callable[[int], None]:
        return lambda number: self.order.append((what, number))


def returned(asker: Connection, *numbers: int) -> None:
    """Says it before it is asked: the answers lie there when they are wanted."""
    for number in numbers:
        asker.send(Returned(number))


def test_bytes_are_owed_when_they_are_lent_and_the_last_lot_is_not_waited_for(pair: Pair) -> None:
    source, asker = pair
    returned(asker, 3, 1)
    told = Told(True, True)
    assert told.lend(source, [lot(0, 3), lot(3, 1)], 3) is False
    assert told.order == [
        ("waited", 0), ("owed", 3 * SLOT), ("taken", 3), ("waited", 3 * SLOT), ("owed", SLOT), ("taken", 1),
    ]  # fmt: skip
    for first, blocks in ((0, 3), (3, 1)):
        message, length = asker.receive()
        assert isinstance(message, Lent) and (message.first, message.seconds) == (first, WAIT)
        assert unpack_places(asker.read(length)) == lot(first, blocks).places


def test_what_was_lent_to_one_who_goes_away_is_owed_all_the_same(pair: Pair) -> None:
    source, asker = pair
    asker._socket.shutdown(socket.SHUT_WR)
    told = Told(True)
    with pytest.raises(PeerError, match="closed by the peer"):
        told.lend(source, [lot(0, 2)], 1)
    assert told.order == [("waited", 0), ("owed", 2 * SLOT)]


def test_one_who_says_nothing_for_as_long_as_the_lease_is_cut_off(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    told, waits, wait = Told(True), list[float](), pair[0].wait
    monkeypatch.setattr(pair[0], "wait", lambda seconds: (waits.append(seconds), wait(seconds)))
    with pytest.raises(PeerError, match="timed out"):
        told.lend(pair[0], [lot(0, 2, 0.05)], 1)
    assert (waits, told.order) == ([0.05], [("waited", 0), ("owed", 2 * SLOT)])


@pytest.mark.parametrize("blocks", [3, 4])
def test_more_blocks_than_were_lent_are_not_taken(pair: Pair, blocks: int) -> None:
    source, asker = pair
    returned(asker, blocks)
    told, partly = Told(True), Lot(0, WAIT, [(0, b"t" * 16), None, (SLOT, b"t" * 16)], 2 * SLOT)
    with pytest.raises(PeerError, match="Returned"):
        told.lend(source, [partly], 2)
    assert told.order[-1] == ("owed", 2 * SLOT)


def test_one_who_would_not_wait_is_told_busy_before_the_first_lot_and_that_some_are_left_out_after_it(
    pair: Pair,
) -> None:
    source, asker = pair
    with pytest.raises(PeerBusy) as busy:
        Told(False).lend(source, [lot(0, 1)], 1)
    assert busy.value.retry_after == BUSY_RETRY_SECONDS
    returned(asker, 1)
    assert Told(True, False).lend(source, [lot(0, 1), lot(1, 1)], 1) is True


def test_a_source_that_runs_out_of_lots_has_left_out_nothing(pair: Pair) -> None:
    source, asker = pair
    returned(asker, 1)
    assert Told(True, True).lend(source, [lot(0, 1)], 1) is False


# -- the answering side ------------------------------------------------------------------------------


class Member:
    """A source with blocks of which nobody reads a byte."""

    def __init__(self, table: Purposes) -> None:
        self.account = Account()
        slabs = Slabs(ArenaMemory.anonymous(BLOCKS * SLOT + (1 << 16)), 0.0)
        self.slab: Slab = slabs.open(FORMAT, FIELDS, SLOT)
        for n, slot in enumerate(self.slab.arena.reserve(BLOCKS, 0.0)):
            self.slab.arena.commit(key(n), b"", slot, b"t" * 16, foreign=False)
        self.reading = Reading(self.account, lambda: table)
        probe: object = types.SimpleNamespace(withdrawn=False)
        source = OwnBlocks(Identity("pool", "source", "inc"), slabs, self.reading, lambda: "Ready(warm)", probe)  # type: ignore[arg-type]
        self.server = serve.PeerServer("127.0.0.1", 0, source, purposes=lambda: table, count=self.account.count)
        self.server._versions = (frames.LENDING_VERSION,)
        self.server.start()

    def borrows(self, count: int, seconds: float = WAIT) -> Connection:
        made = Connection.dial(f"127.0.0.1:{self.server.port}", WAIT)
        made.send(frames.Hello([frames.LENDING_VERSION], "pool", "reader", "inc"))
        made.receive()
        made.send(Borrow(FORMAT, "demand", seconds), frames.pack_keys([key(n) for n in range(count)]))
        return made

    def until(self, word: str, count: int) -> None:
        until = time.monotonic() + WAIT
        while self.account.counters.get(word) != count:
            assert time.monotonic() < until, self.account.counters
            time.sleep(0.005)


@pytest.fixture
def member() -> Iterator[Callable[[int], Member]]:
    """rate: bytes per second for requests; 0: no bound."""
    made: list[Member] = []

    def make(rate: int) -> Member:
        loading = Loading(maxBytesPerSecond=rate) if rate else Loading()
        made.append(Member(purposes(Prewarm(), loading, Drain(), Replication())))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


def test_a_reader_that_goes_away_with_what_it_was_lent_is_counted_and_its_blocks_are_free_again(
    member: Callable[[int], Member],
) -> None:
    source = member(0)
    asker = source.borrows(2)
    assert isinstance(asker.receive()[0], Lent)
    assert source.slab.arena.leased_blocks >= 1
    asker.close()
    source.until("reads_ended_demand", 1)
    until = time.monotonic() + WAIT
    while source.slab.arena.leased_blocks:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert (source.account.counters, source.account.transfers) == ({"reads_ended_demand": 1}, {})


def test_what_a_lent_block_owes_is_waited_for_by_the_next_request_and_counted_where_that_would_not_wait(
    member: Callable[[int], Member],
) -> None:
    source = member(1 << 14)  # a minute a block
    asker = source.borrows(1)
    message, length = asker.receive()
    assert isinstance(message, Lent)
    asker.skip(length)
    asker.close()  # it has read and says nothing
    source.until("reads_ended_demand", 1)
    other = source.borrows(1, 5.0)
    answer, _ = other.receive()
    assert answer == frames.Refused("busy", BUSY_RETRY_SECONDS)
    other.close()
    counted = {"reads_ended_demand": 1, "bound_demand_out_rate": 1, "bound_demand_out_seconds": 1}
    assert source.account.counters == counted


def test_blocks_stay_for_longer_than_the_reader_is_told(
    member: Callable[[int], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, now = member(0), [0.0]
    monkeypatch.setattr("kvpool_agent.flows.reading.time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with source.reading.lots(source.slab, [key(0)], "demand") as lots:
        lent = next(lots)
        source.slab.arena.renew(0, lent.seconds + 1.0, 0.0)  # of no lease: those that are over end
        assert source.slab.arena.leased_blocks == 1


def test_a_connection_that_is_closed_takes_no_queue_pair(pair: Pair) -> None:
    ended = list[str]()
    pair[0].tie(b"one", "first", lambda: ended.append("first"))
    pair[0].tie(b"one", "second", lambda: ended.append("second"))
    assert (ended, pair[0].links) == (["first"], {b"one": "second"})
    pair[0].close()
    with pytest.raises(PeerError, match="closed"):
        pair[0].tie(b"two", "third", lambda: ended.append("third"))
    assert (ended, pair[0].links, pair[0].tied) == (["first", "second", "third"], {}, False)


def test_what_is_tied_while_others_are_being_ended_stays(pair: Pair) -> None:
    ended = list[str]()
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        assert go_on.wait(WAIT)
        ended.append("first")

    pair[0].tie(b"one", "first", slowly)
    thread = threading.Thread(target=pair[0].end_links)
    thread.start()
    assert begun.wait(WAIT)
    pair[0].end_links()  # nothing is ended twice
    pair[0].tie(b"one", "second", lambda: ended.append("second"))
    go_on.set()
    thread.join(WAIT)
    assert (ended, pair[0].links) == (["first"], {b"one": "second"})
