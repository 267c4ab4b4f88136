"""With real engines: a prefix computed by one replica is loaded by another, a third replica holds the hot set before it
takes traffic, and a worker's crash is a cache miss and not an outage."""

import contextlib
import itertools
import json
import time

from cluster.engines import NAME, SELECTOR, Engines, Member, complete, kvpool, prompt, whole_blocks
from cluster.kube import Kube, wait_for
from cluster.observers import EndpointWatch, Traffic
from cluster.standins import wait_probed
from cluster.workers import find_worker, kill_worker
from kvpool_contract.status import AgentStatus

TOKENS = 1000
BLOCKS = 7
SHORT_TOKENS = 700
SHORT_BLOCKS = 5
WARM_SECONDS = 420


def ready_event(member: Member) -> float:
    """When the agent turned ready by its own log; 0 before."""
    return next((event.at for event in member.status().events if event.word == "ready"), 0.0)


def test_shared_and_warm_join(kube: Kube, engines: Engines) -> None:
    first, second = engines.grow_to(2)[:2]
    wait_probed([first, second], "alone", "same")
    assert whole_blocks(TOKENS) == 896

    # A prefix that one replica has computed is loaded by the other, whole blocks and not a token more.
    hits = second.status().hits.shared_blocks
    hot, answer = share(first, second, [prompt(seed, TOKENS) for seed in range(1, 5)])
    wait_for("the second agent's account", lambda: second.status().hits.shared_blocks == hits + BLOCKS, 30)
    wait_for("the second agent's copy of the engine's count", lambda: second.status().engine_tokens.pool == 896, 30)

    # A third replica joins under traffic.
    names = {first.pod.name, second.pod.name}
    prompts = itertools.cycle([prompt(9000 + i, 300) for i in range(4)])
    with (
        EndpointWatch(kube, NAME) as endpoints,
        Traffic(kube.cluster_ip(NAME), ask=lambda host: complete(host, 80, next(prompts))) as traffic,
    ):
        kube.scale(NAME, 3)
        third = wait_for(
            "the third pod's address",
            lambda: next((m for m in engines.members() if m.pod.name not in names and m.pod.address), None),
            60,
        )
        wait_until_ready_without_serving(third)
        status = third.status()
        assert status.state == "Ready(warm)", (status.state, status.reason)
        assert status.warm.loaded_blocks == status.warm.planned_blocks
        assert status.warm.planned_blocks >= BLOCKS

        engines.wait_ready(3)
        wait_for("the third endpoint", lambda: any(ready for _, ready in endpoints.history(third.pod.name)), 30)
        wait_for("the third replica serves", lambda: third.requests() > 0, 60)
    assert traffic.failures == []
    assert traffic.served > 0

    ready_at = ready_event(third)
    history = endpoints.history(third.pod.name)
    assert any(not ready for _, ready in history), "the endpoint was seen before it was ready"
    assert min(at for at, ready in history if ready) >= ready_at

    # What it was warmed with serves: the hot prompt comes from its own agent, computed by others.
    wait_probed([third], "alone", "same")
    third.wait_for_heads(first)
    before = third.pool_tokens()
    assert third.complete(hot) == answer
    assert third.pool_tokens() - before == 896

    rows = json.loads(kvpool("status", NAME, "-n", "default", "-o", "json", "--kubeconfig",
                             str(kube.provided.kubeconfig)))  # fmt: skip
    assert {row["member"] for row in rows} == {pod.name for pod in kube.pods(SELECTOR)}
    assert {row["status"]["format"] for row in rows} == {status.format}


def share(first: Member, second: Member, prompts: list[list[int]]) -> tuple[list[int], str]:
    """One of these prompts, which one replica has computed and the other has loaded, and its answer. An engine is told
    of a prompt a moment after its agent has learnt of it: one that was asked for before is computed, and the next one
    is tried."""
    for tokens in prompts:
        held, before = first.status().arena.blocks, second.pool_tokens()
        answer = first.complete(tokens)
        wait_for("the first replica's blocks", lambda n=held: first.status().arena.blocks >= n + BLOCKS, 30)
        second.wait_for_blocks(first, held + BLOCKS)
        second.wait_for_heads(first)
        assert second.complete(tokens) == answer
        if loaded := second.pool_tokens() - before:
            assert loaded == whole_blocks(TOKENS)
            return tokens, answer
    raise AssertionError(f"of {len(prompts)} prompts the other replica has loaded none")


def wait_until_ready_without_serving(member: Member) -> None:
    """Until the agent is ready. The engine's count is read before the agent's state: a request that was finished
    before a state other than ready was one too early."""
    deadline = time.monotonic() + WARM_SECONDS
    while time.monotonic() < deadline:
        try:
            served = member.requests()
        except OSError:
            served = 0  # the engine is not up yet
        with contextlib.suppress(OSError):  # no answer says nothing
            status = member.status()
            if status.state.startswith("Ready"):
                return
            assert served == 0, f"{member.pod.name} has served {served} requests before it was warm"
        time.sleep(0.1)
    raise AssertionError(f"{member.pod.name}: its agent is not ready after {WARM_SECONDS} s")


def test_a_worker_that_is_killed_three_times_is_a_miss_and_no_outage(kube: Kube, engines: Engines) -> None:
    victim, other = engines.grow_to(2)[:2]
    assert victim.status().state.startswith("Ready")
    assert whole_blocks(SHORT_TOKENS) == 640

    with EndpointWatch(kube, NAME) as endpoints:
        wait_for("the victim's endpoint", lambda: endpoints.history(victim.pod.name), 60)
        for turn in range(3):
            kill_and_share_again(victim, other, prompt(100 + turn, SHORT_TOKENS))
        history = endpoints.history(victim.pod.name)
    assert [at for at, ready in history if not ready] == []
    assert victim.pod.name in {m.pod.name for m in engines.members() if m.pod.ready}


def kill_and_share_again(victim: Member, other: Member, prefix: list[int]) -> None:
    """One turn: compute the prefix, kill the worker, ask again where it was computed, load it elsewhere."""
    before = victim.status()
    answer = victim.complete(prefix)
    wait_for("the prefix in the arena", lambda: victim.status().arena.blocks >= before.arena.blocks + SHORT_BLOCKS, 30)
    other_tokens = other.pool_tokens()

    killed = kill_worker(victim.pod.uid)
    wait_for("another worker", lambda: find_worker(victim.pod.uid) != killed, 30)

    def attached() -> AgentStatus | None:
        status = victim.status()
        return status if status.attached and status.incarnation != before.incarnation else None

    assert wait_for("the engine attached to it", attached, 60).state.startswith("Ready")

    assert victim.complete(prefix) == answer
    wait_probed([other, victim], "alone", "same")
    other.wait_for_blocks(victim, SHORT_BLOCKS)
    other.wait_for_heads(victim)
    assert other.complete(prefix) == answer
    assert other.pool_tokens() - other_tokens == 640
