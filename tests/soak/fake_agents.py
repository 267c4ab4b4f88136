"""One server that answers for every agent of the scale run, by the address that it was asked at.

What it says of each is a status document as a worker writes it; an agent may be told to be silent: its connections are
taken and never answered, which costs who asks more than a refusal does. It is a process of its own, told of everything
by lines on its standard input, so that what the run does besides makes no agent late.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from typing import Any

from kvpool_agent.peer import frames
from kvpool_contract.names import PEER_PORT, WORKER_PORT
from kvpool_contract.status import (
    VERSION,
    AgentStatus,
    Arena,
    EngineTokens,
    Event,
    Hits,
    Peer,
    Warm,
    encode_status,
)

WARM, WARMING = "Ready(warm)", "Warming"
FORMAT = "5ca1e" * 6
PEERS = [Peer(f"198.18.1.{n}:7700", True, f"{n:036d}", WARM, FORMAT, 1000, incarnation="1") for n in range(14)]
EVENTS = [Event(1.7e9 + n, "attached", {"blocks": n}) for n in range(20)]


class FakeAgents:
    """The run's side of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def know(self, uid: str, address: str, pool: str) -> None:
        """The agent of this pod is at this address from now on."""
        self._tell("know", uid, address, pool)

    def turn(self, uid: str, state: str) -> None:
        self._tell("turn", uid, state)

    def silence(self, uids: Iterable[str]) -> None:
        """Those that say nothing from now on; the others answer."""
        self._tell("silence", *uids)

    @property
    def asked(self) -> int:
        """How often anybody was asked."""
        with urllib.request.urlopen(f"http://127.0.0.1:{WORKER_PORT}/asked", timeout=20) as answer:
            return int(answer.read())

    def _tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()


class _Server:
    def __init__(self) -> None:
        self._uids: dict[str, str] = {}  # by address
        self._pools: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._silent: set[str] = set()
        self._asked = 0

    def told(self, words: list[str]) -> None:
        match words:
            case ["know", uid, address, pool]:
                self._uids[address], self._pools[uid] = uid, pool
            case ["turn", uid, state]:
                self._states[uid] = state
            case ["silence", *uids]:
                self._silent = set(uids)

    async def count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """How often anybody was asked, over HTTP."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            body = str(self._asked).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As an agent answers the controller at its peer port, in clear."""
        uid = self._uids.get(writer.get_extra_info("sockname")[0], "")
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            for answer in (frames.Welcome(frames.STATUS_VERSION, uid, "1", WARM, FORMAT, 1), frames.StatusTold()):
                header, _ = frames.decode_lengths(await reader.readexactly(frames.LENGTHS.size))
                await reader.readexactly(header)
                if uid in self._silent:
                    self._asked += 1
                    await reader.read()  # until whoever asked has given up
                    break
                tail = b"" if isinstance(answer, frames.Welcome) else self._status(uid)
                self._asked += bool(tail)
                writer.write(frames.encode(answer, len(tail)) + tail)
                await writer.drain()
        writer.close()

    def _status(self, uid: str) -> bytes:
        fields: dict[str, Any] = {"engine": "vllm", "model": "fake", "layout": "x" * 400}
        return encode_status(
            AgentStatus(
                version=VERSION, pool=self._pools.get(uid, ""), member=uid, incarnation="1",
                state=self._states.get(uid, WARM), reason="", attached=True, attaches=1, engine_healthy=True,
                format=FORMAT, format_fields=fields, arena=Arena(8 * 2**30, 2**30), warm=Warm(),
                hits=Hits(100, 20, 30), engine_tokens=EngineTokens(), transfers={}, misses={"never_published": 7},
                counters={f"counter_{n}": n for n in range(40)}, peers=PEERS, unknown_config_fields=[],
                started_at=time.time(), events=EVENTS,
            )
        )  # fmt: skip


async def _main() -> None:
    server = _Server()
    await asyncio.start_server(server.serve, "0.0.0.0", PEER_PORT, backlog=1024)
    await asyncio.start_server(server.count, "0.0.0.0", WORKER_PORT)
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        server.told(json.loads(line))


if __name__ == "__main__":
    asyncio.run(_main())
