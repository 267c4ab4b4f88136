"""The answering side's bounds over real sockets: readers that stand still, askers that trickle, too many of them."""

import socket
import ssl
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from authority import CLUSTER, K8S_NAMESPACE, Authority, member_uri
from trusted import client_context

from kvpool_agent.account import Account
from kvpool_agent.flows.answer import OwnBlocks
from kvpool_agent.flows.reading import Reading
from kvpool_agent.identity.credentials import Credentials, read_credentials
from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import Connection, PeerBusy, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.tls import CLEAR, Tls
from kvpool_agent.policy.purposes import Purposes, default_purposes, purposes
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_contract.config import Drain, Loading, Prewarm, Replication
from kvpool_contract.identity import CertificateName
from kvpool_contract.names import format_fingerprint

WAIT = 20.0
FIELDS = {"engine": "bounds"}
FORMAT = format_fingerprint(FIELDS)
SLOT, BLOCKS = 4 << 20, 8
AUTHORITY = Authority()


def key(n: int) -> bytes:
    return bytes([n]) * 16


def credentials(name: str) -> Credentials:
    return read_credentials(*AUTHORITY.leaf(member_uri("pool", name)), AUTHORITY.certificate)


def inside_tls(name: str, count: Callable[[str], None] = lambda _word: None) -> Tls:
    own = credentials(name)
    return Tls(lambda: own, CertificateName(CLUSTER, K8S_NAMESPACE, "pool"), count)


