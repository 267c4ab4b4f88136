"""A model with three KV-cache groups, two of them windows: a boundary is legal in all groups, or nothing is loaded."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.altering_member import AlteringMember, hot_list
from engine.forged import Forge, forged_pool
from engine.measured import BLOCK, Outcome, ask, by_source, moved, prompt, sees_only, settle, until_sees
from engine.two_replicas import two_replicas
from replica import Pool, Tools

from kvpool_agent.policy.heat import HotBlock

MAKE = Path(__file__).parent / "make_hybrid_model.py"
WINDOW_BLOCKS = 2  # that the window reaches into
WINDOW_GROUPS = 2
BLOCKS, TAIL = 4, 9


@pytest.fixture(scope="module")
def hybrid(forge: Forge, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Replicas A and B of the model with several groups."""
    folder = tmp_path_factory.mktemp("hybrid")
    forge.run(MAKE, tools.model, folder / "model")
    made = forged_pool(forge, dataclasses.replace(tools, model=folder / "model"), folder / "pool")
    with two_replicas(made):
        yield made


@pytest.mark.parametrize(("blocks", "tail"), [(1, 1), (BLOCKS, TAIL)])
def test_a_continuation_over_all_groups_equals_one_from_a_local_prefix_hit(
    hybrid: Pool, blocks: int, tail: int
) -> None:
    a, b = hybrid.replicas
    tokens = prompt(7000 + blocks, blocks * BLOCK + tail)
    assert ask(a, tokens).tokens == by_source(computed=blocks * BLOCK + tail)
    local = ask(a, tokens)
    assert local.tokens == by_source(device=blocks * BLOCK, computed=tail)
    assert sharp(local)
    until_sees(b, a)
    before, row = settle(b), b.status()["format_fields"]["row_bytes"]
    assert len(b.status()["format_fields"]["groups"]) == 1 + WINDOW_GROUPS
    shared = ask(b, tokens)
    assert shared.tokens == by_source(pool=blocks * BLOCK, computed=tail)
    assert shared.answer == local.answer
    # of each window the last blocks alone
    came = blocks + WINDOW_GROUPS * min(blocks, WINDOW_BLOCKS)
    after = settle(b)
    assert moved_between(before, after) == (came, came * row)
    assert after["hits"]["shared_blocks"] - before["hits"]["shared_blocks"] == blocks


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a member holds of each window, beside all of the full attention, and the boundary, in blocks, that comes of
    it; altered: one of the window's last blocks has other bytes."""

    windows: range
    boundary: int
    altered: bool = False


@pytest.mark.parametrize(
    "offer",
    [
        pytest.param(Offer(range(1, BLOCKS), BLOCKS), id="all"),
        pytest.param(Offer(range(1, BLOCKS), BLOCKS, altered=True), id="a window's block altered"),
        pytest.param(Offer(range(2, BLOCKS), BLOCKS), id="no more than the windows need"),
        pytest.param(Offer(range(1, BLOCKS - 1), BLOCKS - 1), id="the windows' last blocks missing"),
        pytest.param(Offer(range(0), 0), id="the windows missing"),
        pytest.param(Offer(range(3, BLOCKS), 0), id="one block of the windows missing"),
    ],
)
def test_what_a_boundary_needs_is_brought_and_where_a_window_is_missing_nothing(
    hybrid: Pool, offer: Offer, request: pytest.FixtureRequest
) -> None:
    a, b = hybrid.replicas
    tokens = prompt(8000 + sum(request.node.name.encode()), BLOCKS * BLOCK + TAIL)
    address, fingerprint = f"127.0.0.1:{a.peer_port}", bytes.fromhex(a.status()["format"])
    known = {block.key for block in hot_list(hybrid, address, fingerprint)}
    ask(a, tokens[: (BLOCKS - 1) * BLOCK + TAIL])
    ask(a, tokens)
    local = ask(a, tokens)
    assert local.tokens == by_source(device=BLOCKS * BLOCK, computed=TAIL)
    full, windows = by_kind([block for block in hot_list(hybrid, address, fingerprint) if block.key not in known])
    assert [len(keys) for keys in windows[1:]] == [WINDOW_GROUPS] * (BLOCKS - 1)
    held = full + [key for i in offer.windows for key in windows[i]]
    member = AlteringMember(hybrid, address, fingerprint, held)
    seeds = hybrid.members.read_text()
    try:
        if offer.altered:
            member.alter(windows[-1][0])
        hybrid.members.write_text(f"{member.address}\n")
        sees_only(b, member.address)
        before = settle(b)
        answer = ask(b, tokens)
        after = settle(b)
        loaded = offer.boundary * BLOCK
        assert answer.tokens == by_source(pool=loaded, computed=len(tokens) - loaded)
        needed = offer.boundary + WINDOW_GROUPS * min(offer.boundary, WINDOW_BLOCKS)
        row = after["format_fields"]["row_bytes"]
        assert (member.served, moved_between(before, after)) == (needed, (needed, needed * row))
        misses = {r: n - before["misses"].get(r, 0) for r, n in after["misses"].items()}
        assert {r: n for r, n in misses.items() if n} == (
            {"window_missing": BLOCKS - offer.boundary} if offer.boundary < BLOCKS else {}
        )
        if offer.boundary == BLOCKS:
            assert (answer.answer != local.answer) is offer.altered
        else:  # another tail is computed than after a local hit, so probabilities differ in the last digits
            assert answer.answer[0] == local.answer[0]
    finally:
        hybrid.members.write_text(seeds)
        member.close()
        sees_only(b, address)
        sees_only(a, f"127.0.0.1:{b.peer_port}")


def by_kind(blocks: list[HotBlock]) -> tuple[list[bytes], list[list[bytes]]]:
    """Keys of the full attention in order, and of the windows, which have no parents, by their place."""
    linked = {block.key: block for block in blocks if block.parent}
    full = {block.depth: block.key for block in linked.values()}
    full[0] = next(block.parent for block in linked.values() if block.depth == 1)
    windows: list[list[bytes]] = [[] for _ in full]
    for block in blocks:
        if block.key not in full.values():
            windows[block.depth].append(block.key)
    return [full[i] for i in range(len(full))], windows


def moved_between(before: dict[str, object], after: dict[str, object]) -> tuple[int, int]:
    (blocks, size), (blocks_before, size_before) = moved(after, "demand_in"), moved(before, "demand_in")
    return blocks - blocks_before, size - size_before


def sharp(outcome: Outcome) -> bool:
    """Whether the model's likeliest tokens are told apart, so that equal probabilities mean something."""
    return all(max(top.values()) - min(top.values()) > 1 for top in outcome.answer[1])
