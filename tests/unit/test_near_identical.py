"""Prompts that seem to be one and the same but for something small."""

import pytest

from kvpool_agent.account import Account
from kvpool_agent.costs import timing_of
from kvpool_agent.flows.finished import finish_request
from kvpool_agent.policy.near_identical import KEPT, NearIdentical, Parting
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab
from kvpool_client.groups import FULL, Group

BLOCK = 16


def chain(name: str, shared: int, blocks: int) -> list[bytes]:
    """The first `shared` blocks are those of any other prompt."""
    return [f"all:{i}".encode() if i < shared else f"{name}:{i}".encode() for i in range(blocks)]


def served(seen: NearIdentical, lengths: list[int], shared: int = 2, name: str = "p") -> None:
    """A prompt of each of these lengths, in tokens, of which the shared blocks were found."""
    for n, tokens in enumerate(lengths):
        seen.request(chain(f"{name}{n}", shared, tokens // BLOCK), shared, BLOCK, tokens)


@pytest.mark.parametrize("shared", [0, 2])
def test_eight_prompts_that_part_in_one_block_and_are_of_one_length_are_shown(shared: int) -> None:
    seen = NearIdentical()
    served(seen, [1000, 1004, 1002, 1001, 1009, 1000, 1000], shared)
    assert seen.partings() == []
    served(seen, [1010], shared, "another")
    assert seen.partings() == [Parting(8, shared * BLOCK, BLOCK, 1000, 1010)]


def test_a_prompt_that_comes_again_is_one_prompt() -> None:
    seen = NearIdentical()
    for _ in range(4):
        served(seen, [1000] * 4)
    assert seen.partings() == []


def test_of_prompts_that_are_as_long_as_they_like_none_is_shown() -> None:
    seen = NearIdentical()
    served(seen, [600 + 40 * n for n in range(30)])
    assert seen.partings() == []
    served(seen, [1000] * 30, name="alike")
    # half of sixty, and those of the others that are as long
    assert seen.partings() == [Parting(31, 2 * BLOCK, BLOCK, 1000, 1000)]
    served(seen, [600 + 40 * n for n in range(30)], name="more")
    assert seen.partings() == []


def test_a_short_question_behind_a_long_prefix_is_no_prompt_that_nearly_is_another() -> None:
    seen = NearIdentical()
    for n in range(20):
        seen.request(chain(f"q{n}", 125, 140), 125, BLOCK, 2000 + 255)
    assert seen.partings() == []
    for n in range(20):
        seen.request(chain(f"q{n}", 125, 141), 125, BLOCK, 2000 + 256)
    assert seen.partings() == [Parting(20, 2000, BLOCK, 2256, 2256)]


def test_where_more_part_comes_first_and_old_requests_are_forgotten() -> None:
    seen = NearIdentical()
    served(seen, [2000] * 9, shared=0)
    served(seen, [1000] * 12, shared=3)
    assert [(one.prompts, one.same) for one in seen.partings()] == [(12, 3 * BLOCK), (9, 0)]
    served(seen, [1000] * (KEPT - 12 - 1), shared=3, name="later")
    assert [one.same for one in seen.partings()] == [3 * BLOCK]


def test_a_prompt_that_was_found_whole_says_nothing() -> None:
    seen = NearIdentical()
    for n in range(20):
        seen.request(chain(f"p{n}", 0, 62), 62, BLOCK, 1000)
    assert seen.partings() == []


@pytest.mark.parametrize(
    ("timing", "length"),
    [
        ({"timing": {"first": 1.0, "prefill": 1.0, "held": 0, "tokens": 1007}}, 1007),
        ({"timing": {"first": 1.0, "prefill": 1.0, "held": 0, "tokens": "many"}}, 992),
        ({}, 992),
    ],
)
def test_a_finished_request_is_as_long_as_the_client_says_and_else_as_its_whole_blocks(
    timing: dict[str, object], length: int
) -> None:
    slab = Slab(b"f" * 16, {}, 4096, ArenaMemory.anonymous(8 * 4096), Arena(8))
    for n in range(8):
        header = {"prompt": 62, "asked": 0, "loaded": 1, **timing}
        # what was generated behind the prompt is not of it
        measured = timing_of(header.get("timing"))
        finish_request(Account(), slab, [Group(0, FULL, 0, BLOCK)], [chain(f"p{n}", 1, 64)], header, measured)
    assert slab.near_identical.partings() == [Parting(8, BLOCK, BLOCK, length, length)]
