"""Requests on every member's engine, all the time, each one compared byte for byte with what computing gives."""

import collections
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_pool import Node
from standin_engine import Served, prompt

ROW = 64 << 10
SHARED_PROMPTS = 20  # that all members are asked about; some are asked for far more often than others
REMEMBERED = 24  # of the prompts that come once
LEAST_BLOCKS, MOST_BLOCKS = 6, 20
AT_ONCE = 3
FORGET = 0.4  # share of the steps before which the host pool is emptied
ONCE, AGAIN = 0.3, 0.1  # shares of the requests: prompts that are new, and new ones of others
PAUSE_SECONDS = 0.15


def blocks_of(tokens: Sequence[int]) -> int:
    return (len(tokens) - 1) // 4


@dataclass
class Totals:
    """Of all members. Any thread may call `add`; `failures` are sentences."""

    requests: int = 0
    computed: int = 0
    host: int = 0
    loaded: int = 0
    wrong_requests: int = 0
    longest: float = 0.0
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, tokens: Sequence[int], served: Served, seconds: float) -> None:
        with self._lock:
            self.requests += 1
            self.computed += served.computed
            self.host += served.host
            self.loaded += served.pool
            self.longest = max(self.longest, seconds)
            self.wrong_requests += not served.equal
        if not served.equal or served.computed + served.host + served.pool != blocks_of(tokens):
            self.fail(f"{name}: {served} for a prompt of {blocks_of(tokens)} blocks")

    def fail(self, sentence: str) -> None:
        print(f"FAILURE: {sentence}", flush=True)
        with self._lock:
            self.failures.append(sentence)


class Prompts:
    """What is asked for: shared prompts by rank, and prompts that come once, of which the last are remembered."""

    def __init__(self, seed: str) -> None:
        draw = random.Random(f"{seed} prompts")
        self.shared = [prompt(f"{seed} {i}", draw.randint(LEAST_BLOCKS, MOST_BLOCKS)) for i in range(SHARED_PROMPTS)]
        self._weights = [1 / (i + 1) for i in range(SHARED_PROMPTS)]
        self._once: collections.deque[list[int]] = collections.deque(maxlen=REMEMBERED)
        self._seed = seed

    def draw(self, draw: random.Random) -> list[int]:
        kind = draw.random()
        if kind >= ONCE + AGAIN:
            return draw.choices(self.shared, self._weights)[0]
        if kind >= ONCE and self._once:
            return draw.choice(list(self._once.copy()))
        self._once.append(prompt(f"{self._seed} once {draw.random()}", draw.randint(LEAST_BLOCKS, MOST_BLOCKS)))
        return self._once[-1]

    def known(self) -> list[list[int]]:
        """Those that members may hold now."""
        return [*self.shared, *self._once.copy()]


class Traffic(threading.Thread):
    """One member's requests. Whoever holds `turn` has the engine for itself, between two requests."""

    def __init__(self, node: Node, prompts: Prompts, totals: Totals, draw: random.Random) -> None:
        super().__init__(name=f"traffic-{node.replica.name}", daemon=True)
        self.node, self.turn = node, threading.Lock()
        self._prompts, self._totals, self._draw = prompts, totals, draw
        self._ended = threading.Event()

    def run(self) -> None:
        name = self.node.replica.name
        try:
            while not self._ended.wait(self._draw.uniform(0, 2 * PAUSE_SECONDS)):
                with self.turn:
                    self._some_requests(name)
        except BaseException as error:  # noqa: BLE001 - a hang or a crash of the client, told at the end
            self._totals.fail(f"{name}: {type(error).__name__}: {error}")

    def _some_requests(self, name: str) -> None:
        if self._draw.random() < FORGET:
            self.node.engine.forget()
        drawn = [self._prompts.draw(self._draw) for _ in range(self._draw.randint(1, AT_ONCE))]
        prompts = [list(tokens) for tokens in dict.fromkeys(map(tuple, drawn))]
        began = time.monotonic()
        for tokens, served in zip(prompts, self.node.engine.serve_together(prompts), strict=True):
            self._totals.add(name, tokens, served, time.monotonic() - began)

    def end(self) -> None:
        self._ended.set()
        self.join(90)
        if self.is_alive():
            self._totals.fail(f"{self.node.replica.name}: a request has hung for 90 s")
