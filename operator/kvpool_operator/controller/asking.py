"""One question to an agent's peer port: what is your status? A greeting and the question, two answers, and the
connection is over.

The frames are the peer protocol's (4 bytes header length, 4 bytes tail length, msgpack header, tail), of its version 4;
a test holds them equal to the agents' own. With TLS both sides show a certificate. Whether the agent's proves who it is
is judged by whoever asks and not by the handshake: an agent without a certificate must be able to say so.
"""

import asyncio
import contextlib
import ssl
import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from kvpool_contract.names import PEER_PORT
from kvpool_contract.status import StatusError

MAX_HEADER, MAX_ANSWER = 64 * 2**10, 4 * 2**20
VERSION = 4
WELCOME, ANSWER, REFUSED = "welcome", "status_told", "refused"
ASKER = "controller"
_LENGTHS = struct.Struct("!II")


@dataclass(frozen=True)
class Answered:
    """The status document, and the certificate (DER) that was shown with it, if any."""

    document: bytes
    certificate: bytes | None = None


def question(pool: str) -> bytes:
    """Both frames at once: what comes of the first is read before what comes of the second."""
    hello = {"t": "hello", "versions": [VERSION], "pool": pool, "member": ASKER, "incarnation": ASKER}
    headers = [msgspec.msgpack.encode(message) for message in (hello, {"t": "status"})]
    return b"".join(_LENGTHS.pack(len(header), 0) + header for header in headers)


async def ask_status(address: str, pool: str, context: ssl.SSLContext | None) -> Answered:
    """context: None where the agent speaks in clear. Raises OSError, EOFError or StatusError."""
    reader, writer = await asyncio.open_connection(address, PEER_PORT, ssl=context)
    try:
        writer.write(question(pool))
        await writer.drain()
        await _frame(reader, WELCOME)
        document = await _frame(reader, ANSWER)
        transport: Any = writer.get_extra_info("ssl_object")
        certificate = transport.getpeercert(binary_form=True) if transport is not None else None
    except ConnectionError:  # with bytes of ours unread it is a reset
        raise EOFError from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return Answered(document, certificate)


async def _frame(reader: asyncio.StreamReader, wanted: str) -> bytes:
    """The tail of the next frame, which must be this one."""
    header_length, tail_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if header_length > MAX_HEADER or tail_length > MAX_ANSWER:
        raise StatusError(f"its status is longer than {MAX_ANSWER} bytes")
    header = _decoded(await reader.readexactly(header_length))
    if header.get("t") == REFUSED:
        raise StatusError(f"it refuses: {str(header.get('reason'))[:80]}")
    if header.get("t") != wanted:
        raise StatusError("it gives no status; update the older of operator and agent")
    return await reader.readexactly(tail_length)


def _decoded(header: bytes) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(header, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise StatusError("its answer can't be read; update the older of operator and agent") from None
