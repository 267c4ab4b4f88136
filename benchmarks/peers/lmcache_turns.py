"""LMCache's server (lm://) on the loopback address, asked with its own protocol's messages.

    lmcache_turns.py SIZE COUNT    (blocks of SIZE bytes)

Bytes land by `recv_into` in memory that is there already, which is more than LMCache's own client does for itself.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

os.environ.update(LMCACHE_LOG_LEVEL="ERROR", LMCACHE_DISABLE_BANNER="1", LMCACHE_TRACK_USAGE="false")
answers = os.dup(1)  # what it prints while it is imported is not for the reader of the answers
os.dup2(2, 1)

import torch  # noqa: E402
import turns  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.protocol import (  # noqa: E402
    ClientCommand,
    ClientMetaMessage,
    ServerMetaMessage,
    ServerReturnCode,
)


def connect(port: int) -> socket.socket:
    until = time.monotonic() + 60
    while True:
        try:
            made = socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made


def main(size: int, count: int) -> None:
    port = turns.free_port()
    program = Path(sys.executable).parent / "lmcache_server"
    server = subprocess.Popen(
        [str(program), "127.0.0.1", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        connection = connect(port)
        header = memoryview(bytearray(ServerMetaMessage.packlength()))
        memory = memoryview(bytearray(count * size))
        nothing, shape = torch.Size([0, 0, 0, 0]), torch.Size([1, 1, 1, size])

        def receive(view: memoryview) -> None:
            done = 0
            while done < len(view):
                done += connection.recv_into(view[done:])

        def ask(command: ClientCommand, i: int, length: int = 0, of: torch.Size = nothing) -> None:
            key = CacheEngineKey("m", 1, 0, i, torch.uint8)
            message = ClientMetaMessage(command, key, length, MemoryFormat(1), torch.uint8, of)
            connection.sendall(message.serialize())

        def told() -> ServerMetaMessage:
            receive(header)
            message = ServerMetaMessage.deserialize(bytes(header))
            if message.code != ServerReturnCode.SUCCESS:
                raise SystemExit(f"LMCache answered {message.code}")
            return message

        for i in range(count):
            ask(ClientCommand.PUT, i, size, shape)
            connection.sendall(turns.block(i, size))
            ask(ClientCommand.EXIST, i)  # a PUT has no answer
            told()

        def get() -> None:
            for i in range(count):
                ask(ClientCommand.GET, i)
                if told().length != size:
                    raise SystemExit("LMCache gave no block")
                receive(memory[i * size : (i + 1) * size])

        get()
        for i in range(count):
            turns.check(i, memory[i * size : (i + 1) * size])
        os.dup2(answers, 1)
        turns.answer({"lmcache lm://": get}, [server.pid])
    finally:
        server.kill()
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
