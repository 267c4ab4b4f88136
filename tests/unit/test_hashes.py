"""Names of blocks that are made from token ids: those that vLLM 0.32 makes, by its own functions' results."""

from typing import Any

import pytest

from kvpool_agent.policy.hashes import UnknownHashError, engine_keys

SEED = "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198"
TOKENS = [1, 23, 24, 255, 256, 65535, 65536, 151643]  # of each length that an encoding has


def fields(**change: Any) -> dict[str, Any]:
    of_format = {"hash_algorithm": "sha256", "hash_seed": SEED, "tokens_per_hash": 4}
    return {**of_format, "engine_block_tokens": [4], "block_tokens": 8, **change}


@pytest.mark.parametrize(
    ("algorithm", "salt", "name"),
    [
        ("sha256", "", "6262954d3e8aa0068934175bc007005bfa07d9495daea21d5f452fbeebf1d758"),
        ("sha256", "kvpool-probe", "08bc419598ecb044e2aa1d5ccfb4ee519f2adfd9bf6baac49b9dfc0534e032f4"),
        ("sha256_cbor", "", "193dc935fb85167d15176a71cb2faccc3987a30dc423c816f60ef004b5b823e2"),
        ("sha256_cbor", "kvpool-probe", "531c289a8d87d1b2ecc8c7427a9757e8158fcb6772742b8830cd8f9ec507e5ac"),
    ],
)
def test_a_block_has_the_name_that_vllms_own_functions_give_it(algorithm: str, salt: str, name: str) -> None:
    assert engine_keys(fields(hash_algorithm=algorithm), TOKENS, salt) == [bytes.fromhex(name) + bytes(4)]


def test_whole_blocks_alone_have_a_name_and_a_longer_prompt_begins_with_those_of_a_shorter_one() -> None:
    short, long = engine_keys(fields(), TOKENS + [7] * 7), engine_keys(fields(), TOKENS + [7] * 8)
    assert (len(short), len(long)) == (1, 2) and long[:1] == short
    assert engine_keys(fields(), TOKENS[:7]) == engine_keys(fields(), []) == []


def test_each_group_has_blocks_of_its_own_size_under_the_hash_at_their_end() -> None:
    keys = engine_keys(fields(engine_block_tokens=[4, 8], block_tokens=4), TOKENS)
    assert [key[32:] for key in keys] == [bytes(4), bytes(4), bytes([0, 0, 0, 1])]
    assert keys[1][:32] == keys[2][:32] != keys[0][:32]


@pytest.mark.parametrize(
    "change",
    [
        {"hash_algorithm": "xxhash"},
        {"hash_algorithm": None},
        {"hash_seed": ""},
        {"hash_seed": "no hex"},
        {"tokens_per_hash": 0},
        {"tokens_per_hash": 3},
        {"engine_block_tokens": []},
        {"block_tokens": None},
    ],
)
def test_a_format_whose_names_can_not_be_made_is_told(change: dict[str, Any]) -> None:
    with pytest.raises(UnknownHashError):
        engine_keys(fields(**change), TOKENS)
