"""The agent's PID 1: owns the probes, the readiness latch and the arena's memory; restarts the worker.

A sidecar that does not run makes its pod unready, so this process must not fail: standard library alone, and of the
network it parses GETs of three fixed paths, nothing else. A crash of the worker is a cache miss, not an outage.
"""

import argparse
import contextlib
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kvpool_agent.listen import listen
from kvpool_contract import core_dumps

log = logging.getLogger("kvpool.supervisor")

BEAT_SECONDS = 10.0
# within which a worker that was started beats: it imports and listens before. Where the node leaves it so little of a
# processor that it does not, the next one has twice as long, or none would ever come up
FIRST_BEAT_SECONDS, LONGEST_START_SECONDS = 30.0, 240.0
STOP_SECONDS = 5.0
MAX_DRAIN_SECONDS = 3600.0
BACK_OFF = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_SECONDS = 60.0
STARTED_SECONDS = 10.0  # a native sidecar's start holds the engine's back
READY_SECONDS = 60.0
REQUEST_BYTES = 1024
REQUEST_SECONDS = 1.0
MAX_PROBES = 16
MAX_BEAT = 4096  # a command line takes no text of any length


class Probes(threading.Thread):
    """Answers /startedz, /readyz and /livez. `started` and `latched` only ever become true."""

    def __init__(self, host: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="probes", daemon=True)
        self._socket = listen(host, port, 16)
        self._places = threading.BoundedSemaphore(MAX_PROBES)
        self.started = False
        self.latched = False
        self._clock = clock
        self._alive_at = clock()  # the worker's last beat, at first this container's start

    def beat(self, ready: bool) -> None:
        """The worker lives, and is ready or not."""
        self.started = True
        self._alive_at = self._clock()
        if ready and not self.latched:
            log.info("ready: latched for the life of this container")
            self.latched = True

    def give_way(self) -> None:
        """Lets the engine start, and the pod turn ready, where no worker lives: the engine then serves bare."""
        silent = self._clock() - self._alive_at
        if not self.started and silent >= STARTED_SECONDS:
            log.error("no worker has come up for %.0f s; the engine may start without it", silent)
            self.started = True
        if not self.latched and silent >= READY_SECONDS:
            log.error("no worker has lived for %.0f s; the pod may serve without it", silent)
            self.latched = True

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(0.1)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # the container has no thread left: answered here, since the pod hangs on it
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.settimeout(REQUEST_SECONDS)
                request = b""
                while b"\r\n" not in request and len(request) < REQUEST_BYTES:
                    data = connection.recv(REQUEST_BYTES - len(request))
                    if not data:
                        return
                    request += data
                status, text = self.answer(request)
                connection.sendall(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
                    f"Connection: close\r\n\r\n{text}".encode()
                )
        finally:
            self._places.release()

    def answer(self, request: bytes) -> tuple[str, str]:
        """(status line's rest, body) for the bytes that begin a request."""
        self.give_way()
        answers = {
            b"/startedz": (self.started, "started", "the worker has not opened its ports yet"),
            b"/readyz": (self.latched, "ready", "not ready yet"),
            b"/livez": (True, "alive", ""),
        }
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET" or words[1] not in answers:
            return "404 Not Found", "GET /startedz, /readyz or /livez\n"
        holds, yes, no = answers[words[1]]
        return ("200 OK", yes + "\n") if holds else ("503 Service Unavailable", no + "\n")


