"""Frames between agents: length, msgpack header, raw tail. Sans-IO: this module turns messages into bytes and back.

Frame: 4 bytes header length, 4 bytes tail length (big-endian), header, tail. The header is one of the messages
below, told apart by its `t` field. A connection begins with Hello and Welcome, which agree on a version.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from kvpool_agent.peer.lending import Borrow, Join, Joined, Lent, Returned
from kvpool_agent.peer.message import Message
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.store.heads import MAX_CHANGES, MAX_HEADS, NAME_BYTES, Told
from kvpool_contract.names import BLOCK_KEY_BYTES, format_fingerprint

VERSIONS = (7, 6, 5, 4, 3, 2, 1)
DIRECTORY_VERSION = 2  # the first one with Renew, Announce and Where
HEADS_VERSION = 3  # the first one with Heads
STATUS_VERSION = 4  # the first one with Status
PROOF_VERSION = 4  # the first one with Entitle and Proof
OFFER_VERSION = 5  # the first one with Offer
LENDING_VERSION = 6  # the first one with Join and Borrow
COPY_VERSION = 7  # the first one in which an offer may be of copies
HELD, MADE_ROOM = 1, 2  # in the tail of Located
MAX_HEADER = 64 << 10
MAX_TAIL = 1 << 30
MAX_KEYS = 16_384
MAX_FIELDS = 32 << 10  # bytes of a format's fields
MAX_NAME = 256  # characters of a member's UID, an incarnation, an address
MAX_HOLDERS = 32  # in an answer about a list of keys
MAX_TOLD = 64  # addresses in an answer to a renewal
MAX_GROUPS = 1024  # in one announcement
MAX_OFFER = 1024  # blocks in one offer
MAX_TOLD_HEADS = MAX_HEADS + MAX_CHANGES  # names in one answer
NONCE_BYTES = 32
LENGTHS = struct.Struct("!II")
_HOT = struct.Struct(f"!{BLOCK_KEY_BYTES}s{BLOCK_KEY_BYTES}sIdB")
HOT_BYTES = _HOT.size  # of a block in a hot list


_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class FrameError(Exception):
    """The peer's bytes are no frame of this protocol; the connection is dropped."""


class Hello(Message, tag="hello"):
    """First frame of a connection: versions spoken, the pool, who asks."""

    versions: list[int]
    pool: str
    member: str
    incarnation: str


class Welcome(Message, tag="welcome", omit_defaults=True):
    """Answer to Hello and Ping: the version chosen, who answers, its state, its format (hex) and its blocks. Where it
    is known: the hash of its pod's template, and bytes of a block of its format."""

    version: int
    member: str
    incarnation: str
    state: str
    format: str
    blocks: int
    template: str = ""
    slot_bytes: int = 0


class Ping(Message, tag="ping"):
    """Are you there, and how are you."""


class Refused(Message, tag="refused"):
    """Not served, and why; `retry_after` in seconds where waiting helps."""

    reason: str
    retry_after: float = 0.0


class Locate(Message, tag="locate"):
    """Which of these blocks do you hold? Tail: their keys."""

    format: bytes


class Located(Message, tag="located"):
    """Tail: one byte for each key: 1 where it is held, 2 where it was, and made room; a member of before takes that for
    0."""


class Fetch(Message, tag="fetch"):
    """Send me these blocks. Tail: their keys. `seconds`: how long the asker will wait at most."""

    format: bytes
    purpose: str
    seconds: float


class Block(Message, tag="block"):
    """One block of a Fetch, by its index there. Tail: its bytes. Not held any more: `tag` and tail are empty."""

    index: int
    tag: bytes


class FetchEnd(Message, tag="end", omit_defaults=True):
    """All blocks of a Fetch that are held have been sent; `stopped`: as many of them as the source's bounds let it
    send within the asker's time."""

    stopped: bool = False


class Hot(Message, tag="hot"):
    """What of this format do you hold that is hot? At most `limit` blocks."""

    format: bytes
    limit: int


class HotList(Message, tag="hotlist"):
    """Tail: packed entries, hottest first."""


class Describe(Message, tag="describe"):
    """Which fields does your format have? Asked once by a member whose format is another one."""


class Described(Message, tag="described"):
    """Tail: the fields as a JSON object; empty where there are none or too many of them."""


class Renew(Message, tag="renew"):
    """From version 2 on, as those below: I am there still. Keeps what the asker has announced here."""


