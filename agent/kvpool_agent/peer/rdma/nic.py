"""The worker's end of an RDMA device's process: requests from any thread, each with a deadline.

A process that does not answer in time is killed. What it was reading may land until it is dead, so whoever waits for
bytes is told only then; where the kernel takes its time, `when_ended` says later that the memory is its owner's again.
"""

import concurrent.futures
import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar, cast

import msgspec

from kvpool_agent.peer.rdma import requests as say
from kvpool_agent.peer.rdma.node import system_devices
from kvpool_agent.peer.rdma.words import RdmaError
from kvpool_agent.store.memory import ArenaMemory

log = logging.getLogger("kvpool.rdma")

MODULE = "kvpool_agent.peer.rdma.process"
START_SECONDS = 60.0  # an interpreter, a driver, nothing of the arena yet
LOOK_SECONDS = 30.0
END_SECONDS = 5.0
Answer = TypeVar("Answer", bound=say.Request)


class NicLost(RdmaError):  # noqa: N818 - named for what has happened
    """The device's process is gone. `safe`: so is every queue pair, and nothing lands any more."""

    def __init__(self, reason: str, detail: str, *, safe: bool) -> None:
        super().__init__(reason, detail)
        self.safe = safe


def look() -> list[str]:
    """Names of the devices of this container. Raises RdmaError with the reason where there is none to use. Most nodes
    have none, and no process is started to find that out, minute by minute."""
    if not system_devices():
        raise RdmaError("rdma_no_device", "the node has no RDMA device")
    command = [sys.executable, "-m", MODULE, "--look"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LOOK_SECONDS, stdin=subprocess.DEVNULL)
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise RdmaError("rdma_process_ended", f"looking for devices took more than {LOOK_SECONDS:.0f} s") from None
    except (OSError, ValueError):
        raise RdmaError("rdma_process_ended", "looking for devices failed") from None
    if found["reason"]:
        raise RdmaError(found["reason"], found["detail"])
    return list(found["devices"])


class Nic:
    """One device and its process. `start` waits until it is open; raises RdmaError."""

    def __init__(self, name: str, arena: ArenaMemory) -> None:
        self.name = name
        self.seen = say.Seen(0, "", 0, 0, 0)
        self.in_flight, self.queue_pairs = 0, 0  # bytes, and pairs in use: counted by who shares the work out
        self._arena = arena
        self._lock = threading.Lock()
        self._waiting: dict[int, concurrent.futures.Future[say.AnyRequest]] = {}
        self._last = 0
        self._ended = threading.Event()
        self._after: list[Callable[[], None]] = []
        self._why: RdmaError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable, "-m", MODULE, "--device", self.name, "--arena-fd", str(self._arena.descriptor),
            "--arena-bytes", str(self._arena.size), "--control-fd", str(theirs.fileno()),
            *(["--huge-pages"] if self._arena.huge_pages else []),
        ]  # fmt: skip
        try:
            with theirs:
                passed = (self._arena.descriptor, theirs.fileno())
                self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        except OSError as error:
            ours.close()
            self._ended.set()
            raise RdmaError("rdma_process_ended", str(error)) from None
        self._control = ours
        future = self._expect(0)
        threading.Thread(target=self._listen, args=(ours, self._process), name="kvpool-nic", daemon=True).start()
        self.seen = self._result(future, say.Seen, START_SECONDS)

    def ask(self, request: Callable[[int], say.AnyRequest], answer: type[Answer], seconds: float) -> Answer:
        """Sends a request, made from its number, and waits for its answer. Raises RdmaError; NicLost where the process
        is gone."""
        with self._lock:
            self._last += 1
            number = self._last
        future = self._expect(number)
        self._send(request(number))
        return self._result(future, answer, seconds)

    def drop(self, link: int) -> None:
        """Ends a queue pair without waiting for it."""
        with contextlib.suppress(NicLost):
            self._send(say.Drop(-1, link))

    def look(self, seconds: float) -> None:
        """Takes over how it is; one that does not answer is killed. Raises RdmaError, also with what is wrong there."""
        self.seen = self.ask(say.Look, say.Seen, seconds)
        if self.seen.reason:
            raise RdmaError(self.seen.reason, self.seen.detail)

    def close(self, why: RdmaError | None = None) -> None:
        """why: told to those that wait for it."""
        self._why = self._why or why
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def when_ended(self, call: Callable[[], None]) -> None:
        """Calls it as soon as the process is dead: at once, or later from another thread."""
        with self._lock:
            if self.alive:
                self._after.append(call)
                return
        call()

    # -- inside --------------------------------------------------------------------------------------

    def _expect(self, number: int) -> concurrent.futures.Future[say.AnyRequest]:
        future: concurrent.futures.Future[say.AnyRequest] = concurrent.futures.Future()
        with self._lock:
            self._waiting[number] = future
        return future

    def _send(self, request: say.AnyRequest) -> None:
        if self._control is None or not self.alive:
            self._give_up("it has ended")
        try:
            self._control.send(say.encode(request))
        except OSError as error:
            self._give_up(str(error))

    def _result(self, future: concurrent.futures.Future[say.AnyRequest], kind: type[Answer], seconds: float) -> Answer:
        try:
            answer = future.result(seconds)
        except concurrent.futures.TimeoutError:
            self._give_up(f"no answer within {seconds:.1f} s")
        except concurrent.futures.CancelledError:
            self._give_up("it has ended")
        if isinstance(answer, say.Failed):
            raise RdmaError(answer.reason, answer.detail)
        if not isinstance(answer, kind):
            self._give_up(f"unexpected answer {type(answer).__name__}")
        return cast(Answer, answer)

    def _give_up(self, detail: str) -> NoReturn:
        """Kills the process. Raises NicLost when it is dead, or is taking long to die."""
        self.close()
        why = self._why or RdmaError("rdma_process_ended", detail)
        raise NicLost(why.reason, f"{self.name}: {why.detail or detail}", safe=self._ended.wait(END_SECONDS))

    def _listen(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while packet := control.recv(say.MAX_PACKET):
                answer = say.decode(packet)
                with self._lock:
                    future = self._waiting.pop(answer.number, None)
                if future is not None:
                    future.set_result(answer)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        with self._lock:
            self._ended.set()
            waiting, self._waiting = list(self._waiting.values()), {}
            after, self._after = self._after, []
        for future in waiting:
            future.cancel()
        for call in after:
            call()
        control.close()
        log.info("RDMA: the process of %s has ended with code %s", self.name, process.returncode)
