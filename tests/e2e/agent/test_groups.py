"""Models with several KV groups: one plan over all of them, what its boundary needs and no more, or nothing at all.

And what a small host pool and preemption do to plans. In each test the blocks that the engine computed after it had
asked are the misses, one reason each. Two agents serve all tests; each test has engines and prompts of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest
from agent_pool import AgentPool, Node
from standin_engine import BLOCK_TOKENS, FULL_ATTENTION, HYBRID, RECURRENT, Served, engine_keys, prompt

from kvpool_client.groups import WINDOW, Group
from kvpool_contract.status import AgentStatus, Transfer

ROW = 4096
BLOCKS = 10
WINDOW_BLOCKS = 3  # that each of the two windows reaches into
ALL_ROWS = BLOCKS + 2 * WINDOW_BLOCKS  # what the boundary of the whole prompt takes
ROWS = {FULL_ATTENTION: BLOCKS, HYBRID: ALL_ROWS, RECURRENT: BLOCKS + 1}
MODELS = pytest.mark.parametrize("groups", ROWS, ids=["full attention", "hybrid", "states"])


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    made = AgentPool(tmp_path_factory.mktemp("groups"), patient=True, arenaBytes=32 << 20)
    nodes = made.all_started("ab")
    for node in nodes:
        node.attach()
    for one, other in (nodes, nodes[::-1]):
        one.until_sees(other)
    yield nodes
    made.stop()


@dataclass
class Side:
    """A node, and what its agent counts from the beginning of a test."""

    node: Node
    before: AgentStatus

    def came(self) -> tuple[int, int]:
        """(blocks, bytes) that the other member has sent."""
        nothing = Transfer(0, 0)
        now, then = (one.transfers.get("demand_in", nothing) for one in (self.node.status(), self.before))
        return now.blocks - then.blocks, now.bytes - then.bytes

    def misses(self) -> dict[str, int]:
        counted = {reason: n - self.before.misses.get(reason, 0) for reason, n in self.node.status().misses.items()}
        return {reason: n for reason, n in counted.items() if n}

    def hits(self) -> tuple[int, int, int]:
        """(computed, local, shared) blocks."""
        now, then = self.node.status().hits, self.before.hits
        return (
            now.computed_blocks - then.computed_blocks,
            now.local_blocks - then.local_blocks,
            now.shared_blocks - then.shared_blocks,
        )

    def until(self, what: str, holds: Callable[["Side"], bool]) -> "Side":
        self.node.until(what, lambda _: holds(self))
        return self

    def until_stored(self, blocks: int) -> "Side":
        return self.until("stored", lambda _: self.node.status().arena.blocks - self.before.arena.blocks == blocks)


@pytest.fixture
def attach(agents: list[Node]) -> Iterator[Callable[..., list[Side]]]:
    """Gives both agents an engine with these groups; `rows`: those of the second one's host pool."""

    def attach(groups: tuple[Group, ...], rows: int = 256, **options: object) -> list[Side]:
        for node, size in zip(agents, (256, rows), strict=True):
            node.attach(groups=groups, rows=size, **options)
        return [Side(node, node.status()) for node in agents]

    yield attach
    for node in agents:
        node.engines.pop().close()


def test_all_groups_of_a_prompt_are_stored_and_what_its_boundary_needs_is_loaded(
    attach: Callable[..., list[Side]],
) -> None:
    a, b = attach(HYBRID)
    long, longer = prompt("shared", BLOCKS), prompt("shared", BLOCKS + 4)
    assert a.node.engine.serve(long) == Served(computed=BLOCKS, rows=0)
    a.until_stored(3 * BLOCKS)
    assert b.node.until_knows(long).engine.serve(long) == Served(pool=BLOCKS, rows=ALL_ROWS)
    assert (b.node.engine.promoted, b.came()) == (ALL_ROWS, (ALL_ROWS, ALL_ROWS * ROW))
    # its own arena serves it again, and the beginning of what is longer
    b.node.engine.forget()
    assert b.node.engine.serve(long) == Served(pool=BLOCKS, rows=ALL_ROWS)
    assert b.node.engine.serve(longer) == Served(host=BLOCKS, computed=4, rows=0)
    b.until_stored(ALL_ROWS + 3 * 4)
    assert b.came() == (ALL_ROWS, ALL_ROWS * ROW)
    # the other one lacks 4 blocks, and of their windows no others
    assert a.node.engine.serve(longer) == Served(host=BLOCKS, pool=4, rows=4 + 2 * WINDOW_BLOCKS)
    b.until("three requests", lambda side: side.hits() == (4, 0, 3 * BLOCKS))
    assert b.misses() == {"never_published": 4}