class Supervisor:
    """Runs the worker until told to stop."""

    def __init__(self, options: argparse.Namespace, probes: Probes) -> None:
        self._options = options
        self._probes = probes
        self._arena = os.memfd_create("kvpool-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._config = os.memfd_create("kvpool-config", os.MFD_CLOEXEC)  # what the last worker had in force
        self._identity = os.memfd_create("kvpool-identity", os.MFD_CLOEXEC)  # its certificate, while it has one
        self._member = os.environ.get("KVPOOL_MEMBER_UID") or f"local-{secrets.token_hex(4)}"
        self._stopping = False
        self._worker: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._last_beat = ""
        self._first_beat_seconds = FIRST_BEAT_SECONDS
        self._drain = 0.0  # seconds that a worker may take beyond STOP_SECONDS to hand over what it holds

    def stop(self, *_: object) -> None:
        self._stopping = True
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError):
                self._worker.terminate()

    def run(self) -> None:
        failures = 0
        while not self._stopping:
            began = time.monotonic()
            try:
                code = self._run_worker()
            except OSError as error:  # no process, no descriptor, no memory left: this one must stay all the same
                log.error("the worker can't be started: %s", error)
                code = -1
            if self._stopping:
                return
            failures = 0 if time.monotonic() - began > STEADY_SECONDS or code == 0 else failures + 1
            pause = BACK_OFF[min(failures, len(BACK_OFF) - 1)]
            log.warning("the worker ended with code %s; it is started again in %.1f s", code, pause)
            until = time.monotonic() + pause
            while time.monotonic() < until and not self._stopping:
                time.sleep(0.05)

    def _run_worker(self) -> int:
        """One worker's life; kills it when its heartbeat stops."""
        reading, writing = os.pipe()
        command = [
            sys.executable, "-m", "kvpool_agent.worker",
            "--config", str(self._options.config), "--run-dir", str(self._options.run_dir),
            "--bind", self._options.bind, "--peer-port", str(self._options.peer_port),
            "--worker-port", str(self._options.worker_port), "--member", self._member,
            "--arena-fd", str(self._arena), "--config-fd", str(self._config), "--beat-fd", str(writing),
            "--identity-dir", str(self._options.identity_dir), "--identity-fd", str(self._identity),
            *(["--restarted"] if self._starts else []), *(["--latched"] if self._probes.latched else []),
            "--last-beat", self._last_beat,
        ]  # fmt: skip
        self._starts += 1
        # by default the C library gives threads eight heaps for each core: hundreds of MiB on a large node
        environment = {"MALLOC_ARENA_MAX": "2", **os.environ}
        try:
            passed = (self._arena, self._config, self._identity, writing)
            self._worker = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL, env=environment)
        finally:
            os.close(writing)
        if self._stopping:  # told so while the worker was being started, which has not heard of it
            self.stop()
        try:
            self._listen(reading, self._worker)
            return self._end(self._worker, self._drain if self._stopping else 0.0)
        finally:
            os.close(reading)  # not before: a worker that is told to end and still beats would end in an error

    def _listen(self, reading: int, worker: subprocess.Popen[bytes]) -> None:
        """Follows the heartbeat until the pipe closes, it stops, or the supervisor is told to stop."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            last, patience = time.monotonic(), self._first_beat_seconds
            while not self._stopping:
                if selector.select(0.2):
                    data = os.read(reading, 4096)
                    if not data:
                        return
                    last, patience = time.monotonic(), BEAT_SECONDS
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._beat(line)
                elif time.monotonic() - last > patience:
                    log.error("the worker's heartbeat has stopped for %.0f s; it is killed", patience)
                    if patience != BEAT_SECONDS:
                        self._first_beat_seconds = min(2 * patience, LONGEST_START_SECONDS)
                    worker.kill()
                    return

    def _beat(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            text = line.decode()
            message = json.loads(text)
            if not isinstance(message, dict):
                return
            if len(text) <= MAX_BEAT:
                self._last_beat = text  # for the next worker, as it came
            drain = message.get("drain")
            if isinstance(drain, int | float) and 0 <= drain <= MAX_DRAIN_SECONDS:
                self._drain = float(drain)
            self._probes.beat(bool(message.get("ready")))

    @staticmethod
    def _end(worker: subprocess.Popen[bytes], drain: float) -> int:
        """drain: seconds that it has beside those for ending itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.wait(STOP_SECONDS + drain)
        worker.kill()
        return worker.wait()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kvpool_agent", description="kvpool's sidecar agent")
    parser.add_argument("--config", type=Path, required=True, help="agent.json, written by the operator or by hand")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the engine port's socket")
    parser.add_argument("--bind", default="", help="address to listen on; all of both families if it is empty")
    parser.add_argument("--peer-port", type=int, default=7700, help="port for other members")
    parser.add_argument("--supervisor-port", type=int, default=7701, help="port of /startedz, /readyz, /livez")
    parser.add_argument("--worker-port", type=int, default=7702, help="port of /status and /metrics")
    parser.add_argument(
        "--identity-dir",
        type=Path,
        default=Path("/kvpool/identity"),
        help="folder of the token (tls.mode Managed), or of tls.crt, tls.key and ca.crt (Files)",
    )
    return parser.parse_args(arguments)


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    options = parse(sys.argv[1:])
    core_dumps.forbid()
    probes = Probes(options.bind, options.supervisor_port)
    probes.start()
    supervisor = Supervisor(options, probes)
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, supervisor.stop)
    supervisor.run()
