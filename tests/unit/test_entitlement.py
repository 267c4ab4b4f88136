"""Cache namespaces between members: who has not proved to hold a key learns nothing, and looks like a miss."""

import base64
import hmac
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from local_member import FIELDS, FORMAT, POOL, WAIT, LocalMember, bytes_of, chain, until
from tenant_keys import ACME, ACME_ID, NEXT, PUBLIC, PUBLIC_ID, acme, keyring

from kvpool_agent.directory.members import _Link
from kvpool_agent.keyring import Keyring, Space
from kvpool_agent.peer import entitlement, frames
from kvpool_agent.peer.connection import Connection, PeerError
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import PROOF_BYTES, PROOFS, Entitlement
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import NOTHING, Told
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.tenants import key_for

KEYS = chain("acme", 6)


Made = Callable[..., LocalMember]


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Made]:
    (tmp_path / "members").touch()
    made: list[LocalMember] = []

    def make(name: str, **keys: Sequence[bytes]) -> LocalMember:
        made.append(LocalMember(name, tmp_path / "members", keyring=keyring(tmp_path, name, **keys)).start())
        return made[-1]

    yield make
    for one in made:
        one.kill()


def put(slab: Slab, keys: Sequence[bytes]) -> None:
    for i, key in enumerate(keys):
        (slot,) = slab.arena.reserve(1, time.monotonic())
        slab.view(slot)[:] = bytes_of(key)
        parent = keys[i - 1] if i else b""
        slab.arena.commit(key, parent, slot, tag_of(key, slab.view(slot)), foreign=False)


def asker(tmp_path: Path, name: str = "asker", **keys: Sequence[bytes]) -> Dialer:
    ring = keyring(tmp_path, name, **keys)
    for slab, space in zip((PUBLIC_ID, ACME_ID), ring.spaces, strict=True):
        ring.register(slab, space)
    return Dialer(Identity(POOL, name, "inc"), entitlement=Entitlement(ring, (name, "inc")))


