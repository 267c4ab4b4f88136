"""Any mutation of valid frames, on both protocols: one kind of error, bounded memory, and others are served on.

Examples are derived from the test alone, so that a build's result is no matter of luck; a mutation that once broke
something is written down as an example.
"""

import contextlib
import errno
import os
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzz_parts import BLOCK, CHAIN, END, FORMAT, HASH_BYTES, KEYS, PAIRS, ROW, ROWS, SLAB_BYTES, Board, Shelf
from fuzz_targets import REQUESTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.distrust import Distrust
from kvpool_agent.directory.locate import Holders
from kvpool_agent.engine_port.server import EnginePort
from kvpool_agent.flows.attach import EngineHandler, Hooks
from kvpool_agent.flows.canary import CanaryFlow
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.lookup import LookupFlow
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.flows.store import StoreFlow
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError, keys_of
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.lending import Joined, Lent, pack_places, unpack_places
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slabs
from kvpool_client import wire
from kvpool_contract.config import AgentConfig, Members, Tls

WAIT = 10.0
FIELDS = {"engine": "mutant", "row_bytes": ROW}
OTHER_CHAIN = b"".join(bytes([n]) * HASH_BYTES + bytes(4) for n in range(9, 12))
CONFIG = AgentConfig(version=1, pool="p", arenaBytes=1 << 20, members=Members(file="m"), tls=Tls(mode="Disabled"))
MOST_ENTRIES = 16  # so few that mutants reach the bound


def framed(*parts: tuple[frames.AnyMessage, bytes]) -> list[bytes]:
    return [frames.encode(message, len(tail)) + tail for message, tail in parts]


(GREETING,) = framed((frames.Hello(list(frames.VERSIONS), "pool", "m", "i"), b""))
ASKED = framed(*REQUESTS)
PEER_FRAMES = [
    GREETING,
    *ASKED,
    *framed(
        (frames.Welcome(1, "m", "i", "Ready(warm)", "ff" * 16, 4), b""),
        (frames.Refused("busy", 0.2), b""),
        (frames.Located(), b"\1\0\1\0"),
        (frames.Block(1, b"t" * 16), BLOCK),
        (frames.HotList(), frames.pack_hot([HotBlock(KEYS[0], b"", 0, 1.0)])),
        (frames.FetchEnd(), b""),
        (frames.Described(), frames.pack_fields(FIELDS)),
        (frames.Renewed(7, [("10.0.0.1:7700", "uid")]), b""),
        (frames.Announced(7), b""),
        (frames.Found([("uid", "inc")]), frames.pack_held([[True] * len(KEYS)])),
        frames.pack_heads(Told(2, False, (b"h" * 8,), (b"g" * 8,))),
        (frames.StatusTold(), b"{}"),
        (Joined(END, 1 << 20, SLAB_BYTES, 5), b""),
        (Lent(0, 1.0), pack_places([(0, b"t" * 16), None])),
    ),
]
GROUPS = [{"number": 0, "kind": "full", "window": 0, "block_tokens": 4, "whole": True}]
GEOMETRY = {"row_bytes": ROW, "rows": ROWS, "hash_bytes": HASH_BYTES, "groups": GROUPS}
ATTACH = wire.encode({"verb": "attach", "versions": [2], "format": FIELDS, **GEOMETRY})
# attaches that are frames in all but sense
SENSELESS = [
    wire.encode({"verb": "attach", "versions": [2], "format": FIELDS, **GEOMETRY, **change})
    for change in (
        {"groups": "many"}, {"groups": None}, {"groups": [1]}, {"groups": []}, {"format": {"x": "\ud800"}},
        {"groups": [*GROUPS, *GROUPS]}, {"groups": GROUPS * 65}, *({"groups": [{**GROUPS[0], **wrong}]} for wrong in (
            {"window": 4}, {"kind": "window"}, {"block_tokens": 0}, {"number": -1}, {"window": 1.5}, {"number": True},
            {"kind": 7}, {"whole": 1}, {"block_tokens": 2**40},
        )),
        {"format": []}, {"versions": [[]]}, {"versions": 1}, {"versions": [1]}, {"versions": [4]}, {"rows": 2**70},
        {"row_bytes": 2**70}, {"row_bytes": 0}, {"row_bytes": 1.5}, {"hash_bytes": 0}, {"rows": ROWS + 1},
    )
]  # fmt: skip
ENGINE_FRAMES = [
    wire.encode({"verb": "lookup", "plan": 1, "lacks": [[0, 3]], "room": 4}, CHAIN),
    wire.encode({"verb": "load", "call": 1, "done_plan": 1}, CHAIN),
    wire.encode({"verb": "release", "lease": 1}),
    wire.encode({"verb": "store", "job": 1, "rows": [0, 1, 2]}, PAIRS),
    wire.encode({"verb": "commit", "job": 1}),
    wire.encode({"verb": "forget", "job": 1}),
    wire.encode({"verb": "finished", "prompt": 3, "asked": 0, "loaded": 0, "unknown": 1}, CHAIN),
    wire.encode({"verb": "sample", "plan": 1}, CHAIN),
    wire.encode({"verb": "canary", "mark": "m", "held": 4}),
    wire.encode({"verb": "bare", "reason": "no_shm_room", "detail": ""}),
]
LENGTHS = st.sampled_from([0, 1, 255, 1 << 16, 1 << 20, (1 << 20) + 1, 1 << 26, (1 << 30) + 1, 2**32 - 1])
MUTATION = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 16), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.integers(1, 64)),
    st.tuples(st.just("again"), st.integers(0, 1 << 16), st.integers(1, 64)),
    st.tuples(st.just("length"), st.integers(0, 1 << 16), LENGTHS),
    st.tuples(
        st.just("text"), st.integers(0, 1 << 16), st.sampled_from([b"1e999", b"-1", b"null", b"{}", b'"', b"[["])
    ),
    st.tuples(st.just("end"), st.integers(0, 1 << 16), st.just(0)),
)


