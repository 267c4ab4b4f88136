"""Two real vLLM replicas share blocks: nothing is computed twice, and no answer changes."""

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from engine.altering_member import AlteringMember, hot_list
from engine.measured import BLOCK, ask, by_source, moved, prompt, sees_only, settle, until_sees, until_told
from readiness_watch import watching
from replica import Pool, Replica, wait_for

from kvpool_agent.flows.declare import tokenize
from kvpool_agent.flows.probe import CACHE_SALT
from kvpool_agent.flows.probe import prompt as probe_prompt
from kvpool_agent.policy.hashes import HASH_BYTES, engine_keys
from kvpool_cli.main import main
from kvpool_contract.config import digest_of
from kvpool_contract.names import block_key


@pytest.mark.parametrize(
    ("pool", "blocks", "tail"),
    [("float32", 1, 1), ("float32", 3, 17), ("float32", 8, 31), ("bfloat16", 1, 1), ("bfloat16", 8, 31)],
    indirect=["pool"],
)
def test_a_continuation_from_another_replicas_blocks_equals_one_from_a_local_prefix_hit(
    pool: Pool, blocks: int, tail: int
) -> None:
    a, b = pool.replicas[:2]
    tokens = prompt(1000 + blocks, blocks * BLOCK + tail)
    assert ask(a, tokens).tokens == by_source(computed=blocks * BLOCK + tail)
    local = ask(a, tokens)
    assert local.tokens == by_source(device=blocks * BLOCK, computed=tail)
    until_sees(b, a)
    shared = ask(b, tokens)
    assert shared.tokens == by_source(pool=blocks * BLOCK, computed=tail)
    assert shared.answer == local.answer


@pytest.mark.parametrize(
    ("pool", "altered"),
    [("float32", False), ("float32", True), ("bfloat16", True)],
    indirect=["pool"],
)
def test_one_altered_block_under_a_valid_tag_changes_the_answer_and_an_unaltered_one_does_not(
    pool: Pool, altered: bool
) -> None:
    a, b = pool.replicas[:2]
    address, fingerprint = f"127.0.0.1:{a.peer_port}", bytes.fromhex(a.status()["format"])
    known = {block.key for block in hot_list(pool, address, fingerprint)}
    tokens = prompt(2000 + altered, 4 * BLOCK + 9)
    ask(a, tokens)
    local = ask(a, tokens)
    chain = sorted(
        (block for block in hot_list(pool, address, fingerprint) if block.key not in known),
        key=lambda block: block.depth,
    )
    assert [block.depth for block in chain] == [0, 1, 2, 3]
    member = AlteringMember(pool, address, fingerprint, [block.key for block in chain])
    seeds = pool.members.read_text()
    try:
        if altered:
            member.alter(chain[2].key)
        pool.members.write_text(f"{member.address}\n")
        sees_only(b, member.address)
        answer = ask(b, tokens)
        assert answer.tokens == by_source(pool=4 * BLOCK, computed=9)
        assert member.served == 4
        assert (answer.answer != local.answer) is altered
    finally:
        pool.members.write_text(seeds)
        member.close()
        sees_only(b, address)
        sees_only(a, f"127.0.0.1:{b.peer_port}")


