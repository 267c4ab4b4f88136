"""The external store under real agents: what two requests contained is served from there when all pods were gone, with
exact counts; sealed, changed, slow and gone as it may be, nothing wrong is served and no request waits beyond its
deadline."""

import base64
import signal
import time
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node, block_name
from authority import Authority
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from replica import wait_for
from s3_server import S3Server
from standin_engine import Served, engine_keys, prompt
from valkey_server import ValkeyServer

from kvpool_agent.store.external import hotlist
from kvpool_agent.store.external.blocks import SEALED_START_BYTES, START_BYTES
from kvpool_agent.store.sealing import HEADER_BYTES, TAG_BYTES
from kvpool_contract.status import AgentStatus, Transfer
from kvpool_contract.tenants import key_for

ROW, BLOCKS = 4096, 6
KEY = b"k" * 32
ALONE = {"prewarm": {"maxBytes": 0}}
Server = ValkeyServer | S3Server
KINDS: dict[str, type[Server]] = {"valkey": ValkeyServer, "s3": S3Server}
either_way = pytest.mark.parametrize("sealed", [False, True], ids=["in clear", "sealed"])


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    made = KINDS[request.param](tmp_path)
    request.addfinalizer(made.stop)
    return made.start()


@pytest.fixture
def valkey(request: pytest.FixtureRequest, tmp_path: Path) -> ValkeyServer:
    made = ValkeyServer(tmp_path)
    request.addfinalizer(made.stop)
    return made.start()


# agents that wait long for the store: a busy machine makes it neither slow nor silent
PATIENT = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.flows import external
    from kvpool_agent.store.external import access, tier
    external.ASK_SECONDS = tier.ASK_SECONDS = access.PING_SECONDS = 20.0
"""
AND_WITH_A_SOCKET = """
    from kvpool_agent.store.external import {module}
    {module}.CONNECT_SECONDS = {module}.SILENT_SECONDS = 20.0
