"""Who is asked for what: in few pieces, each from a member that holds it."""

import itertools
import random

import pytest

from kvpool_agent.policy.sources import share

T, F = True, False


@pytest.mark.parametrize(
    ("held", "wanted", "pieces"),
    [
        ({"a": [T, T, T]}, [0, 1, 2], [("a", [0, 1, 2])]),
        ({"a": [T, T, F], "b": [F, T, T]}, [0, 1, 2], [("a", [0, 1]), ("b", [2])]),
        ({"a": [T, F, F], "b": [T, T, T]}, [0, 1, 2], [("b", [0, 1, 2])]),
        ({"b": [T, T, T], "a": [T, T, T]}, [1, 2], [("a", [1, 2])]),
        ({"a": [T, F, T]}, [0, 2], [("a", [0, 2])]),  # what lies between is not wanted
        ({"a": [T, F, T]}, [0, 1, 2], [("a", [0])]),
        ({"a": [F]}, [0], []),
        ({}, [0], []),
        ({"a": [T]}, [], []),
    ],
)
def test_each_piece_is_the_longest_run_that_one_member_holds(
    held: dict[str, list[bool]], wanted: list[int], pieces: list[tuple[str, list[int]]]
) -> None:
    assert share(held, wanted) == pieces


@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_the_fewest_and_end_where_nobody_holds_a_block(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        length = draw.randint(1, 8)
        held = {name: [draw.random() < 0.7 for _ in range(length)] for name in "abc"}
        pieces = share(held, range(length))
        run = next((i for i in range(length) if not any(held[name][i] for name in held)), length)
        assert [i for _, part in pieces for i in part] == list(range(run))
        assert all(held[address][i] for address, part in pieces for i in part)
        if run:
            assert len(pieces) == fewest_pieces(held, run)


def fewest_pieces(held: dict[str, list[bool]], run: int) -> int:
    for count in itertools.count(1):
        for cuts in itertools.combinations(range(1, run), count - 1):
            edges = [0, *cuts, run]
            if all(any(all(row[a:b]) for row in held.values()) for a, b in itertools.pairwise(edges)):
                return count
    raise AssertionError
