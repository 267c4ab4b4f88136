"""Agents over real loopback sockets: the asking and the answering side, and everything that can go wrong between."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from kvpool_agent.peer import frames, serve
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.purposes import default_purposes
from kvpool_agent.store.heads import Told

FORMAT = b"f" * 16
KEYS = [bytes([n]) * 16 for n in range(6)]
WAIT = 10.0


class Shelf:
    """A source with some blocks; `before(index)` runs before a block is sent."""

    def __init__(self, held: Sequence[int] = range(6), pool: str = "pool") -> None:
        self.pool = pool
        self.identity = ("source", "inc")
        self.data = {KEYS[n]: bytes([n]) * 100_000 for n in held}
        self.before: Callable[[int], None] = lambda _index: None

    def welcome(self, version: int) -> frames.Welcome:
        return frames.Welcome(version, *self.identity, "Ready(warm)", FORMAT.hex(), len(self.data))

    def holds(self, fingerprint: bytes, keys: Sequence[bytes]) -> list[bool]:
        return [fingerprint == FORMAT and key in self.data for key in keys]

    def hottest(self, fingerprint: bytes, limit: int) -> list[HotBlock]:
        return [HotBlock(key, b"", 0, 1.0) for key in self.data][:limit]

    def heads(self, fingerprint: bytes, since: int, seconds: float) -> Told:
        return Told(2, True, tuple(key[:8] for key in self.data))

    @contextmanager
    def blocks(
        self, fingerprint: bytes, keys: Sequence[bytes], purpose: str
    ) -> Iterator[Iterator[tuple[int, bytes, memoryview]]]:
        def each() -> Iterator[tuple[int, bytes, memoryview]]:
            for index, key in enumerate(keys):
                if key in self.data:
                    self.before(index)
                    yield index, b"t" * 16, memoryview(self.data[key])

        yield each()


class Landed:
    """Where a fetch lands: (index, bytes) in the order they came."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, bytes]] = []

    def __call__(self, index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        data = bytearray(length)
        read_into(memoryview(data))
        self.blocks.append((index, bytes(data)))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[serve.PeerServer]:
    made = serve.PeerServer("127.0.0.1", 0, shelf)
    made.start()
    yield made
    made.close()


@pytest.fixture
def address(server: serve.PeerServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def dialer() -> Iterator[Dialer]:
    made = Dialer(Identity("pool", "asker", "inc"))
    yield made
    made.close()


def fetch(dialer: Dialer, address: str, landed: Landed, purpose: str = "demand", seconds: float = WAIT) -> None:
    dialer.fetch(address, FORMAT, KEYS, purpose, time.monotonic() + seconds, landed)


def test_a_fetch_streams_what_is_held_in_order_with_its_bytes(dialer: Dialer, shelf: Shelf, address: str) -> None:
    del shelf.data[KEYS[2]]
    landed = Landed()
    fetch(dialer, address, landed)
    assert landed.blocks == [(n, bytes([n]) * 100_000) for n in (0, 1, 3, 4, 5)]


def test_lookups_and_hot_lists_are_answered(dialer: Dialer, shelf: Shelf, address: str) -> None:
    del shelf.data[KEYS[1]]
    assert dialer.locate(address, FORMAT, KEYS, WAIT) == [True, False, True, True, True, True]
    assert dialer.locate(address, b"g" * 16, KEYS, WAIT) == [False] * 6
    assert [block.key for block in dialer.hot(address, FORMAT, 2, WAIT)] == [KEYS[0], KEYS[2]]


def test_what_came_before_a_source_broke_off_is_kept(dialer: Dialer, shelf: Shelf, address: str) -> None:
    def broken(index: int) -> None:
        if index == 3:
            raise RuntimeError("the source fails in the middle")

    shelf.before = broken
    landed = Landed()
    with pytest.raises(PeerError, match="closed by the peer"):
        fetch(dialer, address, landed)
    assert [index for index, _ in landed.blocks] == [0, 1, 2]


def test_a_source_that_hangs_ends_the_fetch_at_its_deadline(dialer: Dialer, shelf: Shelf, address: str) -> None:
    go_on = threading.Event()

    def hang(index: int) -> None:
        if index == 2:
            go_on.wait(WAIT)

    shelf.before = hang
    landed = Landed()
    with pytest.raises(PeerError, match="timed out"):
        fetch(dialer, address, landed, seconds=0.2)
    go_on.set()
    assert [index for index, _ in landed.blocks] == [0, 1]


def test_a_fault_while_landing_closes_the_connection_and_the_next_fetch_has_a_new_one(
    dialer: Dialer, address: str
) -> None:
    def refuses(*_: object) -> None:
        raise PeerError("no")

    with pytest.raises(PeerError, match="no"):
        dialer.fetch(address, FORMAT, KEYS, "demand", time.monotonic() + WAIT, refuses)
    landed = Landed()
    fetch(dialer, address, landed)
    assert len(landed.blocks) == 6


def test_another_pool_is_refused_by_name(server: serve.PeerServer, address: str) -> None:
    stranger = Dialer(Identity("other", "asker", "inc"))
    with pytest.raises(PeerError, match="refused: other_pool"):
        stranger.locate(address, FORMAT, KEYS, WAIT)


def test_another_version_is_refused_by_name(server: serve.PeerServer, address: str) -> None:
    connection = Connection.dial(address, WAIT)
    connection.settimeout(WAIT)
    connection.send(frames.Hello([99], "pool", "asker", "inc"))
    assert connection.receive() == (frames.Refused("peer_version"), 0)
    connection.close()


def test_more_streams_than_the_bound_are_told_busy_and_served_later(shelf: Shelf, address: str) -> None:
    go_on, inside = threading.Event(), threading.Semaphore(0)

    def hold(index: int) -> None:
        if index == 0:
            inside.release()
            assert go_on.wait(WAIT)

    shelf.before = hold
    streams = default_purposes()["demand"].sending.streams
    dialers = [Dialer(Identity("pool", f"asker{n}", "inc")) for n in range(streams)]
    landed = [Landed() for _ in dialers]
    threads = [
        threading.Thread(target=fetch, args=(one, address, into)) for one, into in zip(dialers, landed, strict=True)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=WAIT)
    late = Dialer(Identity("pool", "late", "inc"))
    with pytest.raises(PeerError, match="refused: busy"):
        fetch(late, address, Landed())
    assert late.locate(address, FORMAT, KEYS, WAIT) == [True] * 6  # a lookup needs no stream
    go_on.set()
    for thread in threads:
        thread.join()
    assert all(len(into.blocks) == 6 for into in landed)
    into = Landed()
    fetch(late, address, into)
    assert len(into.blocks) == 6
    for one in (*dialers, late):
        one.close()


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"\0" * 8,
        frames.encode(frames.Ping()),
        frames.encode(frames.Hello([1], "pool", "m", "i"), 5) + b"tail!",
    ],
    ids=["http", "ones", "zeros", "ping-first", "hello-with-tail"],
)
def test_a_connection_that_begins_with_something_else_is_closed_without_an_answer(
    server: serve.PeerServer, dialer: Dialer, address: str, first: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as sock:
        sock.sendall(first)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""
    assert dialer.locate(address, FORMAT, KEYS, WAIT) == [True] * 6


@pytest.mark.parametrize(
    "message",
    [frames.FetchEnd(), frames.Fetch(FORMAT, "curiosity", 1.0), frames.Hello([1], "pool", "m", "i")],
    ids=["answer", "purpose", "second-hello"],
)
def test_a_frame_out_of_place_ends_the_connection(address: str, dialer: Dialer, message: frames.AnyMessage) -> None:
    connection, _ = dialer.handshake(address, WAIT)
    connection.send(message)
    with pytest.raises(PeerError):
        connection.receive()
    connection.close()


def test_a_list_of_keys_over_the_limit_ends_the_connection_before_it_is_read(address: str, dialer: Dialer) -> None:
    connection, _ = dialer.handshake(address, WAIT)
    connection._socket.sendall(frames.encode(frames.Locate(FORMAT), frames.MAX_TAIL))
    with pytest.raises(PeerError):
        connection.receive()
    connection.close()


def test_an_idle_connection_is_used_again(dialer: Dialer, server: serve.PeerServer, address: str) -> None:
    for _ in range(3):
        dialer.locate(address, FORMAT, KEYS, WAIT)
    assert len(server._open) == 1


def test_idle_connections_that_a_restarted_source_closed_are_not_used_again(shelf: Shelf, dialer: Dialer) -> None:
    old = serve.PeerServer("127.0.0.1", 0, shelf)
    old.start()
    address = f"127.0.0.1:{old.port}"
    connections = [dialer.handshake(address, WAIT)[0] for _ in range(3)]
    dialer._idle[address] = list(connections)
    old.close()
    new = serve.PeerServer("127.0.0.1", old.port, shelf)
    new.start()
    try:
        assert dialer.locate(address, FORMAT, KEYS, WAIT) == [True] * 6
    finally:
        new.close()


def test_a_source_that_is_not_there_is_one_peer_error(dialer: Dialer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "127.0.0.1:no", "nonsense", "127.0.0.1:99999999"):
        with pytest.raises(PeerError):
            dialer.locate(address, FORMAT, KEYS, WAIT)


def test_a_source_that_answers_nonsense_is_one_peer_error(dialer: Dialer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError, match="over the limits"):
            dialer.locate(f"127.0.0.1:{listening.getsockname()[1]}", FORMAT, KEYS, WAIT)
        thread.join()


def test_a_deadline_that_has_passed_asks_nobody(dialer: Dialer) -> None:
    with pytest.raises(PeerError, match="the deadline has passed"):
        dialer.fetch("127.0.0.1:1", FORMAT, KEYS, "demand", time.monotonic() - 1, Landed())


def test_a_tail_that_nobody_wants_is_skipped() -> None:
    left, right = socket.socketpair()
    connection = Connection(right)
    connection.settimeout(WAIT)
    sender = threading.Thread(target=left.sendall, args=(b"x" * (3 << 20) + b"end",))
    sender.start()
    connection.skip(3 << 20)
    assert connection.read(3) == b"end"
    sender.join()
    left.close()
    connection.close()


@pytest.mark.parametrize("identity", [("other", "inc"), ("source", "next")], ids=["member", "incarnation"])
def test_a_request_meant_for_one_member_is_not_asked_of_the_next_at_its_address(
    dialer: Dialer, shelf: Shelf, address: str, identity: tuple[str, str]
) -> None:
    dialer.locate(address, FORMAT, KEYS, WAIT)
    shelf.identity = identity
    assert dialer.locate(address, FORMAT, KEYS, WAIT) == [True] * 6  # the open connection ends at the first one still
    dialer.drop_idle(address)
    landed = Landed()
    with pytest.raises(PeerError, match="has come to this address"):
        fetch(dialer, address, landed)
    assert landed.blocks == []
    fetch(dialer, address, landed)  # meant for the one that is known now
    assert len(landed.blocks) == 6


def test_idle_connections_to_an_incarnation_that_is_no_more_are_dropped(
    dialer: Dialer, shelf: Shelf, server: serve.PeerServer, address: str
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(index: int) -> None:
        inside.set()
        assert go_on.wait(WAIT)

    dialer.locate(address, FORMAT, KEYS, WAIT)
    shelf.before = hold
    thread = threading.Thread(target=fetch, args=(dialer, address, Landed()))
    thread.start()
    assert inside.wait(WAIT)
    dialer._idle[address] = [dialer.handshake(address, WAIT)[0]]
    (idle,) = dialer._idle[address]
    shelf.identity = ("source", "next")
    newer, _ = dialer.handshake(address, WAIT)
    assert not idle.quiet  # closed
    go_on.set()
    thread.join()
    assert not dialer._idle.get(address)  # what was lent to the old one is not kept either
    newer.close()


def test_blocks_out_of_order_or_twice_end_the_fetch_and_what_came_is_kept(dialer: Dialer) -> None:
    for order in ([0, 0], [1, 0], [0, 6]):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def answer(listening: socket.socket = listening, order: list[int] = order) -> None:
                sock, _ = listening.accept()
                connection = Connection(sock)
                connection.settimeout(WAIT)
                connection.receive()
                connection.send(frames.Welcome(1, "m", "i", "Ready(warm)", "", 1))
                connection.read(connection.receive()[1])
                with suppress(PeerError):
                    for index in order:
                        connection.send(frames.Block(index, b"t" * 16), b"data")
                with suppress(PeerError):
                    connection.receive()
                connection.close()

            thread = threading.Thread(target=answer)
            thread.start()
            landed = Landed()
            with pytest.raises(PeerError, match="bad answer to a fetch: Block"):
                fetch(dialer, f"127.0.0.1:{listening.getsockname()[1]}", landed)
            thread.join()
            assert [index for index, _ in landed.blocks] == order[:1]


def test_a_connection_that_was_closed_meanwhile_is_a_peer_error_and_no_fault_of_this_process() -> None:
    left, right = socket.socketpair()
    connection = Connection(left)
    connection.close()
    with right, pytest.raises(PeerError, match="closed"):
        connection.settimeout(1.0)


def test_a_pool_of_a_hundred_has_its_pings_its_announcements_and_its_questions_answered(
    server: serve.PeerServer,
) -> None:
    address, kept = f"127.0.0.1:{server.port}", list[Connection]()

    def answered(connection: Connection) -> bool:
        connection.send(frames.Ping())
        return isinstance(connection.receive()[0], frames.Welcome)

    for member in range(100):
        dialer = Dialer(Identity("pool", f"m{member}", "inc"))
        for _ in range(3):
            kept.append(dialer.handshake(address, WAIT)[0])
            assert answered(kept[-1])  # from here on its handshake takes no place of others
    assert all(answered(connection) for connection in kept)
    for connection in kept:
        connection.close()
