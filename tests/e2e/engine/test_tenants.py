"""Two tenants on one real engine and on two, agents inside TLS: nothing is shared across, everything within, in the
engine's own caches and in the pool; and clients that name somebody else's tenant, under each `requestNamespace`."""

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine.forged import Forge, ForgedEngine
from engine.measured import BLOCK, by_source, small_prompt
from replica import MIB, Pool, Replica, Tools, wait_for
from tenant_keys import sign_claim

from kvpool_client.front import CLAIM, FOLDED, Verdict, fold

LENGTH = 2 * BLOCK + 5
COMPUTED = by_source(computed=LENGTH)
ON_DEVICE = by_source(device=2 * BLOCK, computed=5)
LOADED = by_source(pool=2 * BLOCK, computed=5)
GATEWAY = b"g" * 32
TENANTS = ("acme", "umbrella")


def prompt(seed: int) -> list[int]:
    return small_prompt(seed, LENGTH)


def signed(tenant: str, key: bytes = GATEWAY, seconds: int = 600) -> dict[str, str]:
    return {CLAIM: sign_claim(key, "demo", tenant, int(time.time()) + seconds)}


@dataclass(frozen=True)
class Place:
    """A replica's agent and its engine."""

    replica: Replica
    engine: ForgedEngine

    def tokens(self, prompt: list[int], parameters: dict[str, Any] | None = None, salt: str = "") -> dict[str, int]:
        return self.engine.ask(prompt, parameters=parameters, salt=salt).tokens

    def blocks(self) -> int:
        """That its agent holds, of all cache namespaces."""
        return sum(space["blocks"] for space in self.replica.status()["cache_namespaces"])

    def counted(self, *words: str) -> list[int]:
        counters = self.replica.status()["counters"]
        return [counters.get(word, 0) for word in words]


@pytest.fixture(scope="module")
def places(
    tools: Tools, forge: Forge, small_models: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """A and B want claims signed, C trusts its gateway and may not use umbrella, D ignores what requests say."""
    folder = tmp_path_factory.mktemp("pool")
    for i, name in enumerate(("public", *TENANTS)):
        (folder / f"key-{name}").write_bytes(base64.b64encode(bytes([i]) * 32))
    (folder / "key-gateway").write_bytes(base64.b64encode(GATEWAY))
    spaces = [
        {"name": name, "keyFile": str(folder / f"key-{name}"), "memoryPercent": 30 if name in TENANTS else 0}
        for name in ("public", *TENANTS)
    ]
    pool = Pool(
        tools, folder, host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB, "cacheNamespaces": spaces}
    )  # fmt: skip
    modes: dict[str, dict[str, Any]] = {
        "A": {"requestNamespace": "Signed", "gatewayKeyFile": str(folder / "key-gateway")},
        "B": {"requestNamespace": "Signed", "gatewayKeyFile": str(folder / "key-gateway")},
        "C": {"requestNamespace": "TrustGateway"},
        "D": {},
    }
    replicas = [pool.replica(name, agent=mode) for name, mode in modes.items()]
    replicas[2].agent_environment["KVPOOL_CACHE_NAMESPACES"] = "acme"
    with ThreadPoolExecutor() as threads:
        list(threads.map(Replica.start_agent, replicas))
    made = {r.name: Place(r, ForgedEngine(forge, r, small_models[0])) for r in replicas}
    try:
        for place in made.values():
            place.engine.until_ready()
        for one in replicas:
            wait_for(f"{one.name} sees all", lambda one=one: all_of_one_format(one, len(replicas) - 1), 30)
        yield made
    finally:
        for place in made.values():
            place.engine.close()
        pool.stop()


def all_of_one_format(replica: Replica, count: int) -> bool:
    status = replica.status()
    return sum(p["live"] and p["format"] == status["format"] for p in status["peers"]) == count and bool(
        status["format"]
    )


def test_on_one_engine_tenants_share_nothing_across_and_everything_within(places: dict[str, Place]) -> None:
    a, tokens = places["A"], prompt(1)
    ways: list[tuple[dict[str, str] | None, str]] = [
        (signed("acme"), ""), (signed("umbrella"), ""), (None, ""), (signed("acme"), "salted"), (None, "salted"),
    ]  # fmt: skip
    before = a.blocks()
    for way in ways:
        assert a.tokens(tokens, *way) == COMPUTED  # neither device, host nor pool has it from the ones before
    for way in ways:
        assert a.tokens(tokens, *way) == ON_DEVICE
    wait_for("all is stored", lambda: a.blocks() == before + 2 * len(ways), 30)
    a.engine.forget()
    for way in ways:
        assert a.tokens(tokens, *way) == LOADED
    # another claim of the same tenant finds the same
    assert a.tokens(tokens, signed("acme", seconds=300)) == ON_DEVICE


