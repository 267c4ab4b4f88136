"""What a fuzzer feeds, and what must hold of it: a target takes any bytes and raises only where the product is wrong.

No socket, no thread, no clock that matters: the bytes come through an object that stands for a socket, so that an input
means the same each time, and thousands go in a second. What is handed on (to the arena, the directory, the stores) is
checked where it would arrive.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar
from unittest import mock

from fuzz_parts import (
    BLOCK,
    CHAIN,
    END,
    FIELDS,
    FORMAT,
    HASH_BYTES,
    KEY_BYTES,
    KEYS,
    MOST_ENTRIES,
    PAIRS,
    ROW,
    ROWS,
    Basket,
    Board,
    Bytes,
    Device,
    Shelf,
    must,
)

from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import Busy, Refusal
from kvpool_agent.flows.attach import EngineHandler, EngineSession, Hooks
from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import PROOF_BYTES, PROOFS, Entitlement
from kvpool_agent.peer.lending import Borrow, Join, Returned
from kvpool_agent.peer.rdma.reader import _Read
from kvpool_agent.peer.rdma.transport import Link, _asked
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.near_identical import NearIdentical
from kvpool_agent.store.slab import NoRoom
from kvpool_agent.store.tag import tag_of
from kvpool_agent.supervisor import Probes
from kvpool_client import wire
from kvpool_client.groups import FULL, Group
from kvpool_contract.tenants import MAX_CACHE_NAMESPACES


class _Made:
    """What is made once and never listens."""

    server: ClassVar[PeerServer | None] = None
    probes: ClassVar[Probes | None] = None


def peer(data: bytes) -> None:
    """A connection to the peer port: handshake, then requests, as a server takes them. With the highest bit of the
    first byte set the handshake is a good one and headers are right, as for the engine port."""
    if data[:1] >= b"\x80":
        data = HELLO + b"".join(
            frames.encode(REQUESTS[kind % len(REQUESTS)][0], len(tail)) + tail for kind, tail in _parts(data[1:])
        )
    if _Made.server is None:
        _Made.server = PeerServer("127.0.0.1", 0, Shelf(), Board(Account(), MOST_ENTRIES), Basket())
        _Made.server._socket.close()
    sock = Bytes(data)
    with contextlib.suppress(PeerError):
        connection = Connection(sock)
        version = _Made.server._greet(connection)
        if version is not None:
            _Made.server._serve(connection, version)
    answers = bytes(sock.sent)
    while answers:  # whatever came, what goes out is frames
        header, tail = frames.decode_lengths(answers[: frames.LENGTHS.size])
        frames.decode(answers[frames.LENGTHS.size :][:header])
        must(len(answers) >= frames.LENGTHS.size + header + tail, "an answer that was cut off")
        answers = answers[frames.LENGTHS.size + header + tail :]


HOT = [HotBlock(KEYS[0], b"", 0, 2.0), HotBlock(KEYS[1], KEYS[0], 1, 1.0)]
HELLO = frames.encode(frames.Hello(list(frames.VERSIONS), "pool", "m", "i"))
REQUESTS: list[tuple[frames.AnyMessage, bytes]] = [
    (frames.Ping(), b""), (frames.Locate(FORMAT), b"".join(KEYS)),
    (frames.Fetch(FORMAT, "demand", 1.0), b"".join(KEYS)), (frames.Hot(FORMAT, 10), b""), (frames.Describe(), b""),
    (frames.Renew(), b""),
    (frames.Announce([2, 1], 1), frames.pack_announcement({KEYS[0]: KEYS[:2], KEYS[2]: KEYS[2:3]}, KEYS[3:])),
    (frames.Where(), b"".join(KEYS)), (frames.Heads(FORMAT, 1, 0.1), b""), (frames.Status(), b""),
    (frames.Entitle(bytes(frames.NONCE_BYTES)), b""), (frames.Proof(), bytes(PROOFS * PROOF_BYTES)),
    (frames.Offer(FORMAT, 1.0), frames.pack_hot(HOT)), (Join(FORMAT, END), b""),
    (Borrow(FORMAT, "demand", 1.0), b"".join(KEYS)), (Returned(2), b""),
]  # fmt: skip


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """A byte that chooses a kind, two for the tail's length, the tail; and so on."""
    at = 0
    while at + 3 <= len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "big")
        yield data[at], data[at + 3 : at + 3 + length]
        at += 3 + length