def fetched(dialer: Dialer, address: str, slab: bytes = ACME_ID) -> list[int]:
    """Which of the blocks come."""
    landed = []

    def land(index: int, _tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        read_into(memoryview(bytearray(length)))
        landed.append(index)

    dialer.fetch(address, slab, KEYS, "demand", time.monotonic() + WAIT, land)
    return landed


def test_who_holds_the_key_finds_the_blocks_and_who_does_not_asks_for_nothing(member: Made, tmp_path: Path) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    with_key = asker(tmp_path, public=[PUBLIC], acme=[ACME])
    assert with_key.locate(source.address, ACME_ID, KEYS, WAIT) == [True] * 6
    assert fetched(with_key, source.address) == [0, 1, 2, 3, 4, 5]
    assert with_key.locate(source.address, PUBLIC_ID, KEYS, WAIT) == [False] * 6  # another cache namespace's blocks
    for name, keys in (("without", {"public": [PUBLIC]}), ("wrong", {"public": [PUBLIC], "acme": [NEXT]})):
        other = asker(tmp_path, name, **keys)
        assert other.locate(source.address, ACME_ID, KEYS, WAIT) == [False] * 6
        assert other.hot(source.address, ACME_ID, 100, WAIT) == []
        with pytest.raises(PeerError, match="no key"):
            fetched(other, source.address)
        other.close()
    with_key.close()


class Raw:
    """A member that asks without having proved anything, or what it pleases."""

    def __init__(self, address: str, name: str = "raw") -> None:
        dialer = Dialer(Identity(POOL, name, "inc"))
        self.connection, self.welcome = dialer.handshake(address)

    def ask(self, message: frames.AnyMessage, tail: bytes = b"") -> tuple[frames.AnyMessage, bytes]:
        self.connection.send(message, tail)
        answer, length = self.connection.receive()
        return answer, self.connection.read(length)


def test_an_unentitled_question_is_answered_as_a_miss_byte_for_byte(member: Made) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    put(source.slab, chain("public", 6))
    raw = Raw(source.address)
    nothing = chain("nothing", 6)
    for slab in (ACME_ID, PUBLIC_ID, FORMAT, bytes(16), b"x" * 16):
        for keys in (KEYS, chain("public", 6), nothing):
            tail = frames.pack_keys(keys)
            assert raw.ask(frames.Locate(slab), tail) == (frames.Located(), bytes(6))
            assert raw.ask(frames.Fetch(slab, "demand", WAIT), tail) == (frames.FetchEnd(), b"")
        assert raw.ask(frames.Hot(slab, 100)) == (frames.HotList(), b"")
    assert raw.ask(frames.Where(), frames.pack_keys(chain("public", 6))) == (frames.Found([]), b"")


def test_of_a_cache_namespace_that_nobody_has_heard_of_as_much_is_looked_at_as_of_one_that_is_here(
    member: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    looked: list[Space] = []
    proved = entitlement._proved

    def look(space: Space, connection: Connection) -> bool:
        looked.append(space)
        return proved(space, connection)

    monkeypatch.setattr(entitlement, "_proved", look)
    raw = Raw(source.address)
    for slab in (ACME_ID, b"x" * 16):
        raw.ask(frames.Locate(slab), frames.pack_keys(KEYS))
        raw.ask(frames.Fetch(slab, "demand", WAIT), frames.pack_keys(KEYS))
        raw.ask(frames.Hot(slab, 100))
    assert looked == [acme(source).space] * 3 + [source.slab.space] * 3


def test_heads_are_told_to_the_entitled_alone(member: Made, tmp_path: Path) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    raw = Raw(source.address)
    answers = [raw.ask(frames.Heads(slab, 0, 0.0)) for slab in (ACME_ID, PUBLIC_ID, b"x" * 16)]
    assert answers == [frames.pack_heads(NOTHING)] * 3
    holder = asker(tmp_path, public=[PUBLIC], acme=[ACME])
    with holder._lent(source.address, WAIT) as connection:
        holder._entitlement.prove(connection)
        assert Dialer.heads(connection, ACME_ID, 0, 0.0).added == (KEYS[0][:8],)
    holder.close()


def test_what_the_unentitled_announce_is_not_kept_and_counted(member: Made, tmp_path: Path) -> None:
    home = member("home", public=[PUBLIC])
    keys = chain("public", 3)
    raw, holder = Raw(home.address), asker(tmp_path, public=[PUBLIC], acme=[ACME])
    answer, _ = raw.ask(frames.Announce([], 0), frames.pack_announcement({}, ()))  # nothing is no claim
    assert isinstance(answer, frames.Announced) and "announced_without_key" not in home.account.counters
    answer, _ = raw.ask(frames.Announce([3], 0), frames.pack_announcement({keys[0]: keys}, ()))
    assert isinstance(answer, frames.Announced) and len(home.entries) == 0
    assert home.account.counters["announced_without_key"] == 1
    holder.announce(home.address, {keys[0]: keys}, (), WAIT, fresh=True)
    assert (len(home.entries), home.account.counters["announced_without_key"]) == (3, 1)
    holder.close()


class Takes:
    """Takes whatever is offered."""

    def __init__(self) -> None:
        self.slabs: list[bytes] = []

    def take(
        self, _giver: object, slab: bytes, blocks: Sequence[HotBlock], _seconds: float, *, copy: bool
    ) -> list[bool]:
        self.slabs.append(slab)
        return [True] * len(blocks)


def test_what_the_unentitled_offer_is_not_taken_and_counted(member: Made, tmp_path: Path) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    source.server._taker = takes = Takes()
    blocks = [HotBlock(KEYS[0], b"", 0, 2.0), HotBlock(KEYS[1], KEYS[0], 1, 1.0)]
    raw = Raw(source.address)
    for slab in (ACME_ID, PUBLIC_ID, b"x" * 16):
        assert raw.ask(frames.Offer(slab, 1.0), frames.pack_hot(blocks)) == (frames.Taken(), bytes(2))
    assert (takes.slabs, source.account.counters["offered_without_key"]) == ([], 3)
    holder = asker(tmp_path, public=[PUBLIC], acme=[ACME])
    assert holder.offer(source.address, ACME_ID, blocks, time.monotonic() + WAIT) == [True, True]
    assert (takes.slabs, source.account.counters["offered_without_key"]) == ([ACME_ID], 3)
    holder.close()


def test_proofs_are_always_as_many_in_no_order_and_never_the_same(member: Made) -> None:
    for source in (member("holds", public=[PUBLIC], acme=[ACME, NEXT]), member("holds-less", public=[PUBLIC])):
        raw, seen = Raw(source.address), list[bytes]()
        for _ in range(3):
            answer, tail = raw.ask(frames.Entitle(bytes(32)))
            assert isinstance(answer, frames.Entitling) and len(tail) == PROOFS * PROOF_BYTES
            seen += [tail[at : at + PROOF_BYTES] for at in range(0, len(tail), PROOF_BYTES)]
            assert raw.ask(frames.Proof(), bytes(PROOFS * PROOF_BYTES)) == (frames.Proved(), b"")
        assert len(set(seen)) == 3 * PROOFS


class Relay:
    """A member of the pool without the key, between two that hold it: it tells each what the other says."""

    def __init__(self, to: str, near: tuple[str, str], far: str) -> None:
        """near, far: as whom it shows itself to the asker, and to the source."""
        self._to, self._near, self._far = to, near, far
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near = Connection(self._socket.accept()[0])
        hello, _ = near.receive()
        assert isinstance(hello, frames.Hello)
        far = Raw(self._to, self._far)
        near.send(frames.Welcome(4, *self._near, "Ready(warm)", FORMAT.hex(), 6))
        with suppress(PeerError):
            while True:
                message, length = near.receive()
                near.send(*far.ask(message, near.read(length)))
        near.close()


def test_a_proof_that_another_member_relays_opens_nothing(member: Made, tmp_path: Path) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    for near, far, opens in (
        (("between", "inc"), "between", False),  # under TLS it can be nobody but itself, to either side
        (source.life, "between", False),
        (("between", "inc"), "asker", False),
        (source.life, "asker", True),  # names are what holds it up: without certificates it could take both
    ):
        holder = asker(tmp_path, public=[PUBLIC], acme=[ACME])
        relay = Relay(source.address, near, far)
        assert holder.locate(relay.address, ACME_ID, KEYS, WAIT) == [opens] * 6
        holder.close()


def test_a_replayed_proof_opens_nothing(member: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    holder, proofs = asker(tmp_path, public=[PUBLIC], acme=[ACME]), list[bytes]()
    made = Entitlement._proofs

    def kept(self: Entitlement, role: bytes, text: bytes) -> bytes:
        proofs.append(made(self, role, text))
        return proofs[-1]

    monkeypatch.setattr(Entitlement, "_proofs", kept)
    assert holder.locate(source.address, ACME_ID, KEYS, WAIT) == [True] * 6
    thief = Raw(source.address, "asker")
    for proof in list(proofs):
        thief.ask(frames.Entitle(bytes(32)))
        thief.ask(frames.Proof(), proof)
        assert thief.ask(frames.Locate(ACME_ID), frames.pack_keys(KEYS))[1] == bytes(6)
    holder.close()


@pytest.mark.parametrize("broken", [b"", bytes(PROOF_BYTES), bytes(PROOFS * PROOF_BYTES + 1)])
def test_a_proof_of_another_length_ends_the_connection(member: Made, broken: bytes) -> None:
    raw = Raw(member("source", public=[PUBLIC]).address)
    raw.ask(frames.Entitle(bytes(32)))
    with pytest.raises(PeerError):
        raw.ask(frames.Proof(), broken)


def test_an_epoch_that_is_over_opens_nothing_and_one_that_both_hold_opens_at_once(
    member: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entitlement, "AGAIN_SECONDS", 0.0)
    source = member("source", public=[PUBLIC], acme=[ACME])
    put(acme(source), KEYS)
    files, ring = tmp_path / "source" / "acme", source.slabs._keyring
    both = asker(tmp_path, "both", public=[PUBLIC], acme=[ACME, NEXT])
    old = asker(tmp_path, "old", public=[PUBLIC], acme=[ACME])
    assert both.locate(source.address, ACME_ID, KEYS, WAIT) == old.locate(source.address, ACME_ID, KEYS, WAIT)
    files.write_bytes(base64.b64encode(NEXT) + b"\n" + base64.b64encode(ACME))
    ring.look()
    assert both.locate(source.address, ACME_ID, KEYS, WAIT) == [True] * 6
    tail = frames.pack_keys(KEYS)
    with old._lent(source.address, WAIT) as connection:  # its own belief that it may ask aside
        old._entitlement.prove(connection)
        connection.send(frames.Locate(ACME_ID), tail)
        _, length = connection.receive()
        assert connection.read(length) == bytes(6)
    both.close()
    old.close()


@pytest.mark.parametrize("before", [ACME, b"x" * 32], ids=["a former one", "one that the source lacks"])
def test_who_gets_another_key_is_shared_with_at_once(member: Made, tmp_path: Path, before: bytes) -> None:
    source = member("source", public=[PUBLIC], acme=[NEXT, ACME])
    put(acme(source), KEYS)
    holder = asker(tmp_path, public=[PUBLIC], acme=[before])
    assert holder.locate(source.address, ACME_ID, KEYS, WAIT) == [False] * 6
    (tmp_path / "asker" / "acme").write_bytes(base64.b64encode(NEXT) + b"\n" + base64.b64encode(ACME))
    holder._entitlement._keyring.look()
    assert holder.locate(source.address, ACME_ID, KEYS, WAIT) == [True] * 6
    holder.close()


def test_two_tenants_share_nothing_across_and_all_within(member: Made) -> None:
    a = member("a", public=[PUBLIC], acme=[ACME])
    b = member("b", public=[PUBLIC], acme=[ACME])
    c = member("c", public=[PUBLIC])
    put(acme(a), KEYS)
    until("all see a", lambda: all(len(one.members.live(FORMAT)) == 2 for one in (a, b, c)))
    deadline = time.monotonic() + WAIT
    found = b.locator.holders(FORMAT, [KEYS], deadline, in_groups=False, slab=ACME_ID)
    assert {address: list(row) for address, row in found.held[0].items()} == {a.address: [True] * 6}
    assert b.locator.holders(FORMAT, [KEYS], deadline, slab=PUBLIC_ID).held == [{}]
    assert c.locator.holders(FORMAT, [KEYS], deadline, in_groups=False, slab=ACME_ID).held == [{}]
    assert c.slabs.usable("acme") is None and not acme(c).space.open
    assert (a.slabs.usable("acme"), a.slabs.usable(""), a.slabs.usable("x")) == (acme(a), a.slab, None)


@pytest.mark.parametrize("keys", [True, False])
def test_with_keys_no_member_asks_for_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: bool) -> None:
    asked, followed = list[bytes](), list[str]()
    heads, follow = Dialer.heads, _Link._follow_heads

    def asking(connection: Connection, fingerprint: bytes, *since: Any) -> Told:
        asked.append(fingerprint)
        return heads(connection, fingerprint, *since)

    def following(link: _Link, *until_then: Any) -> None:
        follow(link, *until_then)
        followed.append(link.member.address)

    monkeypatch.setattr(Dialer, "heads", staticmethod(asking))
    monkeypatch.setattr(_Link, "_follow_heads", following)
    (tmp_path / "members").touch()
    rings = [keyring(tmp_path, name, public=[PUBLIC]) if keys else None for name in "ab"]
    made = [
        LocalMember(name, tmp_path / "members", keyring=ring).start() for name, ring in zip("ab", rings, strict=True)
    ]
    until("both see each other", lambda: all(len(one.members.live(FORMAT)) == 1 for one in made))
    until("both have followed the other between pings", lambda: all(followed.count(one.address) >= 2 for one in made))
    for one in made:
        one.kill()
    assert set(asked) == (set() if keys else {FORMAT})


def test_every_part_has_its_own_memory_and_its_own_quota(tmp_path: Path) -> None:
    made = LocalMember("one", tmp_path / "members", keyring=keyring(tmp_path, "one", public=[PUBLIC], acme=[ACME]))
    public, tenant = made.slabs.all
    whole = made.slabs.limit_bytes
    assert tenant.arena.slot_count * tenant.slot_bytes <= whole * 30 // 100
    spans = [
        (slab.address(0), slab.address(slab.arena.slot_count))
        for slab in sorted((public, tenant), key=lambda s: s.address(0))
    ]
    assert spans[0][1] <= spans[1][0]
    base = min(slab.address(0) for slab in (public, tenant))
    for slab in (public, tenant):
        assert slab.address(0) == base + slab.first_slot * slab.slot_bytes
    slots = tenant.arena.reserve(10_000, time.monotonic())
    assert len(slots) == tenant.arena.slot_count
    for slot in slots:
        tenant.view(slot)[:] = b"\xaa" * tenant.slot_bytes
    assert len(public.arena.reserve(10_000, time.monotonic())) == public.arena.slot_count
    assert bytes(public.view(0)) == bytes(public.slot_bytes)
    made.kill()


VECTORS = json.loads((Path(__file__).parent / "vectors" / "tenants.json").read_text())["proofs"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["role"])
def test_proofs_are_as_other_builds_make_them(vector: dict[str, Any]) -> None:
    ring = Keyring()
    ring.pool = vector["pool"]
    nonces = [bytes.fromhex(nonce) for nonce in vector["nonces"]]
    text = Entitlement(ring, ("", ""))._text(tuple(vector["asker"]), tuple(vector["answerer"]), *nonces)
    key = key_for(bytes.fromhex(vector["key"]), "entitlement")
    assert hmac.digest(key, vector["role"].encode() + text, "sha256").hex() == vector["proof"]


def test_a_masked_key_is_another_one_and_an_entitled_one_itself() -> None:
    keys = [random.Random(n).randbytes(16) for n in range(1000)]
    assert list(entitlement._masked(keys, b"m" * 16, b"m" * 16)) == keys
    masked = list(entitlement._masked(keys, b"m" * 16, b"o" * 16))
    assert not set(masked) & set(keys) and len(set(masked)) == 1000
    assert list(entitlement._masked([], b"m" * 16, b"o" * 16)) == []


def test_the_description_of_a_format_says_nothing_of_cache_namespaces(member: Made) -> None:
    _, tail = Raw(member("source", public=[PUBLIC], acme=[ACME]).address).ask(frames.Describe())
    assert frames.unpack_fields(tail, FORMAT.hex()) == FIELDS