def test_known_blocks_are_loaded_and_beyond_the_common_prefix_alone_is_stored_and_moved(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    block_bytes = a.status()["format_fields"]["row_bytes"]
    known = prompt(3000, 3 * BLOCK)
    longer = [*known, *prompt(3001, 2 * BLOCK + 5)]
    ask(a, [*known, 7, 8, 9])
    until_sees(b, a)
    before_a, before_b = settle(a), settle(b)

    assert ask(b, longer).tokens == by_source(pool=3 * BLOCK, computed=2 * BLOCK + 5)
    after_b = settle(b)
    assert added(before_b, after_b, "demand_in") == (3, 3 * block_bytes)
    assert added(before_b, after_b, "store_in") == (2, 2 * block_bytes)
    assert hits_added(before_b, after_b) == (2, 0, 3)

    assert ask(a, longer).tokens == by_source(device=3 * BLOCK, pool=2 * BLOCK, computed=5)
    after_a = settle(a)
    assert added(before_a, after_a, "demand_out") == (3, 3 * block_bytes)
    assert added(before_a, after_a, "demand_in") == (2, 2 * block_bytes)
    assert added(before_a, after_a, "store_in") == (0, 0)
    assert hits_added(before_a, after_a) == (0, 3, 2)


def added(before: dict[str, object], after: dict[str, object], what: str) -> tuple[int, int]:
    (blocks, size), (blocks_before, size_before) = moved(after, what), moved(before, what)
    return blocks - blocks_before, size - size_before


def hits_added(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> tuple[int, int, int]:
    """(computed, local, shared) blocks."""
    computed, local, shared = (
        after["hits"][f"{word}_blocks"] - before["hits"][f"{word}_blocks"] for word in ("computed", "local", "shared")
    )
    return computed, local, shared


def test_a_third_replica_is_ready_only_when_its_hot_set_is_in_and_then_loads_from_its_own_arena(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    bound = 40 << 20
    hot = prompt(4000, 6 * BLOCK)
    for _ in range(3):
        ask(a, [*hot, 1])
    readiness = {"targetPercent": 100, "deadlineSeconds": 120, "attachGraceSeconds": 60}
    prewarm = {"maxBytes": 1 << 30, "maxBytesPerSecond": bound, "maxStreams": 2}
    c = pool.replica("C", agent={"prewarm": prewarm, "readiness": readiness})
    try:
        c.start_agent()
        c.start_engine()
        seen: list[tuple[bool, int, int]] = []

        def ready() -> bool:
            # readiness first: what is in can only have grown by the time the status is read
            is_ready = c.probe("readyz")
            warm = c.status()["warm"]
            seen.append((is_ready, warm["loaded_blocks"], warm["planned_blocks"]))
            return is_ready

        wait_for("C ready", ready, 240, 0.05)
        early = [entry for entry in seen if not entry[0]]
        assert any(0 < loaded < planned for _, loaded, planned in early), "the warm-up was never seen under way"
        assert all(loaded == planned > 0 for is_ready, loaded, planned in seen if is_ready)
        c.wait_engine()
        status = settle(c)
        warm = status["warm"]
        assert status["state"] == "Ready(warm)"
        assert warm["bytes"] == warm["planned_blocks"] * status["format_fields"]["row_bytes"]
        assert warm["bytes_per_second"] <= bound
        assert [e["word"] for e in status["events"]] == ["attached", "warm_begin", "warm_end", "ready"]

        sent = [moved(settle(replica), "demand_out") for replica in (a, b)]
        until_told(c)
        assert ask(c, [*hot, 2]).tokens == by_source(pool=6 * BLOCK, computed=1)
        assert moved(settle(c), "demand_in") == (0, 0)
        assert [moved(settle(replica), "demand_out") for replica in (a, b)] == sent
    finally:
        c.stop()
        pool.replicas.remove(c)
        pool.members.write_text(f"127.0.0.1:{a.peer_port}\n127.0.0.1:{b.peer_port}\n")


def test_a_worker_killed_three_times_never_makes_its_pod_unready_and_shares_again(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    prefixes = [prompt(5000 + i, 5 * BLOCK + 3) for i in range(3)]
    for prefix in prefixes:
        assert ask(a, prefix).tokens == by_source(computed=5 * BLOCK + 3)
    with watching(a) as answers:
        for prefix in prefixes:
            killed = a.status()["incarnation"]
            os.kill(a.worker_pid(), signal.SIGKILL)
            wait_for("a new worker, attached", lambda killed=killed: attached_anew(a, killed), 30)
            until_sees(b, a)
            assert ask(a, prefix).tokens == by_source(device=5 * BLOCK, computed=3)
            before = settle(b)
            assert ask(b, prefix).tokens == by_source(pool=5 * BLOCK, computed=3)
            assert added(before, settle(b), "demand_in")[0] == 5
    assert len(answers) > 20
    assert all(answers)


def attached_anew(replica: Replica, killed: str) -> bool:
    status = replica.status()
    probe = status["probe"]
    return status["incarnation"] != killed and bool(status["attached"] and probe["blocks"])


@pytest.mark.parametrize("pool", ["bfloat16"], indirect=True)
def test_a_block_is_told_by_where_it_lay_on_the_engines_device_too(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    tokens = prompt(9200, 3 * BLOCK + 5)
    before = settle(b)["hits"]["shared_by_place"]
    ask(a, tokens)
    until_sees(b, a)
    assert ask(b, tokens).tokens == by_source(pool=3 * BLOCK, computed=5)
    assert ask(b, tokens).tokens == by_source(device=3 * BLOCK, computed=5)
    after = settle(b)["hits"]["shared_by_place"]
    assert {place: n - before.get(place, 0) for place, n in after.items() if n != before.get(place, 0)} == {
        "peer": 3, "device": 3,
    }  # fmt: skip


def test_what_computing_and_loading_cost_is_measured_request_by_request(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    before = {replica.name: replica.status()["costs"] for replica in (a, b)}
    for seed, blocks in ((9100, 2), (9101, 6)):
        tokens = prompt(seed, blocks * BLOCK + 5)
        ask(a, tokens)
        until_sees(b, a)
        assert ask(b, tokens).tokens == by_source(pool=blocks * BLOCK, computed=5)
    of_a, of_b = settle(a)["costs"], settle(b)["costs"]
    for replica, costs in ((a, of_a), (b, of_b)):
        assert costs["recompute"]["count"] == before[replica.name]["recompute"]["count"] + 2
    assert of_a["recompute"]["longest"] >= 6 * BLOCK + 5
    assert min(of_a["recompute"]["linear"], of_a["recompute"]["p50"], of_b["install"]["p50"]) > 0
    address = f"127.0.0.1:{a.peer_port}"
    known = before[b.name]["paths"].get(address, {"moved": 0})
    path = of_b["paths"][address]
    assert path["moved"] == known["moved"] + 2
    assert min(path["queue"]["p50"], path["rate"]["p50"]) > 0


def test_a_declared_texts_blocks_and_the_probes_are_called_as_the_engine_calls_them(pool: Pool) -> None:
    a = pool.replicas[0]
    tokens = tokenize(a.engine_port, "You are a helpful assistant who answers in one short sentence. " * 24)
    assert len(tokens) // BLOCK == 2
    ask(a, [*tokens, *prompt(9000, 9)])
    status = a.status()
    fields, fingerprint = status["format_fields"], bytes.fromhex(status["format"])

    def names(tokens: Sequence[int], salt: str = "") -> list[bytes]:
        keys = engine_keys(fields, tokens, salt)
        return [block_key(key[:HASH_BYTES], int.from_bytes(key[HASH_BYTES:], "big"), fingerprint) for key in keys]

    depths = {block.key: block.depth for block in hot_list(pool, f"127.0.0.1:{a.peer_port}", fingerprint)}
    assert [depths.get(name) for name in names(tokens)] == [0, 1]
    assert [name.hex() for name in names(probe_prompt(fields["block_tokens"]), CACHE_SALT)] == status["probe"]["blocks"]


def test_a_plan_measures_a_real_engine_by_prompts_that_it_computes_once_and_finds_once(pool: Pool) -> None:
    a = pool.replicas[0]
    before = a.prompt_tokens()
    done = CliRunner().invoke(main, ["plan", "--engine", a.engine_url, "--longest", "128", "-o", "json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["breakEven"]
    assert row["prefix_tokens"] == 128 and min(row["cold_prefill_ms"], row["local_hit_ttft_ms"]) > 0

    def counted() -> dict[str, int] | None:
        grown = {source: count - before[source] for source, count in a.prompt_tokens().items()}
        return grown if sum(grown.values()) >= 7 * 128 else None

    # found again are all of its device's blocks of 32 tokens but the one with the last token, which is computed
    found = wait_for("the engine's counters", counted, 20)
    assert found == by_source(computed=(1 + 3) * 128 + 3 * 32, device=3 * 96)


@pytest.mark.parametrize("pool", ["float32", "bfloat16"], indirect=True)
def test_the_canary_finds_whose_blocks_change_an_answer_and_takes_no_more_of_them(pool: Pool) -> None:
    a, b = pool.replicas[:2]
    address, fingerprint = f"127.0.0.1:{a.peer_port}", bytes.fromhex(a.status()["format"])
    good, bad, later = (prompt(seed, 2 * BLOCK + 9) for seed in (9300, 9301, 9302))
    known = {block.key for block in hot_list(pool, address, fingerprint)}
    for tokens in (good, bad, later):
        ask(a, tokens)
    chains = [block for block in hot_list(pool, address, fingerprint) if block.key not in known]
    canary_every(b, 0.001)
    until_sees(b, a)
    before = settle(b)
    found = ask_and_compare(b, good, rounds=1, same=1)
    print(f"{pool.dtype}: right blocks {found['variation']:.3g}, the engine itself {found['noise']:.3g}")
    assert found["variation"] <= 8e-4
    after = settle(b)
    assert (hits_added(before, after), after["misses"]) == ((0, 0, 2), before["misses"])
    assert [added(before, after, what)[0] for what in ("demand_in", "store_in")] == [2, 0]

    member = AlteringMember(pool, address, fingerprint, [block.key for block in chains])
    seeds = pool.members.read_text()
    try:
        for block in chains:
            member.alter(block.key, 3)  # so far that it is beyond what half precision differs from itself
        pool.members.write_text(f"{member.address}\n")
        sees_only(b, member.address)
        found = ask_and_compare(b, bad, rounds=2, differs=1)
        print(f"{pool.dtype}: altered blocks {found['variation']:.3g}, the engine itself {found['noise']:.3g}")
        assert found["distrusted"] == ["altering-uid"]
        before = settle(b)
        assert [(p["member"], p["breaker"]) for p in before["peers"] if p["live"]] == [("altering-uid", "distrusted")]
        assert ask(b, later).tokens == by_source(computed=2 * BLOCK + 9)
        misses = settle(b)["misses"]
        assert misses["distrusted"] - before["misses"].get("distrusted", 0) == 2
        assert member.served == 2
    finally:
        canary_every(b, 0)
        pool.members.write_text(seeds)
        member.close()


def canary_every(replica: Replica, seconds: float) -> None:
    """Has one hit in so many seconds compared from now on."""
    replica.config["canary"] = {"intervalSeconds": seconds}
    (replica.folder / "agent.new").write_text(json.dumps(replica.config))
    (replica.folder / "agent.new").rename(replica.folder / "agent.json")
    digest = digest_of((replica.folder / "agent.json").read_bytes())
    wait_for("the configuration", lambda: replica.status()["config"]["hash"] == digest, 20)


def ask_and_compare(replica: Replica, tokens: list[int], rounds: int, **counts: int) -> dict[str, Any]:
    """One request whose two blocks come from the pool, and its comparison in so many rounds: the canary's state when
    so many comparisons have ended so, and none otherwise. The engine computes and finds what that takes and no more."""
    prefix, before = 2 * BLOCK, replica.prompt_tokens()
    replica.complete(tokens, 1)

    def ended() -> dict[str, Any] | None:
        found = replica.status()["canary"]
        assert not found["inconclusive"] + found["not_run"], found
        return found if all(found[name] == count for name, count in counts.items()) else None

    found = wait_for(f"compared: {counts}", ended, 60)
    assert found is not None
    took = by_source(pool=prefix, computed=len(tokens) - prefix + rounds * (prefix + 3), device=rounds * 2 * prefix)

    def taken() -> bool:
        now = replica.prompt_tokens()
        return {source: now[source] - before[source] for source in now} == took

    wait_for(f"the engine's counters: {took}", taken, 20)
    return found