_RING = Keyring()
_RING.default.take([bytes(32)])
PROVER = Entitlement(_RING, ("asker", "inc"))
WELCOME = frames.encode(frames.Welcome(frames.OFFER_VERSION, "m", "i", "Ready(warm)", FORMAT.hex(), 4))


def asker(data: bytes) -> None:
    """A member's answers, as those who ask take them. The first byte says what is asked, the second whether the
    handshake went well."""
    what, greeted = (data[:2] + b"\0\0")[:2]
    stream = (WELCOME if greeted & 1 else b"") + data[2:]
    dialer = Dialer(Identity("pool", "asker", "inc"))
    address = "10.0.0.1:7700"

    def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        must(0 <= index < len(KEYS), "a block that was not asked for")
        if length != len(BLOCK):
            raise PeerError("another length")
        read_into(memoryview(bytearray(length)))

    def landed(index: int, tag: bytes, _slot: int) -> None:
        must(0 <= index < len(KEYS) and tag == tag_of(KEYS[index], memoryview(BLOCK)), "a block with another tag")

    def ask() -> None:
        match what % 11:
            case 0:
                must(len(dialer.locate(address, FORMAT, KEYS, 9)) == len(KEYS), "as many answers as keys")
            case 1:
                dialer.fetch(address, FORMAT, KEYS, "demand", 2.0**40, land)
            case 2:
                for block in dialer.hot(address, FORMAT, 10, 9):
                    must(len(block.key) == KEY_BYTES and len(block.parent) in (0, KEY_BYTES), "no hot block")
            case 3:
                must(isinstance(dialer.fields(address, FORMAT.hex(), 9), dict), "no fields")
            case 4:
                found = dialer.where(address, KEYS, 9)
                must(len(found) <= frames.MAX_HOLDERS, "too many holders")
                must(all(len(row) == len(KEYS) for _, row in found), "a row of another length")
            case 5:
                lease = dialer.announce(address, {KEYS[0]: KEYS[:2]}, KEYS[2:], 9, fresh=False)
                must(0 <= lease < 1 << 62, "no lease")
            case 6:
                connection, _ = dialer.handshake(address)
                told = dialer.heads(connection, FORMAT, 1, 1.0)
                must(all(len(name) == 8 for name in (*told.added, *told.withdrawn)), "no name of a head")
            case 7:
                connection, _ = dialer.handshake(address)
                must(len(dialer.renew(connection).members) <= frames.MAX_TOLD, "too many members told")
            case 8:
                taken = dialer.offer(address, FORMAT, HOT, 2.0**40)
                must(len(taken) == len(HOT), "as many answers as blocks")
            case 9:
                connection, _ = dialer.handshake(address)
                PROVER.prove(connection)
                must(not connection.proved, "a proof by one who has no key")
            case _:
                connection, _ = dialer.handshake(address)
                there = _asked(connection, Join(FORMAT, END), len(BLOCK))
                device: Any = Device(there)
                slots, link = list(range(len(KEYS))), Link(device, 1, there)
                _Read(Account(), device, KEYS, slots, lambda: None, landed, link, 2.0**40).all(connection)

    with (
        mock.patch.object(Connection, "dial", lambda *_: Connection(Bytes(stream))),
        contextlib.suppress(PeerError, RdmaError),
    ):
        ask()


# -- the engine port -----------------------------------------------------------------------------------


