"""A member with a good certificate that lacks the keys of cache namespaces: what it asks and announces of them comes to
nothing, as if there were none. On a real agent, inside TLS; with the keys the same member finds all.
"""

import base64
import json
from pathlib import Path

import pytest
from agent_pool import AgentPool, Node
from capture import Capture
from standin_engine import Served, engine_keys, prompt
from trusted import NAME, transport

from kvpool_agent.keyring import Keyring
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import Connection
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_contract.config import decode_config
from kvpool_contract.names import block_key
from kvpool_contract.tenants import key_for, slab_id

BLOCKS, WAIT, MARK = 6, 20.0, "mark"
KEYS = {"public": b"p" * 32, "acme": b"a" * 32}


def joined(pool: AgentPool, name: str, folder: Path) -> Node:
    for space, key in KEYS.items():
        (folder / space).write_bytes(base64.b64encode(key))
    spaces = [
        {"name": space, "keyFile": str(folder / space), "memoryPercent": percent}
        for space, percent in (("public", 0), ("acme", 40))
    ]
    node = pool.joined(name, cacheNamespaces=spaces, requestNamespace="TrustGateway", arenaBytes=64 << 20)
    node.engine.side._mark = MARK
    return node


def ask(node: Node, tenant: str) -> Served:
    (served,) = node.engine._serve([(prompt("one", BLOCKS), tenant, {MARK: f"in:{tenant}"})])
    return served


@pytest.fixture
def holder(pool: AgentPool, tmp_path: Path) -> Node:
    """With blocks of the same prompt in both cache namespaces."""
    node = joined(pool, "a", tmp_path)
    for tenant in KEYS:
        ask(node, tenant)
    node.until_blocks(2 * BLOCKS)
    return node


class Asker:
    """A member in this process."""

    def __init__(self, node: Node, name: str, keyring: Keyring) -> None:
        self.proof = Entitlement(keyring, (name, "inc"))
        self.dialer = Dialer(Identity(NAME, name, "inc"), transport(node.replica.pool, name), self.proof)
        self.connection: Connection = self.dialer.handshake(f"127.0.0.1:{node.replica.peer_port}")[0]

    def ask(self, message: frames.AnyMessage, tail: bytes = b"") -> tuple[frames.AnyMessage, bytes]:
        self.connection.send(message, tail)
        answer, length = self.connection.receive()
        return answer, self.connection.read(length)


def names(node: Node, tenant: str) -> list[bytes]:
    """Under what the member that holds the key looks for the prompt's blocks."""
    key, fingerprint = key_for(KEYS[tenant], "block names"), bytes.fromhex(node.status().format)
    engine_names = engine_keys(prompt("one", BLOCKS), salt=tenant)
    return [block_key(one[:-4], int.from_bytes(one[-4:], "big"), fingerprint, key) for one in engine_names]


def test_who_lacks_the_keys_is_told_nothing_and_what_it_announces_is_not_kept(holder: Node) -> None:
    fingerprint = bytes.fromhex(holder.status().format)
    slabs = {tenant: slab_id(fingerprint, tenant) for tenant in KEYS}
    keyring = Keyring(decode_config(json.dumps(holder.replica.config).encode()).config)
    for tenant, space in zip(KEYS, keyring.spaces, strict=True):
        keyring.register(slabs[tenant], space)
    stranger, member = Asker(holder, "stranger-uid", Keyring()), Asker(holder, "member-uid", keyring)
    assert all(member.proof.shares(member.connection, slab) for slab in slabs.values())
    entries = holder.status().directory.entries
    for tenant, slab in slabs.items():
        tail = frames.pack_keys(names(holder, tenant))
        assert member.ask(frames.Locate(slab), tail) == (frames.Located(), b"\1" * BLOCKS)
        assert stranger.ask(frames.Locate(slab), tail) == (frames.Located(), bytes(BLOCKS))
        assert stranger.ask(frames.Fetch(slab, "demand", WAIT), tail) == (frames.FetchEnd(), b"")
        assert stranger.ask(frames.Hot(slab, 100)) == (frames.HotList(), b"")
    # an announcement is for the default cache namespace, of which alone there is a directory
    told = names(holder, "public")
    announcement = frames.Announce([BLOCKS], 0), frames.pack_announcement({told[0]: told}, ())
    assert isinstance(stranger.ask(*announcement)[0], frames.Announced)
    assert stranger.ask(frames.Where(), frames.pack_keys(told)) == (frames.Found([]), b"")
    assert holder.status().directory.entries == entries
    assert isinstance(member.ask(*announcement)[0], frames.Announced)
    assert holder.status().directory.entries == entries + BLOCKS
    assert stranger.ask(frames.Where(), frames.pack_keys(told)) == (frames.Found([]), b"")
    found, _ = member.ask(frames.Where(), frames.pack_keys(told))
    assert isinstance(found, frames.Found) and ("member-uid", "inc") in found.holders
    assert holder.status().counters.get("connections_in_clear", 0) == 0


@pytest.mark.parametrize("tls", [True, False], ids=["inside TLS", "in clear"])
def test_no_key_is_ever_on_the_wire_and_names_are_in_clear_alone(tmp_path: Path, tls: bool) -> None:
    """Also where members prove to each other that they hold it, and nothing is encrypted."""
    pool = AgentPool(tmp_path, tls=tls)
    try:
        nodes = [joined(pool, name, tmp_path) for name in "ab"]
        a, b = nodes
        try:
            looking = Capture([node.replica.peer_port for node in nodes])
        except PermissionError:
            pytest.skip("needs CAP_NET_RAW, to look at the loopback interface")
        with looking as capture:
            assert ask(a, "acme") == Served(computed=BLOCKS)
            a.until_blocks(BLOCKS)
            b.until("sees it", lambda s: any(p.live and p.format == s.format and s.format for p in s.peers))
            assert ask(b, "acme") == Served(pool=BLOCKS)
            uses = ("block names", "entitlement", "files")
            keys = [made for key in KEYS.values() for made in (key, *(key_for(key, use) for use in uses))]
            forms = [form for key in keys for form in (key, base64.b64encode(key)[:-2], key.hex().encode())]
            capture.plant(a.replica.peer_port, b"\n".join(forms))
        streams = capture.streams()
        assert capture.dropped == 0 and sum(map(len, streams)) > BLOCKS * 4096
        assert [form for form in forms if any(form in stream for stream in streams)] == []
        assert [form for form in forms if any(form in stream for stream in capture.planted())] == forms
        seen = [any(name in stream for stream in streams) for name in names(a, "acme")]
        assert seen == [not tls] * BLOCKS
    finally:
        pool.stop()
