"""One plan per request: what the tier answers the engine's scheduler, block by block.

The engine asks block by block, group by group, and asks again every step. The chains of all groups go to the agent
once, at the end of the step in which a request is first asked for. Until its plan is there the answer is, in each step,
RETRY for the first block asked of each group and MISS for the rest of that group: a group that is answered MISS alone
ends the whole lookup, and a RETRY for each of 62 blocks cost 99,000 calls in half a second (facts of real runs). The
engine may begin a group anew within a step, so the block that was answered RETRY is answered so again.

A group with full attention is asked from the first block that the engine lacks to the first miss. A window group is
asked from its end, and while it is answered MISS the engine goes on to the beginning: so what it asks in the first
step is what it lacks. A state is asked for likewise, and never where the prompt ends with its block: so the first that
is asked is the last at which the engine goes on, and the agent is told of none beyond it. A (request, block) is
answered HIT once: asked again, its promotion has failed, and only MISS keeps the request from looping. All of this runs
on the scheduler thread alone.

Every block that was promised is accounted for when its request ends: it was loaded, found no room, or was lost. What
was answered HIT and is in no load at the end of the step has been refused by the engine's host pool. What the engine
never asked for and went on beyond, another request has brought into the host pool meanwhile.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from kvpool_client.groups import FULL, STATE, Group, number_of, reference
from kvpool_client.plan import BEYOND, Chains, Plan, Request, Summary


class Answer(enum.Enum):
    HIT = "hit"
    MISS = "miss"
    RETRY = "retry"


class Plans:
    """Plans of the requests that the engine has now."""

    def __init__(
        self,
        groups: Sequence[Group],
        load_deadline: float,
        rule_out: Callable[[bytes, float], bool] = lambda _key, _now: False,
    ) -> None:
        """load_deadline: seconds from a request's first lookup to MISS. rule_out: whether it is known, without asking,
        that nobody holds a chain that begins with this block."""
        self._rule_out = rule_out
        self.load_deadline = load_deadline
        self._groups = groups
        self._reference = reference(groups)
        # a full-attention chain that is cut anywhere is worth its beginning; with a window a boundary is all or nothing
        self._divisible = len(groups) == 1 and groups[0].kind == FULL
        self._requests: dict[str, Request] = {}
        self._by_number: dict[int, Plan] = {}
        self._unsent: list[Plan] = []
        self._number = 0
        self._stepped: list[Plan] = []  # those with a RETRY in this step
        self._giving: list[Plan] = []  # those with a HIT in this step
        self._ruled_out: list[Request] = []  # in this step
        self._agent_silent = False
        self.hits_this_step = 0

    @property
    def waiting(self) -> bool:
        """Whether the agent has been asked and has not answered."""
        return bool(self._by_number)

    def begin(self, request: str, chains: Chains) -> None:
        """A request that the engine has taken in; `chains` gives its keys, as far as they are known."""
        self._requests[request] = Request(chains)

    def scheduled(self, request: str) -> None:
        """The engine starts to compute a request: its keys are those of its prompt now, none decoded yet."""
        entry = self._requests.get(request)
        if entry is not None and not entry.started:
            entry.started = True
            if entry.prompt_blocks is None:
                entry.prompt_blocks = len(entry.chains()[self._reference])

    def decline(self, request: str, key: bytes) -> Answer:
        """A block that is asked for while there is nobody to ask: a miss, and the account knows that it was one."""
        entry = self._requests.get(request)
        if entry is not None and entry.plan is None:
            entry.ruled_out = False
            if not entry.places:
                self._know_keys(entry)
            if key in entry.places:
                self._lacking(entry, key)
        return Answer.MISS

    def _unknown(self, entry: Request, key: bytes, now: float) -> bool:
        """Whether the prompt can't be known: the engine lacks its first block, and nobody holds that one. Asked again
        in a later step, as of a request that waits, it may be known by then."""
        if entry.ruled_out_now:
            return True
        if not entry.places:
            self._know_keys(entry)
        place, block, _ = entry.places.get(key, (0, BEYOND, 0))
        if block or place != self._reference or self._groups[place].kind != FULL or not self._rule_out(key, now):
            return False
        entry.ruled_out = entry.ruled_out_now = True
        self._ruled_out.append(entry)
        self._lacking(entry, key)
        return True

    def lookup(self, request: str, key: bytes, now: float, room: int) -> Answer:
        """The answer for one block. room: rows of the host pool that promotions may still take."""
        entry = self._requests.get(request)
        if entry is None:
            return Answer.MISS
        if entry.plan is None:
            known = bool(entry.places)
            if self._unknown(entry, key, now):
                return Answer.MISS
            if known:
                self._know_keys(entry)  # there may be more of them by now
            self._open(entry, request, now)
        plan = entry.plan
        if plan is None or key not in entry.places:
            return Answer.MISS
        if plan.hits is None:
            return self._wait(entry, plan, key, now)
        if not plan.taken_up:
            plan.taken_up = True
            if not self._divisible and len(plan.hits) > room:
                self._without_room(plan, 0)
        if key in plan.given:
            # its load has failed, or its row was given away before its use: it is computed, and what comes after it
            plan.lost_at = min(plan.lost_at, entry.places[key][1])
            return Answer.MISS
        if key not in plan.hits:
            return Answer.MISS
        if self._divisible and room <= 0:
            self._without_room(plan, entry.places[key][1])
            return Answer.MISS
        plan.given.add(key)
        self._giving.append(plan)
        self.hits_this_step += 1
        return Answer.HIT

    @staticmethod
    def _without_room(plan: Plan, block: int) -> None:
        """From this block of the prompt on nothing is loaded; what was not given yet will not be."""
        plan.no_room_at = min(plan.no_room_at, block)
        plan.hits = frozenset(plan.given)

    def loading(self, request: str, keys: Iterable[bytes]) -> None:
        """The engine has found room for these blocks, and loads them."""
        entry = self._requests.get(request)
        if entry is not None and entry.plan is not None:
            entry.plan.asked_for.update(keys)

    def _see_refused(self) -> None:
        """What was answered HIT in this step and is not being loaded now found no row in the engine's host pool."""
        for plan in {id(plan): plan for plan in self._giving}.values():
            entry = self._requests.get(plan.request)
            if entry is not None and entry.plan is plan:
                refused = [entry.places[key][1] for key in plan.given - plan.asked_for]
                if refused:
                    self._without_room(plan, min(refused) if self._divisible else 0)
        self._giving.clear()

    def _wait(self, entry: Request, plan: Plan, key: bytes, now: float) -> Answer:
        if now >= plan.deadline:
            # an agent that lets a deadline pass without a word costs one request that wait, not every one
            self._agent_silent = True
        if not plan.sent:
            self._lacking(entry, key, plan)
        if self._agent_silent:
            plan.hits = frozenset()
            return Answer.MISS
        group = number_of(key)
        if not plan.retried:
            self._stepped.append(plan)
        return Answer.RETRY if plan.retried.setdefault(group, key) == key else Answer.MISS

    def _open(self, entry: Request, request: str, now: float) -> None:
        if not entry.keys:
            return
        if not entry.dropped and not entry.missed:
            entry.asked = -1  # whatever it was before there was anybody to ask, or anything to ask for
        entry.ruled_out = False
        self._number += 1
        entry.plan = plan = Plan(request, self._number, entry.keys, now + self.load_deadline, entry.asked < 0)
        plan.opened = now
        plan.again = entry.missed or any(before.sent for before in entry.dropped)
        self._by_number[plan.number] = plan
        self._unsent.append(plan)

    def _know_keys(self, entry: Request) -> None:
        entry.keys = []
        entry.places = {}
        for place, chain in enumerate(entry.chains()):
            for block, key in enumerate(chain):
                entry.places[key] = (place, block, len(entry.keys))
                entry.keys.append(key)
        if entry.prompt_blocks is None:
            entry.prompt_blocks = sum(place == self._reference for place, _, _ in entry.places.values())

    def _lacking(self, entry: Request, key: bytes, plan: Plan | None = None) -> None:
        """The engine has asked for a block: it lacks it, and in a full-attention group all after it."""
        place, block, index = entry.places[key]
        group = self._groups[place]
        begins = block * group.block_tokens // self._groups[self._reference].block_tokens
        if plan is None or plan.first:
            entry.asked = begins if entry.asked < 0 else min(entry.asked, begins)
        if plan is None or index in plan.lacks:
            return
        plan.begins = begins if plan.begins < 0 else min(plan.begins, begins)
        plan.lacks.add(index)
        if group.kind == FULL:
            for later in range(index + 1, len(entry.keys)):
                if entry.places[entry.keys[later]][0] != place:
                    break
                plan.lacks.add(later)

    def _covered(self, entry: Request, keys: Collection[bytes], begins: int) -> int:
        """How many blocks of the reference group, from the first that the engine lacked, these blocks stand for: with
        a window a few of them stand for the whole prefix."""
        if self._divisible:
            return len(keys)
        ends = ((b + 1) * self._groups[place].block_tokens for place, b, _ in self._found(entry, keys))
        size = self._groups[self._reference].block_tokens
        return max(0, -(-max(ends, default=0) // size) - max(0, begins))

    def _found(self, entry: Request, keys: Iterable[bytes]) -> Iterator[tuple[int, int, int]]:
        return (entry.places[key] for key in keys if key in entry.places)

    def number_of(self, request: str) -> int:
        """The number of a request's plan, 0 when it has none."""
        entry = self._requests.get(request)
        return entry.plan.number if entry is not None and entry.plan is not None else 0

    def request_of(self, number: int) -> str:
        """The request that waits for a plan; empty where none does."""
        plan = self._by_number.get(number)
        return plan.request if plan is not None else ""

    def answer(
        self, number: int, hits: Iterable[int], seconds: float = -1.0, tried: bool = False, now: float = 0.0
    ) -> None:
        """The agent's plan: indexes into the keys of the blocks that lie ready, the seconds that it took for them (-1:
        it does not say), and whether it was to bring some. Late ones are dropped."""
        self._agent_silent = False
        plan = self._by_number.pop(number, None)
        if plan is None:
            return
        plan.promised = frozenset(plan.keys[i] for i in hits if i in plan.lacks)
        plan.answered, plan.late = True, plan.hits is not None
        if plan.hits is None:
            plan.hits, plan.seconds, plan.tried, plan.settled = plan.promised, seconds, tried, now

    def unsent(self, number: int) -> None:
        """There was no place for this plan in the queue to the agent."""
        plan = self._by_number.pop(number, None)
        if plan is not None:
            plan.hits, plan.sent, plan.refused = frozenset(), False, True

    def loaded(self, request: str, done: Collection[bytes]) -> None:
        """These of the blocks that were answered HIT have come."""
        entry = self._requests.get(request)
        for plan in entry.plans if entry is not None else ():
            plan.came.update(plan.asked_for.intersection(done))

    def drop(self, request: str) -> None:
        """A preempted request: its next lookup makes a new plan."""
        entry = self._requests.get(request)
        if entry is None:
            return
        if entry.plan is not None:
            self._by_number.pop(entry.plan.number, None)
            entry.dropped.append(entry.plan)
            entry.plan = None
        elif entry.ruled_out and not entry.dropped:
            entry.missed = True

    def _settle(self, entry: Request) -> None:
        """What became of the blocks that were promised; of one that was promised again, the last time."""
        again: set[bytes] = set()
        first = entry.plans[0].promised if self._divisible and entry.plans and entry.plans[0].answered else None
        if entry.missed:
            first = frozenset()
        for plan in reversed(entry.plans):
            self._by_number.pop(plan.number, None)
            if first is not None:
                plan.promised &= first  # what has come since was counted as missed
            if again:
                plan.promised = plan.promised - again if self._divisible else frozenset()
            again |= plan.promised
            self._account(entry, plan)

    def _account(self, entry: Request, plan: Plan) -> None:
        """Each block that was promised is one that was loaded, found no room, or was lost."""
        promised = self._covered(entry, plan.promised, plan.begins)
        if self._divisible:
            at = {key: entry.places[key][1] for key in plan.promised}
            refused = sum(block >= plan.no_room_at for block in at.values())
            good = min(plan.no_room_at, plan.lost_at)
            loaded = sum(block < good and self._has_come(entry, plan, key) for key, block in at.items())
        else:
            refused = promised if plan.no_room_at < BEYOND else 0
            whole = not refused and plan.lost_at == BEYOND
            loaded = promised if whole and all(self._has_come(entry, plan, key) for key in plan.promised) else 0
        entry.blocks_without_room += refused
        entry.loaded_blocks += loaded
        if plan.late:
            entry.late_blocks += promised - refused - loaded
        else:
            entry.lost_blocks += promised - refused - loaded

    @staticmethod
    def _has_come(entry: Request, plan: Plan, key: bytes) -> bool:
        """Whether the engine had a promised block when it began to compute."""
        return key in plan.came or (entry.started and key not in plan.given and not plan.late)

    def fail_open(self) -> None:
        """The session is lost: every plan without an answer, or not yet used, is empty now."""
        self._agent_silent = False
        for entry in self._requests.values():
            if entry.plan is not None:
                entry.plan.hits = frozenset()
                entry.plan.promised &= entry.plan.given  # who has promised the rest is gone, and counts it no more
        self._by_number.clear()
        self._unsent.clear()

    def end_step(self) -> list[Plan]:
        """Ends the scheduler's step; returns the plans to ask the agent for."""
        for plan in self._stepped:
            plan.retried.clear()
        self._stepped.clear()
        for entry in self._ruled_out:
            entry.ruled_out_now = False
        self._ruled_out.clear()
        self._see_refused()
        self.hits_this_step = 0
        unsent, self._unsent = self._unsent, []
        for plan in unsent:
            self._end_at_states(plan)
            plan.sent = True
        return [plan for plan in unsent if plan.number in self._by_number]

    def _end_at_states(self, plan: Plan) -> None:
        """Takes the states beyond the first that was asked for out of the plan."""
        entry = self._requests.get(plan.request)
        if entry is None:
            return
        last: dict[int, int] = {}  # by group's place: the last index that the engine lacks
        for index in plan.lacks:
            place = entry.places[plan.keys[index]][0]
            if self._groups[place].kind == STATE:
                last[place] = max(last.get(place, 0), index)
        if last:
            places = (entry.places[key][0] for key in plan.keys)
            plan.keep([i for i, place in enumerate(places) if i <= last.get(place, i)])

    def finish(self, request: str) -> Summary:
        """Forgets a request."""
        entry = self._requests.pop(request, None)
        if entry is None:
            return Summary(request, 0, -1, 0, 0, 0)
        self._settle(entry)
        only = entry.plans[0] if len(entry.plans) == 1 and entry.plans[0].seconds >= 0 else None
        return Summary(
            request,
            entry.prompt_blocks or 0,
            entry.asked,
            entry.loaded_blocks,
            entry.blocks_without_room,
            entry.lost_blocks,
            entry.lacking if entry.was_unknown else 0,
            entry.late_blocks,
            entry.lacking if entry.found_nobody and not entry.refused else 0,
            entry.lacking if entry.found_nobody and entry.refused else 0,
            *((only.opened, only.settled, only.seconds, only.tried) if only is not None else ()),
        )