class Renewed(Message, tag="renewed"):
    """`lease`: a number that is another one when what the asker has announced was dropped, 0 when none is kept;
    `members`: some live members, address and UID of each."""

    lease: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    members: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=MAX_TOLD)]


class Announce(Message, tag="announce"):
    """The asker holds these blocks, and some no more. `groups`: for each group how many of its keys are told,
    `withdrawn`: how many keys that are not held any more. Tail: for each group its first block's key and the keys told;
    then the withdrawn ones. `fresh`: what was announced before is not true any more."""

    groups: Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=MAX_KEYS)]], msgspec.Meta(max_length=MAX_GROUPS)]
    withdrawn: Annotated[int, msgspec.Meta(ge=0, le=MAX_KEYS)]
    fresh: bool = False


class Announced(Message, tag="announced"):
    """Taken, under this lease (see Renewed)."""

    lease: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Where(Message, tag="where"):
    """Who holds these blocks, as far as you were told? Tail: their keys, of groups whose home the answerer is."""


class Found(Message, tag="found"):
    """`holders`: UID and incarnation of each. Tail: for each of them a bit for each key asked for, in whole bytes,
    the first key in the lowest bit."""

    holders: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=MAX_HOLDERS)]


class Heads(Message, tag="heads"):
    """From version 3 on: at which blocks do the chains begin that you hold? `since`: the number of the answer that the
    asker has, 0 for none. Where nothing has changed since, the answer may take `seconds`."""

    format: bytes
    since: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    seconds: float


class HeadsTold(Message, tag="headstold"):
    """Tail: names of `added` first blocks that are held, then of `withdrawn` ones that are not any more; a name is the
    first 8 bytes of a block key. `whole`: these are all. `number` 0: the answerer can't say."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    whole: bool
    added: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOLD_HEADS)]
    withdrawn: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOLD_HEADS)]


class Status(Message, tag="status"):
    """From version 4 on. How are you, in all that you tell people? Asked by the controller."""


class StatusTold(Message, tag="status_told"):
    """Tail: the status as JSON (kvpool_contract.status)."""


class Entitle(Message, tag="entitle"):
    """From version 4 on: which cache namespaces do we both hold the keys of? `nonce`: fresh, of the asker."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Entitling(Message, tag="entitling"):
    """Answer to Entitle, with the answerer's own nonce. Tail: its proofs (see peer.entitlement), always as many."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Proof(Message, tag="proof"):
    """What follows on Entitling. Tail: the asker's proofs, always as many."""


class Proved(Message, tag="proved"):
    """Answer to Proof, whatever it has proved."""


class Offer(Message, tag="offer", omit_defaults=True):
    """From version 5 on: I am leaving, and hold these hot blocks; fetch what you want to keep of them, within
    `seconds`. Tail: packed entries as of a hot list, hottest first. `copy`, from version 7 on: I stay, and nobody else
    holds them."""

    format: bytes
    seconds: float
    copy: bool = False


class Taken(Message, tag="taken"):
    """Answer to Offer, when all is fetched. Tail: one byte for each block, 1 where the answerer holds it now."""


AnyMessage = (
    Hello
    | Welcome
    | Ping
    | Refused
    | Locate
    | Located
    | Fetch
    | Block
    | FetchEnd
    | Hot
    | HotList
    | Describe
    | Described
    | Renew
    | Renewed
    | Announce
    | Announced
    | Where
    | Found
    | Heads
    | HeadsTold
    | Status
    | StatusTold
    | Entitle
    | Entitling
    | Proof
    | Proved
    | Offer
    | Taken
    | Join
    | Joined
    | Borrow
    | Lent
    | Returned
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage, tail_length: int = 0) -> bytes:
    """The frame's bytes up to its tail, which the caller sends after them."""
    header = _encoder.encode(message)
    return LENGTHS.pack(len(header), tail_length) + header


def decode_lengths(data: bytes) -> tuple[int, int]:
    """(header length, tail length) of the 8 bytes that begin a frame."""
    header, tail = LENGTHS.unpack(data)
    if header > MAX_HEADER or tail > MAX_TAIL:
        raise FrameError(f"frame over the limits: header {header}, tail {tail} bytes")
    return header, tail


def decode(header: bytes) -> AnyMessage:
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"frame header can't be read: {error}") from None


def pack_keys(keys: Sequence[bytes]) -> bytes:
    return b"".join(keys)


