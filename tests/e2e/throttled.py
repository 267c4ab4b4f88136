"""A link whose speed is the test's: what it passes on is paced, and the pace can change while it runs."""

import contextlib
import socket
import threading
import time

CHUNK = 64 << 10
CATCH_UP_SECONDS = 0.001  # so much of a sleep that took too long is made up for


class ThrottledLink:
    """Passes connections on to `port` of this machine. What comes back from there is paced at `bytes_per_second`, all
    connections together; 0: it is not."""

    def __init__(self, port: int, bytes_per_second: float = 0.0) -> None:
        self.bytes_per_second = bytes_per_second
        self.passed = 0
        self._target = ("127.0.0.1", port)
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                asker, _ = self._listener.accept()
                source = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [asker, source]
            threading.Thread(target=self._pass, args=(asker, source, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(source, asker, True), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, paced: bool) -> None:
        room = memoryview(bytearray(CHUNK))
        with contextlib.suppress(OSError):
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while size := one.recv_into(room):
                if paced:
                    self._wait(size)
                other.sendall(room[:size])
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        with self._lock:
            self.passed += size
            rate, now = self.bytes_per_second, time.monotonic()
            if not rate:
                return
            self._free_at = max(self._free_at, now - CATCH_UP_SECONDS) + size / rate
            pause = self._free_at - now
        if pause > 0:
            time.sleep(pause)
