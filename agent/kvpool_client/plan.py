"""A request's plan as it stands, and what is told of a request when it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BEYOND = 1 << 62  # every block of every prompt


@dataclass(eq=False)
class Plan:
    """The state of one plan. `keys`: of all groups, group after group; `lacks`: indexes into them of the blocks that
    the engine lacks; `begins`: the first of them, in blocks of the reference group; `hits`: what the agent says lies
    ready; None until it has answered. `again`: the agent was asked for one of this request before, and has counted
    what was missed."""

    request: str
    number: int
    keys: Sequence[bytes]
    deadline: float
    first: bool
    again: bool = False
    sent: bool = False
    opened: float = 0.0
    seconds: float = -1.0  # that the agent says it took; -1: it has said nothing in time
    tried: bool = False  # it says that it was to bring blocks
    settled: float = 0.0  # when its answer was taken over
    begins: int = -1
    lacks: set[int] = field(default_factory=set)
    hits: frozenset[bytes] | None = None
    promised: frozenset[bytes] = frozenset()  # of the agent's answer, whatever has become of it
    answered: bool = False
    late: bool = False  # the answer came when it was not waited for any more
    refused: bool = False  # there was no place for it in the queue to the agent
    taken_up: bool = False
    given: set[bytes] = field(default_factory=set)  # answered HIT
    asked_for: set[bytes] = field(default_factory=set)  # of those, by a load
    came: set[bytes] = field(default_factory=set)
    no_room_at: int = BEYOND  # the first block of the prompt that found no room
    lost_at: int = BEYOND  # the first one that was given and is lacked again
    retried: dict[int, bytes] = field(default_factory=dict)  # by group's number, in this step

    def keep(self, indexes: Sequence[int]) -> None:
        """From now on the plan is of these of its keys alone."""
        self.keys = [self.keys[i] for i in indexes]
        self.lacks = {new for new, old in enumerate(indexes) if old in self.lacks}

    def runs(self) -> list[list[int]]:
        """`lacks` as runs, each from its first index to the one after its last."""
        runs: list[list[int]] = []
        for i in sorted(self.lacks):
            if runs and runs[-1][1] == i:
                runs[-1][1] = i + 1
            else:
                runs.append([i, i + 1])
        return runs


# a request's keys by group, in the groups' order, each in the order of the prompt
Chains = Callable[[], Sequence[Sequence[bytes]]]


@dataclass
class Request:
    """A request that the engine has now, with its plans."""

    chains: Chains
    plan: Plan | None = None
    dropped: list[Plan] = field(default_factory=list)  # those before it, whose loads may end yet
    places: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)  # key: group's place, block, flat index
    keys: list[bytes] = field(default_factory=list)
    prompt_blocks: int | None = None
    started: bool = False
    ruled_out: bool = False  # by the last answer
    ruled_out_now: bool = False  # in this step
    missed: bool = False  # it was ruled out before its first plan, and computed: what comes later changes nothing
    asked: int = -1
    loaded_blocks: int = 0
    blocks_without_room: int = 0
    lost_blocks: int = 0
    late_blocks: int = 0

    @property
    def plans(self) -> list[Plan]:
        return [*self.dropped, *([self.plan] if self.plan is not None else [])]

    @property
    def lacking(self) -> int:
        """Blocks of the prompt from the first that the engine lacked on."""
        return (self.prompt_blocks or 0) - self.asked if self.asked >= 0 else 0

    @property
    def was_unknown(self) -> bool:
        """Whether it was ruled out, and computed for that."""
        return self.missed or (self.ruled_out and not self.dropped)

    @property
    def refused(self) -> bool:
        return any(plan.refused for plan in self.plans)

    @property
    def found_nobody(self) -> bool:
        """Whether it was asked for, and nobody was asked in turn; of one that ended before that nothing is said."""
        return not self.was_unknown and all(not plan.sent and plan.hits is not None for plan in self.plans)


@dataclass(frozen=True)
class Summary:
    """A finished request, for the agent's account, in blocks of the reference group: blocks of its prompt, index of
    the first block that the engine lacked (-1: none, it was never asked); and of those that the agent has promised,
    which of three things became of each: loaded, no room, failed to load or evicted before its use. unknown_blocks: of
    a prompt that was ruled out, those that the engine lacked. late_blocks: promised when they were not waited for any
    more. unasked_blocks: of a prompt about which there was nobody to ask, those that the engine lacked; unsent_blocks:
    likewise, of one whose question found no place in the queue to the agent. Of the only plan of a request that was
    answered in time: when it was opened, when its answer was taken over, the seconds that the agent took, and whether
    it was to bring blocks; -1 where there is none."""

    request: str
    prompt_blocks: int
    asked: int
    loaded_blocks: int
    blocks_without_room: int
    lost_blocks: int
    unknown_blocks: int = 0
    late_blocks: int = 0
    unasked_blocks: int = 0
    unsent_blocks: int = 0
    opened: float = -1.0
    settled: float = -1.0
    agent_seconds: float = -1.0
    tried: bool = False

    @property
    def whole(self) -> bool:
        """Whether all that was promised was loaded."""
        return self.loaded_blocks > 0 and not (self.blocks_without_room or self.lost_blocks or self.late_blocks)
