"""Where each engine block lies in the chunks of a transfer: the arithmetic of the copy worker for engines on a CPU."""

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def load_fragments() -> Callable[..., Iterator[tuple[int, int, int, int]]]:
    """The function alone: its module imports the engine."""
    source = (REPOSITORY / "agent/kvpool_client/engine_vllm/cpu_worker.py").read_text()
    (function,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "fragments"
    ]
    names: dict[str, Any] = {"Any": Any, "Iterator": Iterator}
    exec(compile(ast.Module([function], []), "fragments", "exec"), names)
    return names["fragments"]  # type: ignore[no-any-return]


fragments = load_fragments()


def naive(group_sizes: Sequence[int], first_indices: Sequence[int], per_chunk: int) -> list[tuple[int, int, int, int]]:
    """Walks logical blocks one by one and opens a chunk whenever the next one begins."""
    found, block, chunk = [], 0, -1
    for group, (size, first) in enumerate(zip(group_sizes, first_indices, strict=True)):
        last = None
        for logical in range(first, first + size):
            if logical // per_chunk != last:
                last = logical // per_chunk
                chunk += 1
            found.append((group, block, chunk, logical % per_chunk))
            block += 1
    return found


def test_one_group_from_its_beginning_fills_chunk_after_chunk() -> None:
    assert list(fragments([5], [0], 2)) == [(0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 1, 0), (0, 3, 1, 1), (0, 4, 2, 0)]


def test_a_first_block_in_the_middle_of_its_chunk_keeps_its_place() -> None:
    assert list(fragments([3], [7], 4)) == [(0, 0, 0, 3), (0, 1, 1, 0), (0, 2, 1, 1)]


def test_a_group_without_blocks_takes_no_chunk() -> None:
    assert list(fragments([1, 0, 1], [0, 3, 1], 2)) == [(0, 0, 0, 0), (2, 1, 1, 1)]


@pytest.mark.parametrize("per_chunk", [1, 2, 3, 8])
def test_any_sizes_and_beginnings_agree_with_a_walk_block_by_block(per_chunk: int) -> None:
    for sizes in itertools.product(range(5), repeat=2):
        for firsts in itertools.product(range(5), repeat=2):
            assert list(fragments(sizes, firsts, per_chunk)) == naive(sizes, firsts, per_chunk)
