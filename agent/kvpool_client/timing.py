"""How long each request took to its first token, and what of it was kvpool's: what the agent weighs loads by.

Three moments of a request, told by the engine's adapter on its scheduler thread: it has arrived, it is in its first
step (with so many tokens of its prompt in the cache), it has its first token. One that made way for another meanwhile
says nothing of what its tokens cost, and is not told.

And how long the engine's steps take in which it only decodes, while kvpool moves blocks beside it and while it does
not: what a load or a store costs those that are being served. Steps are told apart by how many requests they serve, in
powers of two, since a larger one takes longer by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvpool_client.plan import Summary


@dataclass
class _Moments:
    arrived: float
    began: float = -1.0
    first: float = -1.0
    held: int = 0
    tokens: int = 0


class Timings:
    """Times in seconds of one monotonic clock. Of requests that it does not know nothing is kept."""

    def __init__(self, beside: Callable[[], str] = lambda: "") -> None:
        """beside: what kvpool does now, `load`, `store` or nothing."""
        self._requests: dict[str, _Moments] = {}
        self._on_device: dict[str, int] = {}
        self.beside = beside
        self._steps: dict[tuple[int, str], list[float]] = {}

    def decoded(self, requests: int, beside: str, seconds: float) -> None:
        """A step took so long in which each of these requests got a token and nothing else was computed."""
        counted = self._steps.setdefault((requests.bit_length(), beside), [0, 0.0])
        counted[0] += 1
        counted[1] += seconds

    def take_steps(self) -> list[list[int | str | float]]:
        """[power of two, beside, steps, seconds] of all steps since the last call."""
        steps, self._steps = self._steps, {}
        return [[size, beside, n, round(seconds, 6)] for (size, beside), (n, seconds) in steps.items()]

    def arrived(self, request: str, now: float) -> None:
        self._requests[request] = _Moments(now)

    def on_device(self, request: str, tokens: int) -> None:
        """When the request was first looked at, the engine's device held so many tokens of its prompt."""
        self._on_device.setdefault(request, tokens)

    def take_device(self, request: str) -> int:
        """The tokens that the device held; -1 where the engine's adapter has not said."""
        return self._on_device.pop(request, -1)

    def began(self, request: str, held: int, tokens: int, now: float) -> None:
        """The request is in its first step: of `tokens` of its prompt the cache has `held`."""
        moments = self._requests.get(request)
        if moments is not None and moments.began < 0:
            moments.began, moments.held, moments.tokens = now, held, tokens

    def first_token(self, request: str, now: float) -> None:
        moments = self._requests.get(request)
        if moments is not None and moments.began >= 0 and moments.first < 0:
            moments.first = now

    def drop(self, request: str) -> None:
        """The request was preempted."""
        moments = self._requests.get(request)
        if moments is not None and moments.first < 0:
            del self._requests[request]

    def finish(self, request: str, summary: Summary) -> dict[str, float | int]:
        """What is told of a request that has ended; empty where its first token was never seen."""
        moments = self._requests.pop(request, None)
        if moments is None or moments.first < 0:
            return {}
        waited = install = 0.0
        if summary.agent_seconds >= 0:
            waited = max(0.0, summary.settled - summary.opened)
            install = max(0.0, moments.began - summary.opened - summary.agent_seconds)
        seconds = {"first": moments.first - moments.arrived, "prefill": moments.first - moments.began,
                   "waited": waited, "install": install}  # fmt: skip
        return {
            **{name: round(value, 6) for name, value in seconds.items()},
            **({"tried": 1} if summary.tried else {}),
            "held": min(moments.held, moments.tokens),
            "tokens": moments.tokens,
        }