def unpack_keys(tail: bytes) -> list[bytes]:
    if len(tail) % BLOCK_KEY_BYTES or len(tail) > MAX_KEYS * BLOCK_KEY_BYTES:
        raise FrameError(f"{len(tail)} bytes are no list of at most {MAX_KEYS} keys")
    return [tail[i : i + BLOCK_KEY_BYTES] for i in range(0, len(tail), BLOCK_KEY_BYTES)]


def pack_announcement(groups: Mapping[bytes, Sequence[bytes]], withdrawn: Sequence[bytes]) -> bytes:
    """groups: keys by the first key of their group. With `Announce(lengths of the values, number of the withdrawn)`."""
    return b"".join([*(part for head, keys in groups.items() for part in (head, *keys)), *withdrawn])


def split_announcement(message: Announce, keys: Sequence[bytes]) -> tuple[dict[bytes, list[bytes]], Sequence[bytes]]:
    """Its keys cut into (those told, by the first key of their group; those withdrawn)."""
    if len(keys) != sum(message.groups) + len(message.groups) + message.withdrawn:
        raise FrameError(f"{len(keys)} keys are another number than the announcement says")
    groups: dict[bytes, list[bytes]] = {}
    at = 0
    for count in message.groups:
        groups.setdefault(keys[at], []).extend(keys[at + 1 : at + 1 + count])
        at += 1 + count
    return groups, keys[at:]


def pack_held(held: Sequence[Sequence[bool]]) -> bytes:
    """The tail of Found: a row for each holder."""
    digits = ["".join("1" if one else "0" for one in reversed(row)) for row in held]
    return b"".join(int(row or "0", 2).to_bytes((len(row) + 7) // 8, "little") for row in digits)


def unpack_held(message: Found, tail: bytes, keys: int) -> list[list[bool]]:
    """For each holder whether it holds each of so many keys."""
    width = (keys + 7) // 8
    if len(tail) != width * len(message.holders):
        raise FrameError(f"{len(tail)} bytes are no answer about {keys} keys at {len(message.holders)} holders")
    rows = [int.from_bytes(tail[i * width : (i + 1) * width], "little") for i in range(len(message.holders))]
    return [[digit == "1" for digit in reversed(f"{row:0{keys}b}"[-keys:])] if keys else [] for row in rows]


def pack_heads(told: Told) -> tuple[HeadsTold, bytes]:
    """The message and its tail."""
    message = HeadsTold(told.number, told.whole, len(told.added), len(told.withdrawn))
    return message, b"".join([*told.added, *told.withdrawn])


def heads_bytes(message: HeadsTold) -> int:
    """How long its tail must be."""
    return (message.added + message.withdrawn) * NAME_BYTES


def unpack_heads(message: HeadsTold, tail: bytes) -> Told:
    if len(tail) != heads_bytes(message):
        raise FrameError(f"{len(tail)} bytes are another number than the message says")
    names = tuple(tail[i : i + NAME_BYTES] for i in range(0, len(tail), NAME_BYTES))
    return Told(message.number, message.whole, names[: message.added], names[message.added :])


def pack_hot(blocks: Sequence[HotBlock]) -> bytes:
    return b"".join(
        _HOT.pack(b.key, b.parent.ljust(BLOCK_KEY_BYTES, b"\0"), b.depth, b.heat, bool(b.parent)) for b in blocks
    )


def unpack_hot(tail: bytes) -> list[HotBlock]:
    if len(tail) % _HOT.size:
        raise FrameError(f"{len(tail)} bytes are no hot list")
    return [
        HotBlock(key, parent if has_parent else b"", depth, heat)
        for key, parent, depth, heat, has_parent in _HOT.iter_unpack(tail)
    ]


def pack_fields(fields: Mapping[str, Any] | None) -> bytes:
    """A format's fields; empty where there are none, or more than another member would read."""
    tail = msgspec.json.encode(fields) if fields else b""
    return tail if len(tail) <= MAX_FIELDS else b""


def unpack_fields(tail: bytes, fingerprint: str) -> dict[str, Any]:
    """The fields whose fingerprint (hex) is this. Raises FrameError: fields of another format explain nothing."""
    try:
        fields = msgspec.json.decode(tail, type=dict[str, Any])
        found = format_fingerprint(fields).hex()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FrameError(f"a format's fields can't be read: {error}") from None
    if found != fingerprint:
        raise FrameError("the fields are not those of the member's format")
    return fields


def choose_version(offered: Sequence[int], spoken: Sequence[int] = VERSIONS) -> int | None:
    """The highest version that both sides speak."""
    return max(set(offered) & set(spoken), default=None)