def test_on_two_engines_tenants_share_nothing_across_and_everything_within(places: dict[str, Place]) -> None:
    a, b, c = places["A"], places["B"], places["C"]
    tokens = prompt(2)
    assert a.tokens(tokens, signed("acme")) == COMPUTED
    assert b.tokens(tokens, signed("umbrella")) == COMPUTED
    assert b.tokens(tokens) == COMPUTED
    assert c.tokens(tokens, {CLAIM: "umbrella"}) == COMPUTED  # of which C has no key
    assert b.tokens(tokens, signed("acme")) == LOADED
    assert c.tokens(tokens, {CLAIM: "acme"}) == LOADED
    assert c.tokens(tokens) == LOADED  # the default one's, from B
    assert a.tokens(tokens, signed("umbrella")) == LOADED
    for place in (a, b, c):  # and no byte of it went in clear
        status = place.replica.status()
        assert (status["tls"]["mode"], status["tls"]["state"]) == ("Files", "ok")
        assert status["counters"].get("connections_in_clear", 0) == 0 < status["counters"]["tls_dialed"]
    status = a.replica.status()
    assert [(space["name"], space["keys"], space["problem"]) for space in status["cache_namespaces"]] == [
        ("public", 1, ""), ("acme", 1, ""), ("umbrella", 1, ""),
    ]  # fmt: skip


def test_where_claims_are_signed_naming_anothers_tenant_opens_nothing(places: dict[str, Place]) -> None:
    a, tokens = places["A"], prompt(3)
    assert a.tokens(tokens, signed("acme")) == COMPUTED
    words = ("claim_malformed", "claim_forged", "claim_expired", "claim_too_long")
    before = a.counted(*words)
    claims: list[dict[str, Any]] = [
        {CLAIM: "acme"}, signed("acme", key=b"x" * 32), signed("acme", seconds=-1), signed("acme", seconds=7200),
        {CLAIM: ["acme"]},
    ]  # fmt: skip
    for claim in claims:
        assert a.tokens(tokens, claim) == COMPUTED
    # what looks like the front end's own mark is none, and names nobody: the default one, which holds nothing of it
    assert a.tokens(tokens, {"kvpool_request_mark": "in:acme", CLAIM: None}) == COMPUTED
    assert a.tokens(tokens, {"namespace": "acme"}) == ON_DEVICE
    assert a.tokens(tokens, salt=FOLDED + "0" * 32) == COMPUTED
    assert a.tokens(tokens, salt=str(fold(Verdict("acme"), "", None))) == COMPUTED
    after = a.counted(*words)
    assert [now - was for now, was in zip(after, before, strict=True)] == [1, 1, 1, 1]
    assert a.tokens(tokens, signed("acme")) == ON_DEVICE


def test_where_the_gateway_is_trusted_a_name_is_taken_and_the_mark_of_the_front_end_is_not(
    places: dict[str, Place],
) -> None:
    c, tokens = places["C"], prompt(4)
    assert c.tokens(tokens, {CLAIM: "acme"}) == COMPUTED
    assert c.tokens(tokens, {"kvpool_request_mark": "in:acme"}) == COMPUTED
    assert c.tokens(tokens, {CLAIM: "No such name"}) == COMPUTED
    # whoever reaches the engine can choose: it is the gateway's to set the field or to take it out
    assert c.tokens(tokens, {CLAIM: "acme"}) == ON_DEVICE
    # a name that is not declared is the default one's
    before = c.counted("namespace_unknown")
    assert c.tokens(tokens, {CLAIM: "nobody-knows"}) == ON_DEVICE
    assert c.counted("namespace_unknown") == [before[0] + 1]


def test_where_claims_are_ignored_they_change_nothing(places: dict[str, Place]) -> None:
    a, d, tokens = places["A"], places["D"], prompt(5)
    assert a.tokens(tokens, signed("acme")) == COMPUTED
    for attack in (signed("acme"), {CLAIM: "acme"}, {"kvpool_request_mark": "in:acme"}):
        assert d.tokens(tokens, attack)["pool"] == 0
    assert d.tokens(tokens) == ON_DEVICE
