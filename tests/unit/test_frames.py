"""The peer protocol's frames: what was said is what is read, and bad bytes are one kind of error."""

import random
from typing import Any

import msgspec
import pytest

from kvpool_agent.peer import frames, lending
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import Told
from kvpool_contract.names import format_fingerprint

END = lending.End(17, 1 << 23, b"\0" * 10 + b"\xff\xff\x0a\x4d\0\1", 4096, 16)
MESSAGES: list[frames.AnyMessage] = [
    frames.Hello([1, 2], "pool", "member", "inc"),
    frames.Welcome(1, "member", "inc", "Ready(warm)", "00ff", 12),
    frames.Ping(),
    frames.Refused("busy", 0.2),
    frames.Locate(b"f" * 16),
    frames.Located(),
    frames.Fetch(b"f" * 16, "demand", 2.5),
    frames.Block(3, b"t" * 16),
    frames.FetchEnd(),
    frames.Hot(b"f" * 16, 100),
    frames.HotList(),
    frames.Describe(),
    frames.Described(),
    frames.Renew(),
    frames.Renewed(7, [("10.0.0.1:7700", "uid-a")]),
    frames.Announce([2, 1], 3, True),
    frames.Announced(7),
    frames.Where(),
    frames.Found([("uid-a", "inc")]),
    frames.Heads(b"f" * 16, 12, 0.9),
    frames.HeadsTold(13, False, 2, 1),
    frames.Status(),
    frames.StatusTold(),
    frames.Entitle(b"n" * frames.NONCE_BYTES),
    frames.Entitling(b"m" * frames.NONCE_BYTES),
    frames.Proof(),
    frames.Proved(),
    frames.Offer(b"f" * 16, 4.5),
    frames.Taken(),
    lending.Join(b"f" * 16, END),
    lending.Joined(END, 1 << 40, 1 << 30, 77),
    lending.Borrow(b"f" * 16, "demand", 2.5),
    lending.Lent(48, 12.5),
    lending.Returned(3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_comes_back_as_it_was(message: frames.AnyMessage) -> None:
    data = frames.encode(message, 77)
    header, tail = frames.decode_lengths(data[:8])
    assert (header, tail) == (len(data) - 8, 77)
    assert frames.decode(data[8:]) == message


def test_every_kind_of_message_is_in_the_round_trip() -> None:
    assert {type(message) for message in MESSAGES} == set(frames.AnyMessage.__args__)


def test_fields_that_this_version_does_not_know_are_ignored() -> None:
    data = msgspec.msgpack.encode({"t": "refused", "reason": "busy", "later": [1, {"x": 2}]})
    assert frames.decode(data) == frames.Refused("busy")


@pytest.mark.parametrize("lengths", [(frames.MAX_HEADER + 1, 0), (0, frames.MAX_TAIL + 1), (2**32 - 1, 2**32 - 1)])
def test_lengths_over_the_limits_are_a_frame_error(lengths: tuple[int, int]) -> None:
    with pytest.raises(frames.FrameError, match="over the limits"):
        frames.decode_lengths(frames.LENGTHS.pack(*lengths))
    assert frames.decode_lengths(frames.LENGTHS.pack(frames.MAX_HEADER, frames.MAX_TAIL))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"t": "nothing"}),
        msgspec.msgpack.encode({"reason": "no tag"}),
        msgspec.msgpack.encode({"t": "block", "index": "three", "tag": b""}),
        msgspec.msgpack.encode({"t": "welcome"}),
        b"\x82\xa1t\xa7refused\xa6reason\xa1\xff",
        b"\x82\xa1t\xa4ping\xa1x" + b"\x91" * 50_000,
    ],
    ids=["empty", "never", "http", "list", "unknown", "untagged", "wrong-type", "missing", "no-utf8", "deep"],
)
def test_bad_bytes_are_a_frame_error(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode(data)


def test_random_bytes_are_a_message_or_a_frame_error() -> None:
    draw = random.Random(1)
    good = [frames.encode(message)[8:] for message in MESSAGES]
    errors = 0
    for _ in range(20_000):
        data = bytearray(draw.choice(good))
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            frames.decode(bytes(data))
        except frames.FrameError:
            errors += 1
    assert errors > 1000


def test_keys_come_back_in_order_and_other_lengths_are_refused() -> None:
    keys = [bytes([n]) * 16 for n in range(5)]
    assert frames.unpack_keys(frames.pack_keys(keys)) == keys
    for tail in (b"x" * 15, b"x" * 17, bytes(16 * (frames.MAX_KEYS + 1))):
        with pytest.raises(frames.FrameError):
            frames.unpack_keys(tail)


def test_a_hot_list_comes_back_with_its_roots_as_roots() -> None:
    blocks = [HotBlock(b"a" * 16, b"", 0, 2.5), HotBlock(b"b" * 16, b"a" * 16, 1, 1.25)]
    zero_parent = [HotBlock(b"c" * 16, bytes(16), 7, 0.0)]
    assert frames.unpack_hot(frames.pack_hot(blocks + zero_parent)) == blocks + zero_parent
    with pytest.raises(frames.FrameError):
        frames.unpack_hot(b"x")


def test_fields_come_back_and_only_those_of_the_format_that_was_told() -> None:
    fields = {"dtype": "float32", "parallel": {"tensor": 2}, "groups": [["layer.0"]], "seed": ""}
    told = format_fingerprint(fields).hex()
    assert frames.unpack_fields(frames.pack_fields(fields), told) == fields
    deep = b'{"a":' + b"[" * 30_000
    for tail in (
        frames.pack_fields({**fields, "dtype": "bfloat16"}),
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"a":"\\ud800"}',
        deep,
    ):
        with pytest.raises(frames.FrameError):
            frames.unpack_fields(tail, told)


