"""The session with the agent: attach, send, receive, notice the loss, attach again. Never on the engine's threads.

One thread connects, attaches and reads; one writes from a bounded queue, so that the engine's scheduler thread only
ever appends to it. An agent that is gone is a miss; when it is back the session attaches again by itself. Each
attach has a number, the epoch: a lease or a plan of another epoch is worth nothing.
"""

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvpool_client import wire
from kvpool_client.memory import ReadOnlyMapping

log = logging.getLogger("kvpool.client")

QUEUE_FRAMES = 1024
HANDSHAKE_SECONDS = 5.0
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
REFUSED_RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class Attached:
    """What the agent granted: its arena mapped read-only, slots of `slot_bytes` from address `arena.address`."""

    epoch: int
    arena: ReadOnlyMapping
    slot_bytes: int
    lease_seconds: float
    load_seconds: float


class Listener(Protocol):
    """Told by the session's reading thread."""

    def on_attached(self, attached: Attached) -> None: ...

    def on_event(self, frame: wire.Frame) -> None: ...

    def on_lost(self) -> None: ...


class Session:
    """Keeps one session open with the agent at `path`."""

    def __init__(
        self, path: str, attach_header: dict[str, Any], descriptors: Sequence[int], listener: Listener
    ) -> None:
        """attach_header: engine, format and geometry; descriptors: the host pool, read-only. Both are sent anew at
        every attach."""
        self._path = path
        self._header = {**attach_header, "verb": "attach", "versions": list(wire.VERSIONS)}
        self._descriptors = tuple(descriptors)
        self._listener = listener
        self._outbox: queue.Queue[tuple[int, dict[str, Any], bytes]] = queue.Queue(QUEUE_FRAMES)
        self._epochs = itertools.count(1)
        self._calls = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[wire.Frame | None]] = {}
        self._attached: Attached | None = None
        self._channel: wire.Channel | None = None
        self._closing = threading.Event()
        self._wanted = threading.Event()  # whether there shall be a session
        self._wanted.set()
        self._changing = threading.Lock()
        self._failures = 0  # since the last attach
        self._threads = [
            threading.Thread(target=self._run, name="kvpool-session", daemon=True),
            threading.Thread(target=self._write, name="kvpool-session-write", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def attached(self) -> Attached | None:
        """The current attach, or None."""
        return self._attached

    def post(self, header: dict[str, Any], tail: bytes = b"") -> bool:
        """Queues a frame for the current session; False when there is none or the queue is full. Never blocks."""
        attached = self._attached
        if attached is None:
            return False
        try:
            self._outbox.put_nowait((attached.epoch, header, tail))
        except queue.Full:
            return False
        return True

    def call(self, header: dict[str, Any], tail: bytes, seconds: float) -> wire.Frame | None:
        """Sends a frame and waits for its answer; None after `seconds`, or when the session is lost."""
        number = next(self._calls)
        box: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()
        self._waiting[number] = box
        try:
            if not self.post({**header, "call": number}, tail):
                return None
            return box.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return None
        finally:
            self._waiting.pop(number, None)

    def pause(self, attach_header: dict[str, Any]) -> None:
        """Ends the session at once; the next one begins after `resume`, with this header."""
        with self._changing:
            self._header = {**attach_header, "verb": "attach", "versions": list(wire.VERSIONS)}
            self._wanted.clear()
            self._attached = None
            channel = self._channel
        if channel is not None:
            channel.shut()

    def resume(self) -> None:
        """There shall be a session, as from the start on."""
        self._wanted.set()

    def leave(self) -> None:
        """Ends the session for good, without waiting for its threads."""
        self._closing.set()
        self._wanted.set()
        channel = self._channel
        if channel is not None:
            channel.shut()

    def close(self) -> None:
        """Ends the session and its threads."""
        self.leave()
        with contextlib.suppress(queue.Full):
            self._outbox.put_nowait((0, {}, b""))  # of no session: wakes the writer
        for thread in self._threads:
            if thread.is_alive():
                thread.join(HANDSHAKE_SECONDS + 1)

    def _run(self) -> None:
        while self._wanted.wait() and not self._closing.is_set():
            pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
            try:
                refused = self._session()
                if refused:
                    log.warning("kvpool: the agent refuses this engine: %s; it serves without the pool", refused)
                    pause = REFUSED_RETRY_SECONDS
            except (wire.WireError, OSError, KeyError, TypeError, ValueError) as error:
                self._failures += 1
                log.debug("kvpool: no session: %s", error)
            self._closing.wait(pause)

    def _session(self) -> str:
        """One session from connect to loss; returns the agent's reason when it refused."""
        with contextlib.closing(wire.Channel.dial(self._path, HANDSHAKE_SECONDS)) as channel:
            header = self._header
            channel.send(header, descriptors=self._descriptors)
            reply = channel.receive()
            if reply.verb == "refused":
                detail = str(reply.header.get("detail", ""))
                return f"{reply.header.get('reason', 'unknown')}{': ' * bool(detail)}{detail}"
            if reply.verb != "attached" or reply.header["version"] not in wire.VERSIONS:
                raise wire.WireError(f"no attach: the agent answered {reply.verb!r}")
            attached = self._accept(reply)
            channel.settimeout(None)
            self._failures = 0
            with self._changing:
                if self._header is not header:  # paused meanwhile: what was attached is out of date
                    attached.arena.close()
                    return ""
                self._channel, self._attached = channel, attached
            log.info("kvpool: attached to the agent (epoch %d)", attached.epoch)
            try:
                self._listener.on_attached(attached)
                while not self._closing.is_set():
                    frame = channel.receive()
                    box = self._waiting.get(frame.header.get("call", 0))
                    if box is not None:
                        box.put(frame)
                    else:
                        self._listener.on_event(frame)
            finally:
                self._attached = None
                self._channel = None
                for box in list(self._waiting.values()):
                    box.put(None)
                self._listener.on_lost()
                attached.arena.close()
        return ""

    def _accept(self, reply: wire.Frame) -> Attached:
        header = reply.header
        try:
            (descriptor,) = reply.descriptors
            arena = ReadOnlyMapping(descriptor, int(header["arena_bytes"]))
        finally:
            for one in reply.descriptors:
                os.close(one)
        return Attached(
            epoch=next(self._epochs),
            arena=arena,
            slot_bytes=int(header["slot_bytes"]),
            lease_seconds=float(header["lease_seconds"]),
            load_seconds=float(header["load_seconds"]),
        )

    def _write(self) -> None:
        while not self._closing.is_set():
            try:
                epoch, header, tail = self._outbox.get(timeout=0.5)
            except queue.Empty:
                continue
            attached, channel = self._attached, self._channel
            if attached is None or channel is None or attached.epoch != epoch:
                continue
            try:
                channel.send(header, tail)
            except wire.WireError:
                channel.shut()


def report_bare(path: str, reason: str, detail: str, seconds: float = 60.0) -> None:
    """Tells the agent that the engine starts without the pool, from a thread of its own, trying for `seconds`."""

    def deliver() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                with contextlib.closing(wire.Channel.dial(path, HANDSHAKE_SECONDS)) as channel:
                    channel.send({"verb": "bare", "reason": reason, "detail": detail[:500]})
                    channel.receive()
                    return
            except (OSError, wire.WireError):
                time.sleep(0.5)

    with contextlib.suppress(RuntimeError):  # the container has no thread left; the engine must start all the same
        threading.Thread(target=deliver, name="kvpool-bare", daemon=True).start()