class _Flows:
    """What a session hands on to: the flows of lookups, stores, the probe and the canary."""

    def __init__(self) -> None:
        self.account = Account()
        self.lookup = self.store = self.probe = self.canary = self
        self.slabs = _Slabs()

    def submit(self, slab: Any, *rest: Any) -> None:
        if len(rest) == 2:  # a lookup
            request, answer = rest
            for blocks, keys in zip(request.blocks, request.keys, strict=True):
                must_be_keys_of_the_engine(keys)
                must(len(blocks.lacks) == len(keys), "lacks of another number of blocks")
            answer([()] * len(request.blocks), 0)
            return
        _pool, _jobs, job, offers, reply = rest
        must_be_keys_of_the_engine([offer.key for offer in offers])
        must(all(0 <= offer.row < ROWS for offer in offers), "a row outside of the host pool")
        reply(job, True, 0)

    def commit(self, *_: Any) -> None: ...
    def forget(self, *_: Any) -> None: ...

    def expects(self, mark: str) -> bool:
        return False

    def refuses(self, engine: str) -> bool:
        return False

    def requested(self) -> None:
        """Somebody asks."""

    def wants(self, *_: Any) -> int:
        return 4

    def take(self, session: object, plan: int, data: bytes) -> None:
        must(isinstance(plan, int) and isinstance(data, bytes), "no sample")

    def held(self, mark: str, tokens: int) -> None:
        must(isinstance(mark, str) and isinstance(tokens, int), "not what was held")

    def when_settled(self, act: Callable[[bool], None]) -> None:
        act(True)


def must_be_keys_of_the_engine(keys: Sequence[bytes]) -> None:
    must(all(len(key) == KEY_BYTES for key in keys), "something is no block key")


class _Arena:
    def lease(self, keys: Sequence[bytes], *_: Any) -> tuple[int, list[None]]:
        must_be_keys_of_the_engine(keys)
        return 1, [None] * len(keys)

    def release(self, lease: int) -> None:
        must(isinstance(lease, int), "no lease")

    def give_back(self, *_: Any) -> None: ...
    def place(self, keys: Sequence[bytes]) -> None:
        must_be_keys_of_the_engine(keys)

    def use(self, keys: Sequence[bytes]) -> None:
        must_be_keys_of_the_engine(keys)

    def held(self, keys: Sequence[bytes]) -> list[bool]:
        return [False] * len(keys)

    def computed_again(self, keys: Sequence[bytes]) -> int:
        must_be_keys_of_the_engine(keys)
        return 0

    def made_room(self, keys: Sequence[bytes]) -> list[bool]:
        must_be_keys_of_the_engine(keys)
        return [False] * len(keys)


class _Counts:
    """Heat, ghost entries and reuse distances."""

    def count(self, keys: Sequence[bytes], now: float, linked: bool) -> None:
        must_be_keys_of_the_engine(keys)

    def request(self, chain: Sequence[bytes], prompt: int) -> None:
        must_be_keys_of_the_engine(chain)
        must(0 <= prompt <= len(chain), "a prompt that is longer than its chain")


class _Mapping:
    def close(self) -> None: ...


class _Slab:
    fingerprint, slot_bytes, number, first_slot, space = FORMAT, ROW, 0, 0, Space()
    below = None

    def __init__(self) -> None:
        self.arena = _Arena()
        self.heat = self.ghost = self.reuse = _Counts()
        self.near_identical = NearIdentical()
        self.heat_lock = threading.Lock()

    def key(self, engine_key: bytes, hash_bytes: int, name: bytes = b"") -> bytes:
        must(len(engine_key) == hash_bytes + 4, "a key of the engine of another length")
        return engine_key[:KEY_BYTES]


class _Slabs:
    def usable(self, name: str) -> "_Slab | None":
        return None if name else _slab

    def release(self, number: int, lease: int) -> None:
        must(0 <= number < MAX_CACHE_NAMESPACES, "the lease of no slab")

    def open(self, *_: Any) -> Any:
        raise NoRoom


