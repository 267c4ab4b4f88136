"""Who takes over which block of a member that leaves."""

from kvpool_agent.policy.handoff import SLACK_BLOCKS, allot
from kvpool_agent.policy.heat import HotBlock


def key(name: str, n: int) -> bytes:
    return f"{name}{n}".encode()


def chain(name: str, blocks: int, parent: bytes = b"") -> list[HotBlock]:
    found = []
    for n in range(blocks):
        found.append(HotBlock(key(name, n), parent, n, 2.0))
        parent = key(name, n)
    return found


def names(shares: dict[str, list[HotBlock]]) -> dict[str, str]:
    return {receiver: "".join(chr(block.key[0]) for block in share) for receiver, share in shares.items()}


def test_chains_stay_together_and_receivers_get_equal_parts() -> None:
    blocks = [block for name in "abcd" for block in chain(name, 3)]
    assert names(allot(blocks, {"x": set(), "y": set()}, ["x", "y"])) == {"x": "aaaccc", "y": "bbbddd"}


def test_a_block_goes_where_its_parent_lies() -> None:
    branch, other = chain("b", 3, b"trunk"), chain("c", 2)
    assert names(allot([*branch, *other], {"x": set(), "y": {b"trunk"}}, ["x", "y"])) == {"x": "cc", "y": "bbb"}


def test_of_several_that_hold_the_parent_the_one_with_the_fewest_gets_it() -> None:
    blocks = [block for name in "abcd" for block in chain(name, 2, b"trunk")]
    held = {"x": {b"trunk"}, "y": {b"trunk"}, "z": set()}
    assert names(allot(blocks, held, ["x", "y", "z"])) == {"x": "aacc", "y": "bbdd"}


def test_where_all_hangs_on_one_block_the_receivers_still_get_alike() -> None:
    twigs = [block for n in range(SLACK_BLOCKS) for block in chain(f"{n}-", 4, b"trunk")]
    shares = allot(twigs, {"x": {b"trunk"}, "y": set()}, ["x", "y"])
    parts = [len(share) for share in shares.values()]
    assert sum(parts) == len(twigs)
    assert abs(parts[0] - parts[1]) <= SLACK_BLOCKS + 1


def test_who_gets_nothing_is_not_named() -> None:
    assert allot([], {"x": set()}, ["x"]) == {}
    assert names(allot(chain("a", 1), {"x": set(), "y": set()}, ["x", "y"])) == {"x": "a"}
