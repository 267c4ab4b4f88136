"""One plan per request: what the tier answers the engine's scheduler, block by block.

The engine asks block by block and asks again every step. The whole chain goes to the agent once, at the end of the
step in which a request is first asked for; until its plan is there the answer is RETRY for the first block asked in
a step and MISS for the rest, which ends the engine's scan at once (a RETRY for each of 62 blocks cost 99,000 calls
in half a second, facts of a real run). A (request, block) is answered HIT once: asked again, its promotion has
failed, and only MISS keeps the request from looping. All of this runs on the scheduler thread alone.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


class Answer(enum.Enum):
    HIT = "hit"
    MISS = "miss"
    RETRY = "retry"


@dataclass
class Plan:
    """The state of one request. `chain`: keys in order; `start`: index of the first block the engine asked for,
    since it holds those before; `hits`: what the agent says lies ready; None until it has answered."""

    request: str
    number: int
    chain: Sequence[bytes]
    start: int
    deadline: float
    hits: frozenset[bytes] | None = None
    answered: set[bytes] = field(default_factory=set)
    retried_in: int = -1


@dataclass(frozen=True)
class Summary:
    """A finished request, for the agent's account: blocks of its prompt, index of the first block asked for (-1:
    none, the engine held them all), blocks that were loaded, blocks that lay ready and found no room."""

    request: str
    prompt_blocks: int
    asked: int
    loaded_blocks: int
    blocks_without_room: int


class Plans:
    """Plans of the requests that the engine has now."""

    def __init__(self, load_deadline: float) -> None:
        """load_deadline: seconds from a request's first lookup to MISS."""
        self.load_deadline = load_deadline
        self._requests: dict[str, Plan | None] = {}
        self._chains: dict[str, Callable[[], Sequence[bytes]]] = {}
        self._prompt_blocks: dict[str, int] = {}
        self._loaded_blocks: dict[str, int] = {}
        self._without_room: dict[str, int] = {}
        self._first_asked: dict[str, int] = {}
        self._by_number: dict[int, Plan] = {}
        self._unsent: list[Plan] = []
        self._number = 0
        self._step = 0
        self._agent_silent = False
        self.hits_this_step = 0

    def begin(self, request: str, chain: Callable[[], Sequence[bytes]]) -> None:
        """A request that the engine has taken in; `chain` gives its keys in order, as far as they are known."""
        self._requests[request] = None
        self._chains[request] = chain

    def scheduled(self, request: str) -> None:
        """The engine starts to compute a request: its keys are those of its prompt now, none decoded yet."""
        if request in self._requests:
            self._prompt_blocks.setdefault(request, len(self._chains[request]()))

    def decline(self, request: str, key: bytes) -> Answer:
        """A block that is asked for while there is nobody to ask: a miss, and the account knows that it was one."""
        if request in self._requests and request not in self._first_asked:
            chain = self._chains[request]()
            self._first_asked[request] = chain.index(key) if key in chain else 0
            self._prompt_blocks.setdefault(request, len(chain))
        return Answer.MISS

    def lookup(self, request: str, key: bytes, now: float, room: bool) -> Answer:
        """The answer for one block. room: whether the host pool may take another promotion."""
        plan = self._requests.get(request)
        if plan is None:
            if request not in self._requests:
                return Answer.MISS
            plan = self._open(request, key, self._chains[request](), now)
            if plan is None:
                return Answer.MISS
        if plan.hits is None:
            if now >= plan.deadline:
                # an agent that lets a deadline pass without a word costs one request that wait, not every one
                self._agent_silent = True
            if self._agent_silent:
                plan.hits = frozenset()
                return Answer.MISS
            if plan.retried_in == self._step:
                return Answer.MISS
            plan.retried_in = self._step
            return Answer.RETRY
        if key not in plan.hits or key in plan.answered:
            return Answer.MISS
        plan.answered.add(key)
        if not room:
            self._without_room[request] = self._without_room.get(request, 0) + 1
            return Answer.MISS
        self.hits_this_step += 1
        return Answer.HIT

    def _open(self, request: str, key: bytes, chain: Sequence[bytes], now: float) -> Plan | None:
        try:
            start = chain.index(key)
        except ValueError:
            return None
        self._number += 1
        plan = Plan(request, self._number, chain, start, now + self.load_deadline)
        self._requests[request] = plan
        self._by_number[plan.number] = plan
        self._first_asked.setdefault(request, start)
        self._prompt_blocks.setdefault(request, len(chain))
        self._unsent.append(plan)
        return plan

    def number_of(self, request: str) -> int:
        """The number of a request's plan, 0 when it has none."""
        plan = self._requests.get(request)
        return plan.number if plan is not None else 0

    def answer(self, number: int, hits: Iterable[int]) -> None:
        """The agent's plan: indexes into the chain of the blocks that lie ready. Late ones are dropped."""
        self._agent_silent = False
        plan = self._by_number.pop(number, None)
        if plan is not None and plan.hits is None:
            plan.hits = frozenset(plan.chain[i] for i in hits if plan.start <= i < len(plan.chain))

    def loaded(self, request: str, blocks: int) -> None:
        """So many blocks that were answered HIT have come."""
        if request in self._requests:
            self._loaded_blocks[request] = self._loaded_blocks.get(request, 0) + blocks

    def drop(self, request: str) -> None:
        """A preempted request: its next lookup makes a new plan."""
        plan = self._requests.get(request)
        if plan is not None:
            self._by_number.pop(plan.number, None)
            self._requests[request] = None

    def fail_open(self) -> None:
        """The session is lost: every plan without an answer, or not yet used, is empty now."""
        self._agent_silent = False
        for plan in self._requests.values():
            if plan is not None:
                plan.hits = frozenset()
        self._by_number.clear()
        self._unsent.clear()

    def end_step(self) -> list[Plan]:
        """Ends the scheduler's step; returns the plans to ask the agent for."""
        self._step += 1
        self.hits_this_step = 0
        unsent, self._unsent = self._unsent, []
        return [plan for plan in unsent if plan.number in self._by_number]

    def finish(self, request: str) -> Summary:
        """Forgets a request."""
        self._chains.pop(request, None)
        plan = self._requests.pop(request, None)
        if plan is not None:
            self._by_number.pop(plan.number, None)
        return Summary(
            request,
            self._prompt_blocks.pop(request, 0),
            self._first_asked.pop(request, -1),
            self._loaded_blocks.pop(request, 0),
            self._without_room.pop(request, 0),
        )
