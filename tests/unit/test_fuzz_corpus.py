"""What the fuzzer once found worth keeping is replayed, and so are well-formed inputs and their neighbours; planted
errors are found by them."""

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_plants import PLANTS
from fuzz_seeds import seeds
from fuzz_targets import TARGETS

LONGEST = 256
CORPUS = Path(__file__).resolve().parents[1] / "soak" / "corpus"


def kept(target: str) -> list[bytes]:
    return [bytes.fromhex(text) for text in json.loads((CORPUS / f"{target}.json").read_text())]


def neighbours(data: bytes) -> Iterator[bytes]:
    """The input with one byte changed by a little, and cut short."""
    for place in range(len(data)):
        for by in (1, 255):
            yield data[:place] + bytes([(data[place] + by) % 256]) + data[place + 1 :]
        yield data[:place]


def finds_the_planted_error(target: str, data: bytes) -> bool:
    with PLANTS[target]():
        try:
            TARGETS[target](data)
        except (AssertionError, ValueError, IndexError, struct.error):
            return True
    return False


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_holds(target: str) -> None:
    inputs = [*kept(target), *seeds()[target]]
    assert len(inputs) > len(seeds()[target])
    for data in inputs:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_of_well_formed_inputs_hold_and_find_a_planted_error(target: str) -> None:
    found = False
    for data in (seed for seed in seeds()[target] if len(seed) <= LONGEST):
        for other in neighbours(data):
            TARGETS[target](other)
            found = found or finds_the_planted_error(target, other)
    assert found