@pytest.mark.parametrize(
    ("missing", "boundary"),
    [
        pytest.param([BLOCKS - 1], BLOCKS - 1, id="the last"),
        pytest.param([0, 1, 2, 3, 4, 5, 6], BLOCKS, id="all but what the last boundary needs"),
        pytest.param([0, 3, 6, 9], 0, id="one of each window"),
        pytest.param(range(BLOCKS), 0, id="all"),
    ],
)
@pytest.mark.parametrize("at", ["peer", "here"])
def test_blocks_of_one_window_that_are_nowhere_shorten_the_boundary_and_nothing_moves_in_vain(
    attach: Callable[..., list[Side]], at: str, missing: Iterable[int], boundary: int
) -> None:
    a, b = attach(HYBRID)
    tokens = prompt(f"{at} {missing}", BLOCKS)
    keys = engine_keys(tokens, HYBRID[2])
    a.node.engine.withheld = {keys[i] for i in missing}
    a.node.engine.serve(tokens)
    a.until_stored(3 * BLOCKS - len(a.node.engine.withheld))
    a.node.engine.forget()
    asker = b if at == "peer" else Side(a.node, a.node.status())
    rows = boundary + 2 * min(boundary, WINDOW_BLOCKS)
    assert asker.node.until_knows(tokens).engine.serve(tokens) == Served(
        pool=boundary, computed=BLOCKS - boundary, rows=rows
    )
    assert asker.node.engine.promoted == rows
    assert asker.came() == ((rows, rows * ROW) if at == "peer" else (0, 0))
    assert asker.misses() == ({"window_missing": BLOCKS - boundary} if boundary < BLOCKS else {})


