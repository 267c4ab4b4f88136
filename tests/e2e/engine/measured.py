"""What a request took from where, by the engine's own counters, and what it answered."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from replica import Replica, wait_for

BLOCK = 128


@dataclass(frozen=True)
class Outcome:
    """tokens: prompt tokens of this request by source; answer: token ids and all top log-probabilities."""

    tokens: dict[str, int]
    answer: tuple[tuple[str, ...], tuple[dict[str, float], ...]]


def by_source(**tokens: int) -> dict[str, int]:
    """Prompt tokens by source, zero where not given."""
    return {source: tokens.get(source, 0) for source in ("computed", "device", "host", "pool")}


def prompt(seed: int, length: int) -> list[int]:
    """Token ids that no other seed shares a prefix with."""
    return [(seed * 7919 + i * 104_729 + seed * i) % 40_000 + 100 for i in range(length)]


def small_prompt(seed: int, length: int) -> list[int]:
    """The same for models of few token ids."""
    return [token % 2000 + 10 for token in prompt(seed, length)]


def ask(replica: Replica, tokens: Sequence[int], answer_tokens: int = 8) -> Outcome:
    """One request at temperature 0, with the log-probabilities of the 20 likeliest tokens at each place.

    A longer prompt than one block ends when the agent has heard of it, so that what it stored can be counted.
    """
    before = replica.prompt_tokens()
    answer = replica.complete(
        list(tokens), answer_tokens, logprobs=20, ignore_eos=True, return_tokens_as_token_ids=True
    )["choices"][0]["logprobs"]
    after = wait_for("the engine's counters", lambda: _grown(replica, before, len(tokens)), 20)
    settle(replica)
    return Outcome(
        {source: after[source] - before[source] for source in after},
        (tuple(answer["tokens"]), tuple(answer["top_logprobs"])),
    )


def _grown(replica: Replica, before: dict[str, int], length: int) -> dict[str, int] | None:
    now = replica.prompt_tokens()
    return now if sum(now.values()) - sum(before.values()) >= length else None


def settle(replica: Replica, seconds: float = 20) -> dict[str, Any]:
    """The agent's status once it has heard of the request's end and its counts stand still for half a second."""
    last: dict[str, Any] = {}
    since = time.monotonic()

    def still() -> dict[str, Any] | None:
        nonlocal last, since
        status = replica.status()
        now = {key: status[key] for key in ("hits", "transfers", "arena", "misses")}
        if now != last:
            last, since = now, time.monotonic()
        return status if time.monotonic() - since > 0.5 else None

    found = wait_for("the agent's counts to stand still", still, seconds)
    assert found is not None
    return found


def moved(status: dict[str, Any], what: str) -> tuple[int, int]:
    """(blocks, bytes) of one purpose and direction."""
    transfer = status["transfers"].get(what, {"blocks": 0, "bytes": 0})
    return transfer["blocks"], transfer["bytes"]


# of replicas whose engine can be asked itself: the number of what it has been told of chains
ENGINE_KNOWS: dict[Replica, Callable[[], int]] = {}


def until_told(replica: Replica) -> None:
    """Waits until the engine knows which chains its agent knows now: any other one is a miss for it. Of an engine that
    can't be asked, until it has been sent that."""
    engine_knows = ENGINE_KNOWS.get(replica)

    def told() -> bool:
        status = replica.status()
        directory = status["directory"]
        known = directory["heads_number"] if directory["head_filter"] else 0
        told = engine_knows() if engine_knows is not None else directory["heads_told"]
        return bool(status["attached"] and bool(told) is bool(known) and told >= known)

    wait_for(f"{replica.name}'s engine knows of the chains", told, 20)


def until_sees(replica: Replica, other: Replica) -> None:
    """Waits until it knows the other one as it is now, and its engine of what that holds."""

    def sees() -> bool:
        now = other.status()
        words = ("live", "incarnation", "format", "blocks")
        expected = (True, now["incarnation"], now["format"], now["arena"]["blocks"])
        return any(tuple(peer[word] for word in words) == expected for peer in replica.status()["peers"])

    wait_for(f"{replica.name} sees {other.name}", sees, 20)
    until_told(replica)


def sees_only(replica: Replica, *addresses: str) -> None:
    """Waits until these are the replica's live peers, and its engine knows of what they hold. One that is gone may stay
    known for a while, told by others."""
    wait_for(
        f"{replica.name} sees {addresses}",
        lambda: sorted(p["address"] for p in replica.status()["peers"] if p["live"]) == sorted(addresses),
        20,
    )
    until_told(replica)