"""
CLIENTS = {ValkeyServer: {"module": "valkey", "kind": "Valkey"}, S3Server: {"module": "s3", "kind": "S3"}}


def made(pool: AgentPool, name: str, server: Server, *, sealed: bool = False, **agent: object) -> Node:
    """Not started. sealed: whether its one cache namespace has a key."""
    if sealed:
        file = pool.members.parent / "all.key"
        file.write_bytes(base64.b64encode(KEY))
        agent["cacheNamespaces"] = [{"name": "all", "keyFile": str(file)}]
    node = pool.node(name, **{"store": server.config(), **agent})
    return node.patched(PATIENT + AND_WITH_A_SOCKET.format(**CLIENTS[type(server)]))


def joined(node: Node) -> Node:
    node.start()
    node.until("reaches the store", lambda s: s.store.state == "ready")
    return node.attach()


def member(pool: AgentPool, name: str, server: Server, *, sealed: bool = False, **agent: object) -> Node:
    return joined(made(pool, name, server, sealed=sealed, **agent))


def serve(node: Node, what: str, blocks: int = BLOCKS) -> Served:
    """One request of an engine that holds nothing of its own any more."""
    node.engine.forget()
    return node.engine.serve(prompt(what, blocks))


def heat(node: Node, what: str, blocks: int = BLOCKS) -> None:
    """Two requests that contain the blocks."""
    before = node.status().arena.blocks
    assert serve(node, what, blocks) == Served(computed=blocks)
    node.until_blocks(before + blocks)
    assert serve(node, what, blocks) == Served(pool=blocks)


def until_written(node: Node, blocks: int) -> AgentStatus:
    return node.until(f"{blocks} blocks in the store", lambda s: moved(s, "external_out") == (blocks, blocks * ROW))


def moved(status: AgentStatus, what: str) -> tuple[int, int]:
    transfer = status.transfers.get(what, Transfer())
    return transfer.blocks, transfer.bytes


def end(node: Node) -> None:
    node.close_engines()
    node.replica.stop_agent()


def object_bytes(*, sealed: bool) -> int:
    return SEALED_START_BYTES + ROW + TAG_BYTES if sealed else START_BYTES + ROW


def list_bytes(blocks: int, *, sealed: bool) -> int:
    return hotlist._START.size + blocks * hotlist._ENTRY.size + 8 + (HEADER_BYTES + TAG_BYTES if sealed else 0)


@either_way
def test_a_pool_that_was_scaled_to_zero_loads_its_hot_set_from_the_store(
    pool: AgentPool, server: Server, sealed: bool
) -> None:
    first = member(pool, "a", server, sealed=sealed)
    heat(first, "hot")
    assert serve(first, "once") == Served(computed=BLOCKS)
    until_written(first, BLOCKS)
    end(first)
    found = server.objects()
    sizes = sorted(map(len, found.values()))
    assert sizes == sorted([object_bytes(sealed=sealed)] * BLOCKS + [list_bytes(BLOCKS, sealed=sealed)])
    assert all(0 < server.ends(name) - time.time() <= 86_400 for name in found)

    second = member(pool, "b", server, sealed=sealed)
    status = second.until_state("Ready(warm)")
    assert (status.warm.planned_blocks, status.warm.loaded_blocks, status.arena.blocks) == (BLOCKS, BLOCKS, BLOCKS)
    assert {what: (t.blocks, t.bytes) for what, t in status.transfers.items()} == {
        "external_in": (BLOCKS, BLOCKS * ROW)
    }
    assert serve(second, "hot") == Served(pool=BLOCKS)
    status = second.status()
    assert (status.hits.shared_blocks, status.hits.local_blocks, sum(status.misses.values())) == (BLOCKS, 0, 0)
    assert serve(second, "once") == Served(computed=BLOCKS)  # one request alone had contained it
    assert second.status().misses == {"never_published": BLOCKS}


def test_a_request_loads_what_neither_arena_nor_member_holds_and_its_own_counts_as_local(
    pool: AgentPool, server: Server
) -> None:
    node = member(pool, "a", server, **ALONE)
    heat(node, "hot")
    until_written(node, BLOCKS)
    end(node)
    joined(node)
    assert node.status().arena.blocks == 0
    assert serve(node, "hot") == Served(pool=BLOCKS)
    status = node.status()
    assert moved(status, "external_in") == (BLOCKS, BLOCKS * ROW)
    assert (status.hits.local_by_place, status.hits.shared_by_place, status.misses) == ({"store": BLOCKS}, {}, {})
    assert status.costs.paths["store"].moved == 1
    # a member that holds them is asked in its place
    other = member(pool, "b", server, **ALONE)
    other.until_sees(node)
    assert serve(other, "hot") == Served(pool=BLOCKS)
    assert (moved(other.status(), "external_in"), moved(other.status(), "demand_in")) == (
        (0, 0),
        (BLOCKS, BLOCKS * ROW),
    )


def stored(pool: AgentPool, server: Server, *, sealed: bool = False) -> None:
    """A member has left a chain there, and has ended."""
    node = member(pool, "writer", server, sealed=sealed, **ALONE)
    heat(node, "hot")
    until_written(node, BLOCKS)
    end(node)


def test_who_tells_others_of_nothing_leaves_nothing_there_and_loads_what_others_left(
    pool: AgentPool, valkey: ValkeyServer
) -> None:
    never = member(pool, "a", valkey, publication={"policy": "Never"}, drain={"maxSeconds": 20}, **ALONE)
    heat(never, "own")
    end(never)  # what waits to be written is written by then
    assert valkey.objects() == {}
    stored(pool, valkey)
    joined(never)
    assert serve(never, "hot") == Served(pool=BLOCKS)
    assert moved(never.status(), "external_in") == (BLOCKS, BLOCKS * ROW)


def block_objects(server: Server, *, sealed: bool) -> dict[str, bytes]:
    return {name: data for name, data in server.objects().items() if len(data) == object_bytes(sealed=sealed)}


def test_nothing_of_what_was_stored_is_in_the_store_where_there_is_a_key(pool: AgentPool, valkey: ValkeyServer) -> None:
    stored(pool, valkey)
    clear = block_objects(valkey, sealed=False)
    planted = [data[START_BYTES + at : START_BYTES + at + 32] for data in clear.values() for at in (0, 2000, ROW - 32)]
    assert all(any(pattern in data for data in clear.values()) for pattern in planted)
    node = member(pool, "sealed", valkey, sealed=True, **ALONE)
    heat(node, "hot")
    status = until_written(node, BLOCKS)
    names = key_for(KEY, "block names")
    keys = [block_name(key, status.format, names) for key in engine_keys(prompt("hot", BLOCKS))]
    end(node)
    sealed = {name: data for name, data in valkey.objects().items() if name not in clear}
    whole = b"".join([*sealed.values(), *(name.encode() for name in sealed)])
    assert len(sealed) == BLOCKS + 2  # both lists: each of a slab of its own
    secret = [*planted, bytes.fromhex(status.format), *keys, *(key.hex().encode() for key in keys)]
    assert [pattern for pattern in secret if pattern in whole] == []


@pytest.mark.parametrize(
    ("server", "place", "sealed"),
    [("valkey", 20, False), ("valkey", -1, True), ("s3", 20, True), ("s3", -1, False)],
    indirect=["server"],
    ids=["start", "bytes sealed", "start sealed, s3", "bytes, s3"],
)
def test_a_flipped_bit_is_counted_removed_and_computed(
    pool: AgentPool, server: Server, sealed: bool, place: int
) -> None:
    stored(pool, server, sealed=sealed)
    server.flip(list(block_objects(server, sealed=sealed)), place)
    node = member(pool, "a", server, sealed=sealed, **ALONE)
    assert serve(node, "hot") == Served(computed=BLOCKS)
    status = node.status()
    assert (status.counters["store_damaged_objects"], status.misses) == (1, {"store_failed": BLOCKS})
    assert moved(status, "external_in") == (0, 0)
    wait_for("it is removed", lambda: len(block_objects(server, sealed=sealed)) == BLOCKS - 1, 20)
    node.until("no slot is lost", lambda s: s.arena.used_bytes == s.arena.blocks * ROW)


# which call of a load is the last one before the server is signalled
AT_A_READ = (
    PATIENT
    + """