def mutated(data: bytes, mutations: Sequence[tuple[str, int, int | bytes]]) -> bytes:
    changed = bytearray(data)
    for kind, place, what in mutations:
        at = place % max(len(changed), 1)
        match kind, what:
            case "flip", int():
                changed[at : at + 1] = bytes([(changed[at] ^ what) if changed else what])
            case "cut", int():
                del changed[at : at + what]
            case "again", int():
                changed[at:at] = changed[at : at + what]
            case "length", int():
                changed[at : at + 4] = struct.pack("!I", what)
            case "text", bytes():
                changed[at : at + 1] = what
            case "end", _:
                del changed[at:]
    return bytes(changed)


def streams(parts: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One to four valid frames in any order, with one to four mutations."""
    return st.builds(
        lambda chosen, mutations: mutated(b"".join(chosen), mutations),
        st.lists(st.sampled_from(parts), min_size=1, max_size=4),
        st.lists(MUTATION, min_size=1, max_size=4),
    )


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=quiet)


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Fails when more than so many bytes are allocated inside at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


# -- sans-IO -------------------------------------------------------------------------------------------


@examples(400)
@given(data=streams([*ENGINE_FRAMES, ATTACH]), cut=st.integers(1, 300))
def test_the_engine_ports_decoder_yields_frames_or_one_wire_error(data: bytes, cut: int) -> None:
    decoder = wire.Decoder()
    with contextlib.suppress(wire.WireError):
        for i in range(0, len(data), cut):
            for frame in decoder.feed(data[i : i + cut]):
                assert isinstance(frame.header, dict)
                assert len(frame.tail) <= len(data)
                frame.verb  # noqa: B018 - must not raise either


@examples(400)
@given(data=streams(PEER_FRAMES))
def test_headers_between_agents_are_messages_or_one_frame_error(data: bytes) -> None:
    with contextlib.suppress(frames.FrameError):
        header, tail = frames.decode_lengths(data[:8].ljust(8, b"\0"))
        assert header <= frames.MAX_HEADER and tail <= frames.MAX_TAIL
        frames.decode(data[8 : 8 + header])
    readers = (
        frames.unpack_keys,
        frames.unpack_hot,
        lambda d: frames.unpack_fields(d, FORMAT.hex()),
        lambda d: frames.split_announcement(frames.Announce([2, 1], 1), frames.unpack_keys(d)),
        lambda d: frames.unpack_held(frames.Found([("uid", "inc")]), d, len(KEYS)),
    )
    for read in readers:
        with contextlib.suppress(frames.FrameError):
            read(data)
    with contextlib.suppress(ValueError):
        unpack_places(data)


@examples(150)
@given(data=st.one_of(streams(PEER_FRAMES), streams(ENGINE_FRAMES)))
def test_lengths_that_are_told_allocate_nothing_before_their_bytes_are_there(data: bytes) -> None:
    with bounded(4 * len(data) + (1 << 20)):
        with contextlib.suppress(wire.WireError):
            wire.Decoder().feed(data)
        left, right = socket.socketpair()
        with left, contextlib.closing(Connection(right)) as connection:
            left.sendall(data)
            left.shutdown(socket.SHUT_WR)
            connection.settimeout(WAIT)
            with contextlib.suppress(PeerError):
                while True:
                    _, tail_length = connection.receive()
                    keys_of(connection, tail_length)


# -- real sockets --------------------------------------------------------------------------------------


def drain(sock: socket.socket) -> None:
    """Reads what is answered, to the end of the connection."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(1 << 16):
            pass


@pytest.fixture(scope="module")
def board() -> Board:
    return Board(Account(), MOST_ENTRIES)


@pytest.fixture(scope="module")
def server(board: Board) -> Iterator[PeerServer]:
    made = PeerServer("127.0.0.1", 0, Shelf(), board)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def dialer() -> Iterator[Dialer]:
    made = Dialer(Identity("pool", "asker", "inc"))
    yield made
    made.close()


@examples(100)
@given(
    before=st.one_of(st.just(None), st.lists(st.sampled_from(ASKED), max_size=3)),
    data=st.one_of(streams(ASKED), streams(PEER_FRAMES)),
)
def test_a_peer_server_fed_mutants_serves_others(
    server: PeerServer, dialer: Dialer, board: Board, before: list[bytes] | None, data: bytes
) -> None:
    """before: what is asked, and well-formed, before the mutants come; None: not even a greeting."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as sock:
        with contextlib.suppress(OSError):
            sock.sendall((GREETING + b"".join(before) if before is not None else b"") + data)
            sock.shutdown(socket.SHUT_WR)
        drain(sock)
    assert dialer.locate(f"127.0.0.1:{server.port}", FORMAT, KEYS, WAIT) == [True] * 4
    address = f"127.0.0.1:{server.port}"
    assert dialer.announce(address, {KEYS[0]: [KEYS[1]]}, [KEYS[2]], WAIT, fresh=False) > 0
    found = dict(dialer.where(address, KEYS, WAIT))
    assert found["asker", "inc"] == [False, True, False, False]
    assert len(board) <= MOST_ENTRIES
    wait_for("the end", lambda: len(server._open) <= 2, 5, 0.01)  # the dialer's, and one that is about to end


class Nobody:
    """A directory in which nobody holds anything."""

    def holders(self, _: bytes, chains: Sequence[Sequence[bytes]], *_rest: object, **_named: object) -> Holders:
        return Holders([{} for _ in chains], "never_published")


@pytest.fixture(scope="module")
def engine_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, EngineHandler]]:
    account, memory = Account(), ArenaMemory.anonymous(16 * ROW)
    slabs, store = Slabs(memory, 0.0), StoreFlow(account)
    lookup = LookupFlow(Nobody(), Fetcher(None, Breakers(account), account), account, 1.0)  # type: ignore[arg-type]
    hooks = Hooks(lambda _: None, lambda _: None, lambda: None)
    probe = ProbeFlow(1, None, None, account, lambda: None)  # type: ignore[arg-type]
    canary = CanaryFlow(lambda: CONFIG, lambda: (), Distrust(Nobody()), account)  # type: ignore[arg-type]
    handler = EngineHandler(slabs, memory, lookup, store, account, probe, canary, hooks)
    path = tmp_path_factory.mktemp("engine") / "engine.sock"
    port = EnginePort(path, handler)
    store.start()
    port.start()
    ask(path)  # the arena is cut for this format: a mutant's is another one
    yield path, handler
    port.close()
    lookup.close()
    store.close()


def connected(path: Path, first: bytes) -> socket.socket:
    """A connection on which these bytes went out, with a host pool's descriptor."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(WAIT)
    sock.connect(str(path))
    pool = os.memfd_create("rows", os.MFD_CLOEXEC)
    os.ftruncate(pool, ROW * ROWS)
    with contextlib.suppress(ConnectionError):
        socket.send_fds(sock, [first or b"\0"], [pool])
    os.close(pool)
    return sock


def ask(path: Path) -> None:
    """One good engine: attaches, asks, is answered."""
    sock = connected(path, ATTACH)
    channel = wire.Channel(sock)
    with contextlib.closing(channel):
        attached = channel.receive()
        for one in attached.descriptors:
            os.close(one)
        assert attached.verb == "attached", attached
        channel.send({"verb": "lookup", "plan": 7, "lacks": [[0, 3]], "room": 4}, OTHER_CHAIN)
        plan = channel.receive().header
        assert plan == {"verb": "plan", "plan": 7, "hits": [], "seconds": plan["seconds"]}


@pytest.mark.parametrize("first", SENSELESS, ids=range(len(SENSELESS)))
def test_an_attach_without_sense_leaves_nothing_behind(engine_port: tuple[Path, EngineHandler], first: bytes) -> None:
    path, handler = engine_port
    before = in_use()
    with connected(path, first) as sock:
        drain(sock)
    ask(path)
    wait_for("the end", lambda: handler.sessions == 0 and in_use() <= before, 5, 0.01)


def test_an_attach_for_which_no_descriptor_is_left_leaves_nothing_behind(
    engine_port: tuple[Path, EngineHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, handler = engine_port

    def none_left() -> int:
        raise OSError(errno.EMFILE, "too many open files")

    before, attaches = in_use(), handler.attaches
    with monkeypatch.context() as patched:
        patched.setattr(handler._memory, "reader", none_left)
        with connected(path, ATTACH) as sock:
            drain(sock)
    wait_for("the end", lambda: in_use() <= before, 5, 0.01)
    assert (handler.sessions, handler.attaches) == (0, attaches)
    ask(path)
    wait_for("the end", lambda: handler.sessions == 0 and in_use() <= before, 5, 0.01)


@examples(100)
@given(
    first=st.one_of(st.just(ATTACH), streams([ATTACH])),
    rest=st.one_of(st.just(b""), streams(ENGINE_FRAMES), st.sampled_from(ENGINE_FRAMES)),
)
def test_an_engine_port_fed_mutants_serves_others(
    engine_port: tuple[Path, EngineHandler], first: bytes, rest: bytes
) -> None:
    path, handler = engine_port
    before = in_use()
    with connected(path, first) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(rest)
            sock.shutdown(socket.SHUT_WR)
        drain(sock)
    ask(path)
    wait_for("the end", lambda: handler.sessions == 0, 5, 0.01)
    wait_for("the end", lambda: in_use() <= before + 16, 5, 0.01)  # threads of plans, made on demand


def in_use() -> int:
    """Descriptors, threads and mappings of this process."""
    maps = Path("/proc/self/maps").read_text().count("memfd:rows")
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) + threading.active_count() + maps
