"""How the controller asks an agent for its status at the peer port: the few frames of the peer protocol that it needs.

Frames are kvpool_agent.peer.frames', of which operator and agent share these alone. Sans-IO: the caller has the
connection, inside TLS or, where the pool has it disabled, in clear.
"""

import struct
from typing import Any

import msgspec

STATUS_VERSION = 4  # of the peer protocol, the first one with the question
CONTROLLER = "controller"  # as which it names itself; in its certificate it has no pod either
MAX_STATUS = 4 << 20  # bytes
_MAX_HEADER = 64 << 10
_LENGTHS = struct.Struct("!II")


class AskingError(ValueError):
    """The agent answers something else; the message says what."""


def question(pool: str) -> bytes:
    """All that is sent: a greeting and the question. The answers may be read after it."""
    hello = {"t": "hello", "versions": [STATUS_VERSION], "pool": pool, "member": CONTROLLER, "incarnation": CONTROLLER}
    return _frame(hello) + _frame({"t": "status"})


class Answer:
    """Takes what comes; `status` is the status' JSON once all of it is there, `member` who has answered."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.member = ""
        self.status: bytes | None = None

    def feed(self, data: bytes) -> bool:
        """Whether all has come. Raises AskingError."""
        self._data += data
        while self.status is None and (frame := self._next()) is not None:
            header, tail = frame
            match header.get("t"):
                case "welcome" if not self.member and isinstance(header.get("member"), str) and header["member"]:
                    self.member = header["member"]
                case "status_told" if self.member:
                    self.status = tail
                case "refused":
                    raise AskingError(f"it refuses: {str(header.get('reason'))[:80]}")
                case other:
                    raise AskingError(f"it answers with {str(other)[:40]!r}")
        return self.status is not None

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._data) < _LENGTHS.size:
            return None
        header_length, tail_length = _LENGTHS.unpack_from(self._data)
        if header_length > _MAX_HEADER or tail_length > MAX_STATUS:
            raise AskingError("it does not speak kvpool's protocol, or its status is longer than 4 MiB")
        end = _LENGTHS.size + header_length
        if len(self._data) < end + tail_length:
            return None
        try:
            header = msgspec.msgpack.decode(bytes(self._data[_LENGTHS.size : end]), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            raise AskingError("it does not speak kvpool's protocol") from None
        tail = bytes(self._data[end : end + tail_length])
        del self._data[: end + tail_length]
        return header, tail


def _frame(header: dict[str, Any]) -> bytes:
    data = msgspec.msgpack.encode(header)
    return _LENGTHS.pack(len(data), 0) + data