class _Port:
    def send(self, header: dict[str, Any], tail: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        wire.Decoder().feed(wire.encode(header, tail))

    def end(self) -> None: ...


class _Pool:
    rows, row_bytes, mapping = ROWS, ROW, _Mapping()


_ATTACH = {
    "verb": "attach", "versions": [2], "format": FIELDS, "row_bytes": ROW, "rows": ROWS, "hash_bytes": HASH_BYTES,
    "groups": [{"number": 0, "kind": "full", "window": 0, "block_tokens": 4, "whole": True}],
}  # fmt: skip
VERBS: list[tuple[dict[str, Any], bytes]] = [
    (_ATTACH, b""), ({"verb": "lookup", "plan": 1, "lacks": [[0, 3]], "room": 4}, CHAIN),
    ({"verb": "load", "call": 1, "done_plan": 1}, CHAIN), ({"verb": "release", "lease": 1}, b""),
    ({"verb": "store", "job": 1, "rows": [0, 1, 2]}, PAIRS), ({"verb": "commit", "job": 1}, b""),
    ({"verb": "forget", "job": 1}, b""), ({"verb": "finished", "prompt": 3, "asked": 0, "loaded": 0}, CHAIN),
    ({"verb": "store", "job": 1, "rows": [0]}, PAIRS[: 2 * HASH_BYTES + 8]),
    ({"verb": "finished", "prompt": 3, "asked": 0, "loaded": 0, "unknown": 2}, CHAIN),
    ({"verb": "sample", "plan": 1}, CHAIN), ({"verb": "canary", "mark": "m", "held": 4}, b""),
]  # fmt: skip
_flows, _slab = _Flows(), _Slab()
GROUPS = [Group(0, FULL, 0, 4, True)]
WRONG = (wire.WireError, Refusal, Busy, KeyError, TypeError, ValueError, OverflowError)  # what ends a session


def engine(data: bytes) -> None:
    """The engine port: a stream in pieces of the first byte's length; with its highest bit set, frames whose headers
    are right and whose tails are what comes: for each of them a byte that chooses the verb, two for the tail's length.
    """
    size, decoder = (data[0] if data else 0) % 128 + 1, wire.Decoder()
    if data[:1] >= b"\x80":
        data = data[:1] + _framed(data[1:])
    hooks = Hooks(lambda _: None, lambda _: None, lambda: None)
    handler: Any = EngineHandler(_Slabs(), None, _flows, _flows, _flows.account, _flows, _flows, hooks)  # type: ignore[arg-type]
    session = EngineSession(_flows, _slab, _Pool(), HASH_BYTES, GROUPS, _Port())  # type: ignore[arg-type]
    tails = 0
    with contextlib.suppress(wire.WireError):
        for i in range(1, len(data), size):
            for frame in decoder.feed(data[i : i + size]):
                tails += len(frame.tail)
                _handle(handler, session, frame)
    must(tails <= len(data), "more bytes than came")


def _framed(data: bytes) -> bytes:
    return b"".join(wire.encode(VERBS[kind % len(VERBS)][0], tail) for kind, tail in _parts(data))


def _handle(handler: Any, session: EngineSession, frame: wire.Frame) -> None:
    with contextlib.suppress(*WRONG):
        if frame.verb != "attach":
            session.frame(frame)
            return
        descriptor = os.memfd_create("rows", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, ROW * ROWS)
            handler.attach(wire.Frame(frame.header, frame.tail, (descriptor,)), _Port())
        finally:
            os.close(descriptor)


# -- the supervisor's probes ---------------------------------------------------------------------------


def probes(data: bytes) -> None:
    """A request to the probes' port: one of three answers to a well-formed line, and 404 to anything else."""
    if _Made.probes is None:
        _Made.probes = Probes("127.0.0.1", 0)
        _Made.probes._socket.close()
    made = _Made.probes
    made._places.acquire()
    sock = Bytes(data)
    sock.sendall = lambda text: sock.sent.extend(text)  # type: ignore[method-assign, assignment]
    made._serve(sock)
    answer = bytes(sock.sent)
    if not answer:
        must(b"\r\n" not in data[: 1 << 10], "a whole line without an answer")
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    must(status.split(b" ")[1] in (b"200", b"404", b"503"), "another status")
    must(f"Content-Length: {len(body)}".encode() in lines, "another length than it says")
    line = data.split(b"\r\n", 1)[0]
    known = any(line.startswith(b"GET " + path + b" ") for path in (b"/startedz", b"/readyz", b"/livez"))
    must(known or b" 404 " in status, "an answer to something that nobody asked")


TARGETS: dict[str, Callable[[bytes], None]] = {"peer": peer, "asker": asker, "engine": engine, "probes": probes}
