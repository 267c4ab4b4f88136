"""A worker's crash is a cache miss, not an outage: the pod stays in its Service, the engine attaches again by
itself, and what was computed before the crash is shared again after its next request."""

from cluster.engines import NAME, Engines, Member, prompt, whole_blocks
from cluster.kube import Kube, wait_for
from cluster.observers import EndpointWatch
from cluster.workers import find_worker, kill_worker
from kvpool_contract.status import AgentStatus

TOKENS = 700
BLOCKS = 5


def test_worker_killed_three_times(kube: Kube, engines: Engines) -> None:
    victim, other = engines.grow_to(2)[:2]
    assert victim.status().state.startswith("Ready")
    assert whole_blocks(TOKENS) == 640

    with EndpointWatch(kube, NAME) as endpoints:
        wait_for("the victim's endpoint", lambda: endpoints.history(victim.pod.name), 10)
        for turn in range(3):
            kill_and_share_again(victim, other, prompt(100 + turn, TOKENS))
        history = endpoints.history(victim.pod.name)
    assert [at for at, ready in history if not ready] == []
    assert victim.pod.name in {m.pod.name for m in engines.members() if m.pod.ready}


def kill_and_share_again(victim: Member, other: Member, prefix: list[int]) -> None:
    """One turn: compute the prefix, kill the worker, ask again where it was computed, load it elsewhere."""
    before = victim.status()
    answer = victim.complete(prefix)
    wait_for("the prefix in the arena", lambda: victim.status().arena.blocks >= before.arena.blocks + BLOCKS, 30)
    other_tokens = other.pool_tokens()

    killed = kill_worker(victim.pod.uid)
    wait_for("another worker", lambda: find_worker(victim.pod.uid) != killed, 30)

    def attached() -> AgentStatus | None:
        status = victim.status()
        return status if status.attached and status.incarnation != before.incarnation else None

    assert wait_for("the engine attached to it", attached, 60).state.startswith("Ready")

    assert victim.complete(prefix) == answer
    other.wait_for_blocks(victim, BLOCKS)
    assert other.complete(prefix) == answer
    assert other.pool_tokens() - other_tokens == 640
