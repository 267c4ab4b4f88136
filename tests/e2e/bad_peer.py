"""A peer in the test's process, on raw sockets: honest but for what a test makes it do.

Its blocks are those that the stand-in engine would compute, so that an honest one serves any prompt that it knows.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

from agent_pool import block_name
from replica import Pool
from standin_engine import block_bytes, engine_keys, prompt
from trusted import credentials, server_context

from kvpool_agent.peer import frames
from kvpool_agent.store.tag import tag_of
from kvpool_contract.names import BLOCK_KEY_BYTES

ROW = 4096
WAIT = 20.0
# (peer, socket, the frame's message, its tail) → nothing; raises OSError to end the connection
Answer = Callable[["BadPeer", socket.socket, frames.AnyMessage, bytes], None]


class BadPeer:
    """`answers`: what it does instead of the honest thing, by kind of message. `ended` is set when it is closed."""

    def __init__(
        self, fingerprint: str, pool: Pool, member: str = "bad-uid", port: int = 0, row_bytes: int = ROW
    ) -> None:
        """pool: whose agents take it for a member."""
        self._context = server_context(credentials(pool, member)) if pool.tls else None
        self.fingerprint, self.member, self.incarnation, self.row_bytes = fingerprint, member, "0", row_bytes
        self.answers: dict[type[frames.AnyMessage], Answer] = {}
        self.data: dict[bytes, bytes] = {}
        self.fetches = 0
        self.ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="bad-peer", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def knows(self, name: str, blocks: int) -> list[int]:
        """Gives it the blocks of a prompt, which is returned."""
        tokens = prompt(name, blocks)
        self.knows_tokens(tokens)
        return tokens

    def knows_tokens(self, tokens: Sequence[int]) -> None:
        for engine_key in engine_keys(tokens):
            self.data[block_name(engine_key, self.fingerprint)] = block_bytes(engine_key, self.row_bytes)

    def close(self) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Ends all connections; new ones are taken."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    # -- the wire ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), name="bad-peer-connection", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        self._open.add(sock)
        try:
            with sock, contextlib.suppress(OSError, frames.FrameError):
                if self._context is not None:
                    self._open.discard(sock)
                    sock = self._context.wrap_socket(sock, server_side=True)
                    self._open.add(sock)
                while True:
                    header, tail = frames.decode_lengths(read(sock, frames.LENGTHS.size))
                    message = frames.decode(read(sock, header))
                    self.answers.get(type(message), honest)(self, sock, message, read(sock, tail))
        finally:
            self._open.discard(sock)

    def welcome(self, version: int = 1) -> bytes:
        told = frames.Welcome(version, self.member, self.incarnation, "Ready(warm)", self.fingerprint, len(self.data))
        return frames.encode(told)

    def block(self, index: int, key: bytes, data: bytes | None = None, tag: bytes = b"") -> bytes:
        """A block frame: the right one where nothing else is said."""
        content = self.data[key] if data is None else data
        return frames.encode(frames.Block(index, tag or tag_of(key, memoryview(content))), len(content)) + content


def honest(peer: BadPeer, sock: socket.socket, message: frames.AnyMessage, tail: bytes) -> None:
    """What a good peer answers."""
    keys = keys_in(tail)
    match message:
        case frames.Hello() | frames.Ping():
            sock.sendall(peer.welcome())
        case frames.Locate():
            sock.sendall(frames.encode(frames.Located(), len(keys)) + bytes(key in peer.data for key in keys))
        case frames.Hot():
            sock.sendall(frames.encode(frames.HotList()))
        case frames.Describe():
            sock.sendall(frames.encode(frames.Described()))
        case frames.Fetch():
            peer.fetches += 1
            for index, key in enumerate(keys):
                sock.sendall(peer.block(index, key))
            sock.sendall(frames.encode(frames.FetchEnd()))


def keys_in(tail: bytes) -> Sequence[bytes]:
    return [tail[i : i + BLOCK_KEY_BYTES] for i in range(0, len(tail), BLOCK_KEY_BYTES)]


def read(sock: socket.socket, length: int) -> bytes:
    """Exactly so many bytes. Raises OSError at the end of the connection."""
    data = b""
    while len(data) < length:
        got = sock.recv(length - len(data))
        if not got:
            raise ConnectionError("closed by the other side")
        data += got
    return data
