"""The boundary of a plan: legal in every group, the longest there is, and within the room."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpool_agent.policy.boundary import NO_LIMIT, Blocks, first_lacking, longest, needed, wanted
from kvpool_client.groups import FULL, STATE, WINDOW, Group

T, F = True, False


def full(size: int = 4) -> Group:
    return Group(0, FULL, 0, size)


def window(tokens: int, size: int = 4) -> Group:
    return Group(1, WINDOW, tokens, size)


def state(size: int = 4) -> Group:
    return Group(2, STATE, 1, size)


@pytest.mark.parametrize(
    ("group", "boundary", "first", "stop"),
    [
        (full(), 12, 0, 3),
        (full(), 10, 0, 3),  # in the middle of a block: the whole block
        (full(), 0, 0, 0),
        (window(1), 12, 2, 3),
        (window(4), 12, 2, 3),
        (window(5), 12, 1, 3),
        (window(8), 12, 1, 3),
        (window(9), 12, 0, 3),
        (window(100), 12, 0, 3),
        (window(4), 11, 2, 3),  # tokens 8 to 10 are looked at
        (window(4), 10, 1, 3),  # token 7 is looked at
        (window(5), 9, 1, 3),  # tokens 5 to 8
        (state(), 12, 2, 3),
        (state(), 4, 0, 1),
    ],
)
def test_what_a_group_needs_at_a_boundary(group: Group, boundary: int, first: int, stop: int) -> None:
    assert needed(group, boundary) == range(first, stop)


def request(*groups: tuple[Group, list[bool]]) -> list[Blocks]:
    return [Blocks(group, lacks) for group, lacks in groups]


@pytest.mark.parametrize(
    ("held_full", "held_window", "boundary"),
    [
        ([T, T, T, T], [T, T, T, T], 16),
        ([T, T, T, T], [F, F, T, T], 16),  # the window of 8 tokens is two blocks
        ([T, T, T, T], [F, F, F, T], 0),
        ([T, T, T, T], [F, T, T, F], 12),
        ([T, T, T, T], [T, F, F, F], 4),  # at 4 tokens the window reaches no further back than the beginning
        ([T, T, F, T], [T, T, T, T], 8),
        ([T, T, F, T], [F, F, T, T], 0),
        ([F, T, T, T], [T, T, T, T], 0),
        ([T, T, T, T], [F, F, F, F], 0),
    ],
)
def test_the_boundary_is_legal_in_every_group(held_full: list[bool], held_window: list[bool], boundary: int) -> None:
    both = request((full(), [T] * 4), (window(8), [T] * 4))
    assert longest(both, [held_full, held_window]) == boundary


def test_what_the_engine_holds_needs_nobody_else() -> None:
    both = request((full(), [F, F, T, T]), (window(8), [F, F, F, T]))
    assert longest(both, [[F, F, T, T], [F, F, F, T]]) == 16
    assert wanted(both, 16) == [[2, 3], [3]]
    assert longest(both, [[F] * 4, [F] * 4]) == 8
    assert wanted(both, 8) == [[], []]
    assert first_lacking(both) == 8
    assert first_lacking(request((full(), [F] * 4))) == 16


def test_room_shortens_the_boundary_to_one_whose_blocks_fit() -> None:
    both = request((full(), [T] * 4), (window(8), [T] * 4))
    everything = [[T] * 4, [T] * 4]
    assert [longest(both, everything, room) for room in (6, 5, 4, 3, 2, 1)] == [16, 12, 8, 4, 4, 0]


@pytest.mark.parametrize(
    ("held_full", "held_states", "boundary"),
    [
        ([T, T, T, T], [F, F, F, T], 16),
        ([T, T, T, T], [T, F, T, F], 12),
        ([T, T, F, T], [F, F, T, T], 0),  # the states that are held are of a longer prefix than the rest
        ([T, T, F, T], [T, F, F, T], 4),
        ([T, T, T, T], [F, F, F, F], 0),
    ],
)
def test_a_state_alone_is_enough_at_its_end_and_nowhere_else(
    held_full: list[bool], held_states: list[bool], boundary: int
) -> None:
    both = request((full(), [T] * 4), (state(), [T] * 4))
    assert longest(both, [held_full, held_states]) == boundary
    assert wanted(both, boundary) == [list(range(boundary // 4)), [boundary // 4 - 1] if boundary else []]


def test_no_boundary_lies_inside_the_block_of_a_state() -> None:
    mixed = request((full(4), [T] * 4), (state(8), [T] * 2))
    assert longest(mixed, [[T, T, T, F], [T, T]]) == 8
    assert longest(mixed, [[T, T, T, T], [F, T]]) == 16
    assert longest(mixed, [[T, T, T, F], [F, T]]) == 0


def test_groups_with_blocks_of_different_sizes_share_boundaries_of_either() -> None:
    mixed = request((full(8), [T, T]), (window(5, 4), [T] * 4))
    assert longest(mixed, [[T, T], [F, T, T, F]]) == 12  # in the middle of the second block of the full group
    assert wanted(mixed, 12) == [[0, 1], [1, 2]]
    assert longest(mixed, [[T, F], [T, T, T, T]]) == 8
    coarse = request((full(4), [T] * 4), (window(3, 8), [T, T]))
    assert longest(coarse, [[T, T, T, F], [T, T]]) == 12
    assert longest(coarse, [[T, T, T, F], [T, F]]) == 8


# -- against a rule by tokens -----------------------------------------------------------------------


def legal(groups: list[Blocks], held: list[list[bool]], boundary: int, room: int) -> bool:
    """Token by token: every token that a layer looks at from `boundary` on lies in a block that is there. The engine
    asks for whole windows where it could do with one token less, and so does the rule."""
    lacked = 0
    for blocks, here in zip(groups, held, strict=True):
        size, count = blocks.group.block_tokens, 0
        if blocks.group.kind == STATE and boundary % size:
            return False
        reach = blocks.group.window or boundary
        tokens = set(range(max(0, boundary - reach + (reach < boundary and boundary % size != 0)), boundary))
        if blocks.group.window and boundary % size:
            least = -(-blocks.group.window // size)
            end = -(-boundary // size)
            tokens |= set(range(max(0, end - least) * size, boundary))
        for index in {token // size for token in tokens}:
            if blocks.lacks[index] and not here[index]:
                return False
            count += blocks.lacks[index]
        lacked += count
    return lacked <= room


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Blocks], list[list[bool]], int]:
    tokens = draw(st.integers(8, 40))
    groups, held = [], []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.sampled_from([2, 3, 4, 8]))
        kind = draw(st.sampled_from([FULL, FULL, WINDOW, WINDOW, STATE]))
        span = draw(st.sampled_from([1, 2, 3, 5, 8, 9, 17, 50])) if kind == WINDOW else int(kind == STATE)
        count = tokens // size
        gaps = st.sets(st.integers(0, max(0, count - 1)), max_size=3)
        holds, lost = draw(gaps), draw(gaps)  # few, so that long boundaries are legal
        groups.append(Blocks(Group(number, kind, span, size), [i not in holds for i in range(count)]))
        held.append([i not in lost for i in range(count)])
    return groups, held, draw(st.sampled_from([NO_LIMIT, NO_LIMIT, 0, 3, 7]))


@given(cases())
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_against_every_boundary_tried_token_by_token(case: tuple[list[Blocks], list[list[bool]], int]) -> None:
    groups, held, room = case
    reach = min(blocks.tokens for blocks in groups)
    ends = {end for blocks in groups for end in range(0, reach + 1, blocks.group.block_tokens)}
    best = max(end for end in ends if end == 0 or legal(groups, held, end, room))
    assert longest(groups, held, room) == best
    plan = wanted(groups, best)
    assert sum(map(len, plan)) <= room
    for blocks, here, indexes in zip(groups, held, plan, strict=True):
        assert all(blocks.lacks[i] and here[i] for i in indexes)
