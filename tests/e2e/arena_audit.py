"""Asks a member for what it holds, as a member does, and compares every byte with what computing gives."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_pool import Node, block_name
from replica import LOOPBACK
from standin_engine import block_bytes, engine_keys
from trusted import transport

from kvpool_agent.keyring import Keyring
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_agent.store.tag import tag_of
from kvpool_contract.tenants import slab_id


@dataclass
class Audit:
    """Blocks that came: right ones, those that a member would refuse by their tag, and wrong ones under a valid tag."""

    right: int = 0
    refused: int = 0
    wrong: int = 0


def audit(node: Node, tokens: Sequence[Sequence[int]], row_bytes: int, keyring: Keyring | None = None) -> Audit:
    """All blocks of the prompts that the node holds, in the default cache namespace. keyring: where that has a key.
    Raises PeerError."""
    fingerprint, ring = node.status().format, keyring or Keyring()
    keys = list(dict.fromkeys(key for one in tokens for key in engine_keys(one)))
    names = [block_name(key, fingerprint, ring.default.names[0]) for key in keys]
    slab = slab_id(bytes.fromhex(fingerprint), ring.default.name) if ring.keyed else bytes.fromhex(fingerprint)
    ring.register(slab, ring.default)
    entitlement = Entitlement(ring, ("probe", "1"))
    dialer = Dialer(Identity("demo", "probe", "1"), transport(node.replica.pool, "probe"), entitlement)
    found = Audit()

    def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
        data = bytearray(length)
        read_into(memoryview(data))
        if tag_of(names[index], memoryview(data)) != tag:
            found.refused += 1
        elif data == block_bytes(keys[index], row_bytes):
            found.right += 1
        else:
            found.wrong += 1

    address = f"{LOOPBACK}:{node.replica.peer_port}"
    try:
        dialer.fetch(address, slab, names, "demand", time.monotonic() + 20, land)
    finally:
        dialer.close()
    return found


def held_by(node: Node, tokens: Sequence[Sequence[int]], row_bytes: int, keyring: Keyring | None = None) -> int:
    """How many blocks of the prompts the node has, all of them with the bytes that computing them gives."""
    found = audit(node, tokens, row_bytes, keyring)
    assert found == Audit(right=found.right)
    return found.right