class Member:
    """A real source: an arena with blocks, and its answering side."""

    def __init__(
        self,
        table: Callable[[], Purposes] = default_purposes,
        slot: int = SLOT,
        slots: int = BLOCKS,
        *,
        tls: bool = False,
    ) -> None:
        self.account = Account()
        slabs = Slabs(ArenaMemory.anonymous(slots * slot + (1 << 16)), 0.0)
        self.slab: Slab = slabs.open(FORMAT, FIELDS, slot)
        for n, slot_number in enumerate(self.slab.arena.reserve(BLOCKS, 0.0)):
            view = self.slab.view(slot_number)
            view[:] = key(n) * (slot // 16)
            self.slab.arena.commit(key(n), b"", slot_number, tag_of(key(n), view), foreign=False)
        identity = Identity("pool", "source", "inc")
        probe = types.SimpleNamespace(withdrawn=False)
        source = OwnBlocks(identity, slabs, Reading(self.account, table), lambda: "Ready(warm)", probe)  # type: ignore[arg-type]
        count = self.account.count
        transport = inside_tls("source", count) if tls else CLEAR
        self.server = serve.PeerServer("127.0.0.1", 0, source, purposes=table, count=count, transport=transport)
        self.server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def kept(self) -> int:
        """Blocks that may not be evicted now."""
        return kept(self.slab, time.monotonic())


def kept(slab: Slab, now: float) -> int:
    slab.arena.renew(0, now, 0.0)  # of no lease: those that are over end
    return slab.arena.leased_blocks


@pytest.fixture
def dialer() -> Iterator[Dialer]:
    made = Dialer(Identity("pool", "asker", "inc"))
    yield made
    made.close()


@contextmanager
def member(*arguments: object, **options: object) -> Iterator[Member]:
    made = Member(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.server.close()


class Landed:
    """Where a fetch lands; `before(index)` runs before a block is read."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.before: Callable[[int], None] = lambda _index: None

    def __call__(self, index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        self.before(index)
        data = memoryview(bytearray(length))
        read_into(data)
        assert tag_of(key(index), data) == tag
        self.blocks.append(index)


def asks(address: str, count: int, seconds: float = WAIT) -> Connection:
    """A connection that has asked for the first blocks and reads nothing by itself; its buffer is a small one."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect((host, int(port)))
    made = Connection(sock)
    made.settimeout(WAIT)
    made.send(frames.Hello([1], "pool", "reader", "inc"))
    made.receive()
    made.send(frames.Fetch(FORMAT, "demand", seconds), frames.pack_keys([key(n) for n in range(count)]))
    return made


def keys(count: int) -> Sequence[bytes]:
    return [key(n) for n in range(count)]


def test_a_reader_that_stands_still_is_cut_off_and_its_blocks_may_be_evicted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "PROGRESS_SECONDS", 0.3)
    with member() as source:
        reader = asks(source.address, BLOCKS)
        until(lambda: source.kept == 1)
        until(lambda: source.account.counters.get("reads_ended_demand") == 1)
        until(lambda: source.kept == 0)
        with pytest.raises(PeerError):
            while True:
                reader.skip(reader.receive()[1])
        reader.close()


def test_a_lease_ends_by_itself_however_stuck_its_reader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives it back: the thread that sends is held for good."""
    now = [0.0]
    with member() as source:
        monkeypatch.setattr("kvpool_agent.flows.reading.time", _Clock(now))
        with Reading(source.account).blocks(source.slab, keys(2), "demand") as blocks:
            next(blocks)
            assert kept(source.slab, serve.read_seconds(SLOT) - 0.1) == 1
            assert kept(source.slab, serve.read_seconds(SLOT) + 0.1) == 0


class _Clock:
    def __init__(self, now: list[float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]


def test_a_slow_reader_that_goes_on_gets_every_byte_and_keeps_what_it_reads(
    dialer: Dialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer for a block than a reader may that stands still."""
    monkeypatch.setattr(serve, "PROGRESS_SECONDS", 1.5)
    with member() as source:
        reader = asks(source.address, 2)
        kept_all_along = True
        for n in range(2):
            message, length = reader.receive()
            assert isinstance(message, frames.Block) and length == SLOT
            data = bytearray()
            for _ in range(16):
                data += reader.read(SLOT // 16)
                if n == 0:  # the last bytes of the last one lie in the kernel
                    time.sleep(0.1)
                    kept_all_along &= source.kept == 1
            assert tag_of(key(n), memoryview(data)) == message.tag
        assert kept_all_along
        assert isinstance(reader.receive()[0], frames.FetchEnd)
        reader.close()
        assert source.account.counters == {}


def test_what_the_asker_would_not_wait_for_is_not_sent(dialer: Dialer) -> None:
    slow = purposes(Prewarm(), Loading(maxBytesPerSecond=1 << 16), Drain(), Replication())
    with member(lambda: slow) as source:
        reader = asks(source.address, 3, seconds=20.0)  # a minute a block
        message, length = reader.receive()
        assert isinstance(message, frames.Block)
        reader.skip(length)
        assert isinstance(reader.receive()[0], frames.FetchEnd)
        assert source.account.counters == {"bound_demand_out_rate": 1, "bound_demand_out_seconds": 1}
        assert source.account.transfers["demand_out"].blocks == 1
        reader.close()


def test_one_who_would_not_wait_for_the_first_block_is_told_busy_and_not_that_none_is_held(dialer: Dialer) -> None:
    table = [purposes(Prewarm(), Loading(maxBytesPerSecond=1 << 16), Drain(), Replication())]
    with member(lambda: table[0]) as source:
        landed = Landed()
        dialer.fetch(source.address, FORMAT, keys(1), "demand", time.monotonic() + WAIT, landed)  # a minute's bytes
        for _ in range(2):
            (connection,) = dialer._idle[source.address]
            with pytest.raises(PeerBusy):
                dialer.fetch(source.address, FORMAT, keys(2), "demand", time.monotonic() + 5, landed)
            assert dialer._idle[source.address] == [connection]  # to ask again takes no handshake
        assert (landed.blocks, source.account.counters["bound_demand_out_seconds"]) == ([0], 2)
        table[0] = purposes(Prewarm(), Loading(maxBytesPerSecond=32 << 20), Drain(), Replication())
        dialer.fetch(source.address, FORMAT, keys(1), "demand", time.monotonic() + WAIT, landed)  # it is waited for
        assert landed.blocks == [0, 0]


def test_requests_are_served_while_newcomers_hold_all_of_their_streams(dialer: Dialer) -> None:
    with member(slots=32) as source:
        inside, go_on = threading.Semaphore(0), threading.Event()

        def hold(index: int) -> None:
            if index == 0:
                inside.release()
                assert go_on.wait(WAIT)

        landed = [Landed() for _ in range(2)]
        newcomers = [Dialer(Identity("pool", name, "inc")) for name in ("new", "newer")]
        threads = []
        for into, newcomer in zip(landed, newcomers, strict=True):
            into.before = hold
            threads.append(threading.Thread(target=fetch, args=(newcomer, source, "prewarm", 4, into)))
            threads[-1].start()
            assert inside.acquire(timeout=WAIT)
        with pytest.raises(PeerBusy):
            fetch(dialer, source, "prewarm", 1, Landed())
        into = Landed()
        fetch(dialer, source, "demand", 4, into)
        assert into.blocks == [0, 1, 2, 3]
        go_on.set()
        for thread in threads:
            thread.join(WAIT)
        for newcomer in newcomers:
            newcomer.close()
        assert [one.blocks for one in landed] == [[0, 1, 2, 3]] * 2
        assert source.account.counters["bound_prewarm_out_streams"] == 1
        assert not any(word.startswith("bound_demand") for word in source.account.counters)


def fetch(dialer: Dialer, source: Member, purpose: str, count: int, into: Landed) -> None:
    dialer.fetch(source.address, FORMAT, keys(count), purpose, time.monotonic() + WAIT, into)


def test_a_source_sends_no_faster_than_its_purpose_may(dialer: Dialer) -> None:
    table = purposes(Prewarm(maxBytesPerSecond=8 << 20), Loading(), Drain(), Replication())
    with member(lambda: table, slot=1 << 20) as source:
        began = time.monotonic()
        fetch(dialer, source, "prewarm", BLOCKS, Landed())
        assert time.monotonic() - began >= (BLOCKS - 1) / 8  # all but the last block are waited for
        assert source.account.counters["bound_prewarm_out_rate"] == BLOCKS - 1


def test_a_source_that_stops_at_its_rate_says_so(dialer: Dialer) -> None:
    table = purposes(Prewarm(maxBytesPerSecond=1 << 20), Loading(), Drain(), Replication())
    with member(lambda: table, slot=1 << 20) as source:
        for seconds, stopped in ((1.5, True), (WAIT, False)):
            landed = Landed()
            deadline = time.monotonic() + seconds
            assert dialer.fetch(source.address, FORMAT, keys(3), "prewarm", deadline, landed) is stopped
            assert (len(landed.blocks) < 3) is stopped


class Apart:
    """A client's end of TLS without a socket: its bytes are the test's to send."""

    def __init__(self) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = client_context(credentials("m")).wrap_bio(self._in, self._out)

    def opening(self) -> bytes:
        with suppress(ssl.SSLWantReadError):
            self._end.do_handshake()
        return self._out.read()

    def shake_hands(self, sock: socket.socket) -> None:
        sock.sendall(self.opening())
        while True:
            self._in.write(sock.recv(1 << 16))
            with suppress(ssl.SSLWantReadError):
                self._end.do_handshake()
                break
        sock.sendall(self._out.read())

    def records(self, data: bytes) -> bytes:
        """One for each byte."""
        for byte in data:
            self._end.write(bytes([byte]))
        return self._out.read()


@pytest.mark.parametrize("tls", [True, False], ids=["inside TLS", "in clear"])
@pytest.mark.parametrize("part", ["handshake", "request"])
def test_an_asker_that_trickles_is_cut_off(part: str, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, the whole does not."""
    monkeypatch.setattr(serve, "HANDSHAKE_SECONDS" if part == "handshake" else "FRAME_SECONDS", 1.0)
    with member(tls=tls) as source:
        sock, end = socket.create_connection(("127.0.0.1", source.server.port), timeout=WAIT), Apart()
        data = frames.encode(frames.Hello([1], "pool", "m" * 200, "i"))
        if part == "request":
            hello = frames.encode(frames.Hello([1], "pool", "m", "i"))
            if tls:
                end.shake_hands(sock)
                hello, data = end.records(hello), end.records(data)
            sock.sendall(hello)
            assert sock.recv(1000)
        elif tls:
            data = end.opening()
        with suppress(ConnectionError), sock:
            for byte in data:
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
            raise AssertionError("it was read to its end")
        until(lambda: not source.server._open)
        handshake = {"handshakes_failed": 1, **({"tls_refused_peer_handshake": 1} if tls else {})}
        assert source.account.counters == (handshake if part == "handshake" else {"tls_accepted": 1} if tls else {})
        monkeypatch.undo()
        asker = Dialer(Identity("pool", "asker", "inc"), inside_tls("asker") if tls else CLEAR)
        assert asker.locate(source.address, FORMAT, keys(2), WAIT) == [True, True]
        asker.close()


def test_connections_that_never_say_who_they_are_leave_places_for_those_that_do(
    monkeypatch: pytest.MonkeyPatch, dialer: Dialer
) -> None:
    monkeypatch.setattr(serve, "MAX_HANDSHAKES", 3)
    monkeypatch.setattr(serve, "HANDSHAKE_SECONDS", 1.5)
    with member() as source:
        silent = [socket.create_connection(("127.0.0.1", source.server.port)) for _ in range(5)]
        until(lambda: source.account.counters.get("bound_handshakes") == 2)
        until(lambda: source.account.counters.get("handshakes_failed") == 3)  # a place is free again in a bounded time
        monkeypatch.undo()
        assert dialer.locate(source.address, FORMAT, keys(2), WAIT) == [True, True]
        for sock in silent:
            sock.close()


def test_connections_beyond_the_bound_are_closed_and_counted(monkeypatch: pytest.MonkeyPatch, dialer: Dialer) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 2)
    with member() as source:
        first, _ = dialer.handshake(source.address, WAIT)
        second, _ = dialer.handshake(source.address, WAIT)
        with pytest.raises(PeerError):
            dialer.handshake(source.address, WAIT)
        assert source.account.counters == {"bound_connections": 1}
        first.close()
        until(lambda: len(source.server._open) == 1)
        third, _ = dialer.handshake(source.address, WAIT)
        second.close()
        third.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(("proved", "template"), [(True, "revision"), (False, "")])
def test_a_member_whose_format_is_a_guess_tells_no_template_to_guess_by(proved: bool, template: str) -> None:
    slabs = Slabs(ArenaMemory.anonymous(16 * 4096), 0.0)
    slabs.open(FORMAT, FIELDS, 4096)
    identity = Identity("pool", "uid", "inc", "revision")
    probe = types.SimpleNamespace(withdrawn=False)
    source = OwnBlocks(identity, slabs, Reading(Account()), lambda: "Ready(degraded)", probe, lambda: proved)  # type: ignore[arg-type]
    welcome = source.welcome(2)
    assert (welcome.template, welcome.format) == (template, FORMAT.hex())