NAME = "n" * frames.MAX_NAME


@pytest.mark.parametrize(
    ("at_the_limit", "over_it"),
    [
        ({"t": "renewed", "lease": 1, "members": [[NAME, NAME]] * frames.MAX_TOLD}, [("members", 64, [NAME, NAME])]),
        ({"t": "found", "holders": [[NAME, NAME]] * frames.MAX_HOLDERS}, [("holders", 32, [NAME, NAME])]),
        (
            {"t": "announce", "groups": [frames.MAX_KEYS] * frames.MAX_GROUPS, "withdrawn": frames.MAX_KEYS},
            [("groups", 1024, 1)],
        ),
    ],
    ids=["renewed", "found", "announce"],
)
def test_counts_and_lengths_are_bounded_where_they_are_read(
    at_the_limit: dict[str, Any], over_it: list[tuple[str, int, Any]]
) -> None:
    frames.decode(msgspec.msgpack.encode(at_the_limit))
    for field, limit, one in over_it:
        assert len(at_the_limit[field]) == limit
        with pytest.raises(frames.FrameError, match="length"):
            frames.decode(msgspec.msgpack.encode({**at_the_limit, field: [*at_the_limit[field], one]}))


@pytest.mark.parametrize(
    "bad",
    [
        {"t": "renewed", "lease": -1, "members": []},
        {"t": "renewed", "lease": 1 << 62, "members": []},
        {"t": "renewed", "lease": 1, "members": [[NAME + "n", "uid"]]},
        {"t": "renewed", "lease": 1, "members": [["address"]]},
        {"t": "found", "holders": [["uid", NAME + "n"]]},
        {"t": "announced", "lease": -1},
        {"t": "announce", "groups": [0], "withdrawn": 0},
        {"t": "announce", "groups": [frames.MAX_KEYS + 1], "withdrawn": 0},
        {"t": "announce", "groups": [], "withdrawn": -1},
        {"t": "announce", "groups": [], "withdrawn": frames.MAX_KEYS + 1},
    ],
    ids=str,
)
def test_numbers_and_names_out_of_their_range_are_a_frame_error(bad: dict[str, Any]) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode(msgspec.msgpack.encode(bad))


def test_an_announcement_comes_back_and_one_of_another_length_is_refused() -> None:
    a, b, c, d = (bytes([n]) * 16 for n in range(4))
    groups = {a: [a, b], c: [d]}
    message = frames.Announce([2, 1], 1)
    keys = frames.unpack_keys(frames.pack_announcement(groups, [b]))
    assert frames.split_announcement(message, keys) == (groups, [b])
    assert frames.split_announcement(frames.Announce([1, 1], 0), [a, b, a, c]) == ({a: [b, c]}, [])
    for wrong in (frames.Announce([2, 1], 2), frames.Announce([2], 1), frames.Announce([], 0)):
        with pytest.raises(frames.FrameError, match="another number"):
            frames.split_announcement(wrong, keys)


@pytest.mark.parametrize("keys", [0, 1, 7, 8, 9, 64, 1000])
def test_an_answer_about_holders_comes_back_in_a_bit_for_each_key(keys: int) -> None:
    draw = random.Random(keys)
    rows = [[draw.random() < 0.5 for _ in range(keys)] for _ in range(3)]
    message = frames.Found([("uid", str(n)) for n in range(3)])
    tail = frames.pack_held(rows)
    assert len(tail) == 3 * ((keys + 7) // 8)
    assert frames.unpack_held(message, tail, keys) == rows
    with pytest.raises(frames.FrameError, match="no answer"):
        frames.unpack_held(message, tail + b"x", keys)


def test_heads_come_back_as_they_were_and_a_tail_of_another_length_is_a_frame_error() -> None:
    told = Told(7, False, (b"a" * 8, b"b" * 8), (b"c" * 8,))
    message, tail = frames.pack_heads(told)
    assert frames.heads_bytes(message) == len(tail) == 24
    assert frames.unpack_heads(message, tail) == told
    for wrong in (tail + b"x", tail[:-8]):
        with pytest.raises(frames.FrameError, match="another number"):
            frames.unpack_heads(message, wrong)


def test_fields_over_the_limit_are_not_told() -> None:
    assert frames.pack_fields({"x": "y" * frames.MAX_FIELDS}) == frames.pack_fields(None) == b""


@pytest.mark.parametrize(
    ("offered", "chosen"), [([1], 1), ([9, 1, 2], 2), ([3, 2], 3), ([9], None), ([], None), ([0, -1], None)]
)
def test_the_highest_common_version_is_chosen(offered: list[int], chosen: Any) -> None:
    assert frames.choose_version(offered) == chosen
