"""Free slots: runs of neighbours stay together, no slot is lost or given twice."""

import random

import pytest

from kvpool_agent.store.slots import FreeSlots


def free(count: int) -> FreeSlots:
    slots = FreeSlots(count)
    slots.add(range(count))
    return slots


def runs(slots: FreeSlots) -> int:
    """Into how many pieces the free slots fall."""
    return len(slots._ends)


def test_what_is_taken_together_lies_together() -> None:
    slots = free(32)
    first = slots.take(4)
    assert first == list(range(first[0], first[0] + 4))
    other = slots.take(3)
    assert other == list(range(other[0], other[0] + 3))


def test_a_run_that_has_room_for_all_goes_before_the_rest_of_others() -> None:
    slots = free(16)
    taken = slots.take(16)
    slots.add([0, 1, 2, 4, 5, 6, 7, 8, 9, 10])
    assert runs(slots) == 2
    assert slots.take(3) == [4, 5, 6]  # in three slots just three fit: a search for such a run is not made
    assert slots.take(5) == [7, 8, 9, 10, 0]
    assert (slots.take(9), slots.take(1), len(slots), runs(slots)) == ([1, 2], [], 0, 0)
    assert len(taken) == 16


@pytest.mark.parametrize("seed", range(8))
def test_no_slot_is_lost_or_given_twice_and_neighbours_are_one_run(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 70)
    slots, here = free(count), set(range(count))
    for _ in range(600):
        if draw.random() < 0.5:
            wanted = draw.randint(1, 9)
            taken = slots.take(wanted)
            assert len(set(taken)) == len(taken) == min(wanted, len(here)) and set(taken) <= here
            here -= set(taken)
        else:
            missing = sorted(set(range(count)) - here)
            back = draw.sample(missing, draw.randint(0, len(missing)))
            slots.add(back)
            here |= set(back)
        assert (len(slots), runs(slots)) == (len(here), sum(slot - 1 not in here for slot in here))
