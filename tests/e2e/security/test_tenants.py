"""Cache namespaces between real agents, inside TLS: a key is rotated under load and no load fails; a restart keeps them
apart."""

import base64
import itertools
import time
from pathlib import Path
from typing import Any

from agent_pool import AgentPool, Node
from standin_engine import Served, prompt

from kvpool_agent.keyring import LOOK_SECONDS
from kvpool_agent.peer.entitlement import AGAIN_SECONDS

PUBLIC, OLD, NEW = b"p" * 32, b"o" * 32, b"n" * 32
BLOCKS = 6
MARK = "mark"


def write(file: Path, *keys: bytes) -> None:
    """As a mount does it: the whole file at once."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(b"\n".join(map(base64.b64encode, keys)))
    fresh.rename(file)


def spaces(folder: Path) -> dict[str, Any]:
    for name, key in (("public", PUBLIC), ("acme", OLD)):
        write(folder / name, key)
    return {
        "cacheNamespaces": [
            {"name": "public", "keyFile": str(folder / "public")},
            {"name": "acme", "keyFile": str(folder / "acme"), "memoryPercent": 40},
        ],
        "requestNamespace": "TrustGateway",
        "arenaBytes": 64 << 20,
    }


def joined(pool: AgentPool, name: str, **agent: Any) -> Node:
    node = pool.joined(name, **agent)
    node.engine.side._mark = MARK  # the stand-in has no front end: its requests bear the mark themselves
    return node


def ask(node: Node, name: str, tenant: str = "acme") -> Served:
    """A request whose front end has found it to be of this cache namespace."""
    marked = {MARK: f"in:{tenant}"} if tenant else None
    (served,) = node.engine._serve([(prompt(name, BLOCKS), tenant, marked)])
    return served


def until_live(*nodes: Node) -> None:
    for node in nodes:
        node.until(
            "sees the other",
            lambda s: any(peer.live and peer.format == s.format and s.format for peer in s.peers),
        )


def test_a_key_is_rotated_under_load_and_no_load_fails(pool: AgentPool, tmp_path: Path) -> None:
    agent = spaces(tmp_path)
    a, b = joined(pool, "a", **agent), joined(pool, "b", **agent)
    until_live(a, b)
    numbers = itertools.count()
    loaded = 0

    def load(seconds: float) -> None:
        """Each prompt is computed at one member and loaded whole by the other."""
        nonlocal loaded
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            first, second = (a, b) if next(numbers) % 2 else (b, a)
            name = f"during {next(numbers)}"
            assert ask(first, name) == Served(computed=BLOCKS)
            first.until(
                "stored", lambda s, first=first: s.transfers["store_in"].blocks == (stored[first.replica.name] + BLOCKS)
            )
            stored[first.replica.name] += BLOCKS
            assert ask(second, name) == Served(pool=BLOCKS)
            loaded += 1

    stored = {"a": 0, "b": 0}
    for name in ("before 0", "before 1", "forgotten"):
        assert ask(a, name) == Served(computed=BLOCKS)
        stored["a"] += BLOCKS
    for keys in ((OLD, NEW), (NEW, OLD)):
        write(tmp_path / "acme", *keys)
        load(AGAIN_SECONDS + 2 * LOOK_SECONDS)
    assert ask(b, "before 0") == Served(pool=BLOCKS)  # named by the former key, at the other member
    a.engine.forget()
    assert ask(a, "before 1") == Served(pool=BLOCKS)  # and here
    load(1.0)
    write(tmp_path / "acme", NEW)
    for node in (a, b):
        node.until("one key", lambda s: [space.keys for space in s.cache_namespaces] == [1, 1])
    load(1.0)
    b.engine.forget()
    assert ask(b, "before 0") == Served(pool=BLOCKS)  # it was used under both, so it is named by the new one
    assert ask(b, "forgotten") == Served(computed=BLOCKS)
    assert loaded > 10
    for node in (a, b):
        status = node.status()
        assert status.misses.keys() <= {"never_published"}
        assert (status.tls.state, status.counters.get("connections_in_clear", 0)) == ("ok", 0)
        assert status.counters.get("tag_failures", 0) == 0
    assert b.status().counters["renamed_blocks"] >= BLOCKS


def test_a_restarted_worker_keeps_each_cache_namespaces_blocks_to_itself(pool: AgentPool, tmp_path: Path) -> None:
    node = joined(pool, "a", **spaces(tmp_path))
    assert ask(node, "one") == ask(node, "two", tenant="") == Served(computed=BLOCKS)
    node.until("both stored", lambda s: s.arena.blocks == 2 * BLOCKS)
    node.until_restarted(node.kill_worker())
    status = node.until("attached", lambda s: s.attached)
    assert [(space.name, space.blocks) for space in status.cache_namespaces] == [("public", BLOCKS), ("acme", BLOCKS)]
    node.engine.forget()
    assert ask(node, "one") == ask(node, "two", tenant="") == Served(pool=BLOCKS)
    node.engine.forget()
    (crossed,) = node.engine._serve([(prompt("one", BLOCKS), "acme", None)])  # acme's hashes, asked of the default one
    assert crossed == Served(computed=BLOCKS)


def test_a_pod_without_the_key_computes_and_says_why(pool: AgentPool, tmp_path: Path) -> None:
    agent = spaces(tmp_path)
    a, b = joined(pool, "a", **agent), pool.node("b", **agent)
    b.replica.agent_environment["KVPOOL_CACHE_NAMESPACES"] = ""
    b.start().attach()
    b.engine.side._mark = MARK
    until_live(a, b)
    assert ask(a, "one") == Served(computed=BLOCKS)
    for tenant in ("acme", "unheard-of"):
        assert ask(b, "one", tenant) == Served(computed=BLOCKS)
    status = b.until("two requests", lambda s: s.misses.get("not_authorised", 0) == 2 * BLOCKS)
    assert status.arena.blocks == 0
    assert [space.name for space in status.cache_namespaces] == ["public"]


def test_a_newcomer_is_warm_in_every_cache_namespace_that_it_holds(pool: AgentPool, tmp_path: Path) -> None:
    agent = spaces(tmp_path)
    a = joined(pool, "a", **agent)
    assert ask(a, "one") == ask(a, "two", tenant="") == Served(computed=BLOCKS)
    a.until("two requests", lambda s: s.hits.computed_blocks == 2 * BLOCKS)
    c = joined(pool, "c", **agent)
    status = c.until_state("Ready(warm)")
    assert (status.warm.planned_blocks, status.warm.loaded_blocks) == (2 * BLOCKS, 2 * BLOCKS)
    assert [(space.name, space.blocks) for space in status.cache_namespaces] == [("public", BLOCKS), ("acme", BLOCKS)]
    assert ask(c, "one") == ask(c, "two", tenant="") == Served(pool=BLOCKS)
    assert "demand_in" not in c.status().transfers
