"""Golden vectors: frames, keys and fingerprints as other builds made them.

From the first tag on, vectors are added, never edited: an agent must read what the previous version writes, and name
blocks and formats as it does. Before that a change raises the version of what it changes.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvpool_agent.peer import frames, lending
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store import headers
from kvpool_agent.store.tag import tag_of
from kvpool_client import wire
from kvpool_contract.names import block_key, format_fingerprint

FOLDER = Path(__file__).with_name("vectors")


def vectors(name: str) -> list[Any]:
    found: list[Any] = json.loads((FOLDER / f"{name}.json").read_text())
    assert found
    return found


def written(fields: dict[str, Any]) -> dict[str, Any]:
    """As they are in a message: bytes are given in hex."""
    return {
        name: written(v)
        if isinstance(v, dict)
        else bytes.fromhex(v[4:])
        if isinstance(v, str) and v.startswith("hex:")
        else v
        for name, v in fields.items()
    }


@pytest.mark.parametrize("vector", vectors("engine_port"), ids=lambda v: v["name"])
def test_frames_of_the_engine_port(vector: dict[str, Any]) -> None:
    data, tail = bytes.fromhex(vector["frame"]), bytes.fromhex(vector["tail"])
    (frame,) = wire.Decoder().feed(data)
    assert (frame.header, frame.tail) == (vector["header"], tail)
    assert wire.encode(vector["header"], tail) == data


@pytest.mark.parametrize("vector", vectors("peer_frames"), ids=lambda v: v["name"])
def test_frames_between_agents(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["frame"])
    header_length, tail_length = frames.decode_lengths(data[:8])
    assert (header_length, tail_length) == (len(data) - 8, vector["tail_length"])
    message = frames.decode(data[8:])
    assert type(message).__name__ == vector["message"]
    fields = written(vector["fields"])
    found = {name: getattr(message, name) for name in fields}  # what the vector does not name has its default
    found = {name: msgspec.structs.asdict(v) if isinstance(v, msgspec.Struct) else v for name, v in found.items()}
    assert {name: [list(v) if isinstance(v, tuple) else v for v in value] if isinstance(value, list) else value
            for name, value in found.items()} == fields  # fmt: skip
    assert frames.encode(message, tail_length) == data


@pytest.mark.parametrize("vector", vectors("hot_lists"), ids=lambda v: v["name"])
def test_hot_lists(vector: dict[str, Any]) -> None:
    blocks = [HotBlock(bytes.fromhex(key), bytes.fromhex(parent), depth, heat)
              for key, parent, depth, heat in vector["blocks"]]  # fmt: skip
    assert frames.pack_hot(blocks).hex() == vector["tail"]
    assert frames.unpack_hot(bytes.fromhex(vector["tail"])) == blocks


@pytest.mark.parametrize("vector", vectors("directory"), ids=lambda v: v["name"])
def test_announcements_and_answers_about_holders(vector: dict[str, Any]) -> None:
    groups = {bytes.fromhex(head): [bytes.fromhex(key) for key in keys] for head, keys in vector["groups"].items()}
    withdrawn, tail = [bytes.fromhex(key) for key in vector["withdrawn"]], bytes.fromhex(vector["announcement"])
    message = frames.Announce([len(keys) for keys in groups.values()], len(withdrawn))
    assert frames.pack_announcement(groups, withdrawn) == tail
    assert frames.split_announcement(message, frames.unpack_keys(tail)) == (groups, withdrawn)
    rows, answer = [[bool(bit) for bit in row] for row in vector["held"]], bytes.fromhex(vector["answer"])
    assert frames.pack_held(rows) == answer
    found = frames.Found([("uid", "inc")] * len(rows))
    assert frames.unpack_held(found, answer, len(rows[0])) == rows


@pytest.mark.parametrize("vector", vectors("block_keys"), ids=lambda v: v["name"])
def test_block_keys(vector: dict[str, Any]) -> None:
    engine_hash, fingerprint, namespace_key, key = (
        bytes.fromhex(vector[name]) for name in ("engine_hash", "fingerprint", "namespace_key", "key")
    )
    assert block_key(engine_hash, vector["group"], fingerprint, namespace_key) == key


@pytest.mark.parametrize("vector", vectors("format_fingerprints"), ids=lambda v: v["name"])
def test_format_fingerprints(vector: dict[str, Any]) -> None:
    assert format_fingerprint(vector["fields"]).hex() == vector["fingerprint"]
    shuffled = dict(reversed(vector["fields"].items()))
    assert format_fingerprint(shuffled).hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", vectors("block_tags"), ids=lambda v: v["name"])
def test_block_tags(vector: dict[str, Any]) -> None:
    key, data = bytes.fromhex(vector["key"]), bytes.fromhex(vector["data"])
    assert tag_of(key, memoryview(data)).hex() == vector["tag"]


@pytest.mark.parametrize("vector", vectors("arena_headers"), ids=lambda v: v["name"])
def test_arena_headers(vector: dict[str, Any]) -> None:
    tail = bytes.fromhex(vector["tail"])
    header = headers.ArenaHeader(
        bytes.fromhex(vector["fingerprint"]), vector["fields"], vector["slot_bytes"], vector["slot_count"]
    )
    assert headers.encode_arena(header) == tail
    assert headers.decode_arena(memoryview(bytes(vector["size"] - len(tail)) + tail)) == header


@pytest.mark.parametrize("vector", vectors("slot_headers"), ids=lambda v: v["name"])
def test_slot_headers(vector: dict[str, Any]) -> None:
    key, parent, tag, data = (bytes.fromhex(vector[name]) for name in ("key", "parent", "tag", "header"))
    header = headers.SlotHeader(key, parent, tag, vector["foreign"])
    assert headers.encode_slot(vector["slot"], header) == data
    assert headers.decode_slot(vector["slot"], data) == header


def test_every_part_of_a_name_changes_it() -> None:
    names = [
        block_key(b"h", 0, b"f"),
        block_key(b"i", 0, b"f"),
        block_key(b"h", 1, b"f"),
        block_key(b"h", 0, b"g"),
        block_key(b"h", 0, b"f", b"key"),
        block_key(b"h\0\0\0\0", 0, b"f"),
        block_key(b"", 0x68, b"f"),
    ]
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {16}


def test_a_tag_depends_on_key_and_every_byte() -> None:
    data = bytearray(1000)
    tags = {tag_of(b"k" * 16, memoryview(data)), tag_of(b"l" * 16, memoryview(data))}
    for i in (0, 500, 999):
        data[i] ^= 1
        tags.add(tag_of(b"k" * 16, memoryview(data)))
    assert len(tags) == 5


def test_places_of_blocks_that_are_lent() -> None:
    places = [(4096, b"t" * 16), None, (0, b"u" * 16)]
    tail = lending.pack_places(places)
    assert tail.hex() == "0000000000001000" + "74" * 16 + "f" * 16 + "00" * 16 + "0" * 16 + "75" * 16
    assert lending.unpack_places(tail) == places
    for wrong in (tail[1:], bytes((lending.MAX_LENT + 1) * 24)):
        with pytest.raises(ValueError, match="no list of at most 4096 places"):
            lending.unpack_places(wrong)