import os
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.store.external.{module} import {kind}
    before, calls = {kind}.read, []
    def read(self, name, begin, length):
        calls.append(name)
        if length < 10_000 and len(calls) == 3:
            os.kill({process}, {signal})
        return before(self, name, begin, length)
    {kind}.read = read
"""
)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stops", "dies"])
def test_a_store_that_stops_or_dies_in_mid_load_costs_what_has_not_come_and_comes_back(
    pool: AgentPool, server: Server, number: int
) -> None:
    stored(pool, server)
    node = made(pool, "a", server, **ALONE, loading={"mode": "Always", "deadlineSeconds": 1.0})
    joined(node.patched(AT_A_READ.format(process=server.process, signal=int(number), **CLIENTS[type(server)])))
    served = serve(node, "hot")
    assert served.computed + served.pool == BLOCKS and served.pool <= 3
    status = node.until("is told", lambda s: s.store.state == "degraded")
    assert status.store.reason in ("store_slow", "store_unreachable")
    assert sum(status.misses.values()) == served.computed
    assert set(status.misses) <= {"store_failed", "deadline", "evicted"}
    # nobody waits for it from now on
    assert serve(node, "other") == Served(computed=BLOCKS)
    assert node.status().misses["store_unreachable"] == BLOCKS
    if number == signal.SIGSTOP:
        server.signal(signal.SIGCONT)
    else:
        server.stop()
        server.start()
    node.until("reaches it again", lambda s: s.store.state == "ready", 60)
    assert [event.word for event in node.status().events if event.word.startswith("store_")] == [
        "store_ready",
        "store_degraded",
        "store_ready",
    ]


def test_a_store_that_says_nothing_when_it_is_asked_is_a_miss(pool: AgentPool, server: Server) -> None:
    stored(pool, server)
    node = joined(pool.node("a", store=server.config(), **ALONE))
    server.signal(signal.SIGSTOP)
    assert serve(node, "hot") == Served(computed=BLOCKS)
    status = node.status()
    assert (status.misses, status.store.state) == ({"store_unreachable": BLOCKS}, "degraded")


@pytest.mark.parametrize("kind", KINDS)
def test_credentials_are_read_when_they_are_asked_for(
    pool: AgentPool, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server = ValkeyServer(tmp_path, "--requirepass", "sesame") if kind == "valkey" else S3Server(tmp_path)
    request.addfinalizer(server.stop)
    server.start()
    entry = server.credentials / ("password" if kind == "valkey" else "secretAccessKey")
    secret = entry.read_text()
    entry.unlink()
    node = made(pool, "a", server, store=server.config(credentialsFolder=str(server.credentials))).start()
    node.until("is refused", lambda s: (s.store.state, s.store.reason) == ("degraded", "store_refused"))
    entry.write_text("wrong\n")
    before = node.status().counters["store_refused"]
    node.until("is refused again", lambda s: s.counters["store_refused"] > before)
    entry.write_text(secret)
    node.until("is let in", lambda s: s.store.state == "ready", 60)
    assert secret.strip() not in node.replica.log("agent", 1 << 20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_inside_tls_is_trusted_by_the_authorities_in_the_secret_alone(
    pool: AgentPool, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    authority, key = Authority(), ec.generate_private_key(ec.SECP256R1())
    files = tmp_path / "server.crt", tmp_path / "server.key"
    files[0].write_bytes(authority.sign(key.public_key(), dns=("localhost",)))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = KINDS[kind](tmp_path, tls=files)
    trusted = server.credentials / "ca.crt"
    trusted.parent.mkdir()
    trusted.write_bytes(authority.certificate)
    request.addfinalizer(server.stop)
    server.start()
    trusted.write_bytes(Authority("another").certificate)
    node = made(pool, "a", server, store=server.config(credentialsFolder=str(server.credentials)), **ALONE).start()
    told = node.until("does not trust it", lambda s: s.store.state == "degraded").store
    assert told.reason == "store_untrusted" and "certificate verify failed" in told.detail
    trusted.write_bytes(authority.certificate)
    node.until("trusts it", lambda s: s.store.state == "ready", 60)
    heat(node.attach(), "hot")
    until_written(node, BLOCKS)


def test_a_full_store_is_told_and_goes_on_serving(pool: AgentPool, valkey: ValkeyServer) -> None:
    stored(pool, valkey)
    valkey.client.config_set("maxmemory-policy", "noeviction")
    valkey.client.config_set("maxmemory", 1)
    node = member(pool, "a", valkey, **ALONE)
    assert serve(node, "hot") == Served(pool=BLOCKS)
    heat(node, "new")
    status = node.until("is told", lambda s: s.store.reason == "store_full")
    assert (status.store.state, moved(status, "external_out")) == ("ready", (0, 0))
    node.until("let go", lambda s: s.counters.get("store_dropped_failed") == BLOCKS)


def test_what_one_has_written_another_one_writes_no_more(pool: AgentPool, server: Server) -> None:
    stored(pool, server)
    names = list(block_objects(server, sealed=False))
    server.age(names)
    before = {name: server.ends(name) for name in names}
    node = member(pool, "a", server, **ALONE)
    node.engine.serve(prompt("hot", BLOCKS))
    assert serve(node, "hot") == Served(pool=BLOCKS)
    wait_for("they live longer", lambda: all(server.ends(name) > before[name] for name in names), 20)
    assert moved(node.status(), "external_out") == (0, 0)