def test_windows_alone_are_shared_too(attach: Callable[..., list[Side]]) -> None:
    a, b = attach(HYBRID[:1])
    tokens = prompt("windows", BLOCKS)
    a.node.engine.serve(tokens)
    a.until_stored(BLOCKS)
    assert b.node.until_knows(tokens).engine.serve(tokens).computed == 0
    assert b.came() == (WINDOW_BLOCKS, WINDOW_BLOCKS * ROW)
    b.until("heard of it", lambda side: side.hits() == (0, 0, BLOCKS))
    assert b.misses() == {}


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (Group(1, "ChunkedLocalAttentionSpec", 1, 4), "groups_unsupported"),
        (Group(1, WINDOW, 1, 4, draft=True), "draft_missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_groups_that_no_plan_is_made_for_attach_and_share_nothing(shared_node: Node, group: Group, reason: str) -> None:
    shared_node.attach(groups=(*FULL_ATTENTION, group), model=reason)
    side = Side(shared_node, shared_node.status())
    try:
        assert shared_node.engine.serve(prompt("p", 5)).computed == 5
        assert shared_node.engine.serve(prompt("p", 5)).computed == 0
        status = shared_node.until_state("Ready(degraded)", reason)
        assert (status.arena.blocks, status.transfers) == (0, {})
        side.until("counted", lambda side: side.misses() == {reason: 5})
    finally:
        shared_node.close_engines()
        shared_node.until("gone", lambda s: not s.attached)


# -- the directory -----------------------------------------------------------------------------------


@MODELS
def test_of_a_model_with_several_groups_no_home_is_told_anything_and_its_holders_are_asked(
    pool: AgentPool, groups: tuple[Group, ...]
) -> None:
    a, b = pool.all_started("ab")
    for node in (a, b):
        node.attach(groups=groups)
    a.until_sees(b)
    a.engine.serve(prompt("p", 4))
    b.until_sees(a.until_blocks(4 * len(groups)) and a)
    told = 4 if groups is FULL_ATTENTION else 0
    a.until("told", lambda status: status.counters.get("announced_blocks", 0) == told)
    assert b.engine.serve(prompt("p", 4)).pool == 4
    assert a.status().counters.get("announced_blocks", 0) == told


# -- a small host pool -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "rows", "boundary"),
    [
        pytest.param(FULL_ATTENTION, 15, 8, id="full attention"),  # 1.5 requests, of which promotions get half
        pytest.param(HYBRID, 24, 6, id="hybrid"),  # 6 blocks and 3 of each window
        pytest.param(RECURRENT, 16, 7, id="states"),  # 7 blocks and a state
    ],
)
def test_promotions_take_half_of_a_small_host_pool_and_the_rest_is_not_even_moved(
    attach: Callable[..., list[Side]], groups: tuple[Group, ...], rows: int, boundary: int
) -> None:
    a, b = attach(groups, rows)
    tokens = prompt(f"small {rows}", BLOCKS)
    a.node.engine.serve(tokens)
    a.until_stored(len(groups) * BLOCKS)
    served = b.node.until_knows(tokens).engine.serve(tokens)
    assert (served.pool, served.computed, served.equal) == (boundary, BLOCKS - boundary, True)
    assert b.node.engine.promoted == (rows + 1) // 2
    assert b.came() == ((rows + 1) // 2, (rows + 1) // 2 * ROW)
    assert b.misses() == {"no_room": BLOCKS - boundary}


@MODELS
def test_many_requests_at_once_in_a_small_host_pool_all_end_with_right_bytes_and_counted(
    attach: Callable[..., list[Side]], groups: tuple[Group, ...]
) -> None:
    a, b = attach(groups, rows=len(groups) * BLOCKS * 3 // 2)
    prompts = [prompt(f"many {len(groups)} {i}", BLOCKS) for i in range(6)]
    for one in prompts:
        a.node.engine.serve(one)
    a.until_stored(6 * len(groups) * BLOCKS)
    served = b.node.until_knows(*prompts).engine.serve_together(prompts)
    assert all(one.equal and one.host + one.pool + one.computed == BLOCKS for one in served)
    assert sum(one.pool for one in served) > 0
    assert not b.node.engine.side.ledger.pending
    assert b.node.engine.rows_lost == 0
    computed = sum(one.computed for one in served)
    # with a window or a state less may be lost than is counted: a shorter boundary may be legal
    b.until("all counted", lambda side: sum(side.misses().values()) >= computed)
    assert sum(b.misses().values()) == computed or groups is not FULL_ATTENTION
    assert b.misses().keys() <= {"no_room", "evicted"}


# -- preemption --------------------------------------------------------------------------------------


@MODELS
@pytest.mark.parametrize("moment", ["before it is asked for", "before it is answered", "in mid-load"])
def test_a_request_that_is_preempted_is_planned_anew_and_loses_nothing(
    attach: Callable[..., list[Side]], groups: tuple[Group, ...], moment: str
) -> None:
    a, b = attach(groups)
    tokens = prompt(f"{moment} {len(groups)}", BLOCKS)
    a.node.engine.serve(tokens)
    a.until_stored(len(groups) * BLOCKS)
    engine = b.node.until_knows(tokens).engine
    preempted: list[int] = []

    def preempt(step: int) -> bool:
        now = {
            "before it is asked for": step == 0,
            "before it is answered": step > 0 and not engine.loading,
            "in mid-load": engine.loading,
        }[moment]
        if now and not preempted:
            preempted.append(step)
            return True
        return False

    (served,) = engine.serve_together([tokens], preempt)
    assert (served.pool, served.computed, served.equal) == (BLOCKS, 0, True)
    assert preempted or moment == "before it is answered"  # which may have come within one step
    b.until("heard of it", lambda side: side.hits() == (0, 0, BLOCKS))
    rows = ROWS[groups]
    assert (b.came(), engine.promoted, b.misses()) == ((rows, rows * ROW), rows, {})
    # a plan that is dropped before it was sent is never asked for, and what loads already needs none
    plans = b.node.status().counters["plans"] - b.before.counters.get("plans", 0)
    assert plans == 1 + (moment == "before it is answered" and bool(preempted))
    assert not engine.side.ledger.pending
    assert engine.rows_lost == 0


def test_misses_of_a_request_that_is_preempted_are_counted_once(attach: Callable[..., list[Side]]) -> None:
    a, b = attach(FULL_ATTENTION)
    plans: list[int] = []
    while 2 not in plans:  # its plan may come before its preemption: then there is one plan alone
        assert len(plans) < 50, "no request was asked for twice"
        tokens = prompt(f"twice {len(plans)}", BLOCKS)
        before, giver = (Side(side.node, side.node.status()) for side in (b, a))
        a.node.engine.serve(tokens[: BLOCKS // 2 * BLOCK_TOKENS])
        giver.until_stored(BLOCKS // 2)
        engine = b.node.until_knows(tokens).engine
        (served,) = engine.serve_together([tokens], lambda step, engine=engine: step == 1 and not engine.loading)
        assert (served.pool, served.computed, served.equal) == (BLOCKS // 2, BLOCKS // 2, True)
        before.until("counted", lambda side: side.hits() == (BLOCKS // 2, 0, BLOCKS // 2) and side.misses())
        assert before.misses() == {"never_published": BLOCKS // 2}
        plans.append(b.node.status().counters["plans"] - before.before.counters.get("plans", 0))
