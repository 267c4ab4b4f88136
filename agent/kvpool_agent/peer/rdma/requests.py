"""What an agent's worker and the process of an RDMA device say to each other, each in one packet of a Unix socket."""

import msgspec

from kvpool_agent.peer.lending import End

MAX_PACKET = 128 << 10
MAX_SEGMENTS = 2048  # of one read


class Request(msgspec.Struct, tag_field="t"):
    """`number`: comes back in the answer."""

    number: int


class Look(Request, tag="look"):
    """How are you? Answered by Seen."""


class Register(Request, tag="register"):
    """Make these bytes of the arena a region with a key of its own. A region of the same slab before it, and all queue
    pairs on it, are gone first. Answered by Registered."""

    slab: int
    offset: int
    length: int


class Withdraw(Request, tag="withdraw"):
    """End a slab's region and the queue pairs on it. Answered by Done."""

    slab: int


class Create(Request, tag="create"):
    """Make a queue pair on a slab's region; the other end is told by Connect. Answered by Created."""

    slab: int


class Connect(Request, tag="connect"):
    """Tie a queue pair to its other end. Answered by Done."""

    link: int
    end: End


class Read(Request, tag="read"):
    """Read segments (address there, offset in the slab here, bytes) with the other side's key, within so many seconds.
    Answered by Done, or by Failed: then the queue pair is gone, and nothing lands any more."""

    link: int
    key: int
    segments: list[tuple[int, int, int]]
    seconds: float


class Drop(Request, tag="drop"):
    """End a queue pair. Answered by Done, also where there is none."""

    link: int


class Done(Request, tag="done"):
    pass


class Registered(Request, tag="registered"):
    """Where the slab lies in the process's memory, its key, and what registering took."""

    address: int
    key: int
    seconds: float


class Created(Request, tag="created"):
    link: int
    end: End


class Failed(Request, tag="failed"):
    """reason: a word of the contract's table."""

    reason: str
    detail: str = ""


class Seen(Request, tag="seen"):
    """Of the device: its address by GID, MTU in bytes, queue pairs open, bytes registered, and what is wrong with the
    port."""

    address: str
    mtu: int
    queue_pairs: int
    registered: int
    reason: str = ""
    detail: str = ""


AnyRequest = Look | Register | Withdraw | Create | Connect | Read | Drop | Done | Registered | Created | Failed | Seen
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(AnyRequest)


def encode(request: AnyRequest) -> bytes:
    return _encoder.encode(request)


def decode(packet: bytes) -> AnyRequest:
    """Raises msgspec.DecodeError."""
    return _decoder.decode(packet)
