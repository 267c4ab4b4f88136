"""The agent's PID 1: three probes, a latch that only closes, and nothing of the network but those three paths."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from replica import wait_for

from kvpool_agent import supervisor, worker
from kvpool_agent.heartbeat import Beat
from kvpool_agent.supervisor import MAX_PROBES, REQUEST_BYTES, Probes, Supervisor, parse

WAIT = 10.0


@pytest.fixture
def probes() -> Iterator[Probes]:
    made = Probes("127.0.0.1", 0)
    made.start()
    yield made
    made._socket.close()


def ask(probes: Probes, request: bytes) -> bytes:
    """All bytes of the answer."""
    with socket.create_connection(probes._socket.getsockname(), timeout=WAIT) as sock:
        sock.sendall(request)
        answer = b""
        while data := sock.recv(4096):
            answer += data
    return answer


def status(probes: Probes, path: str) -> int:
    answer = ask(probes, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) == len(body)
    return int(answer.split(b" ")[1])


def beat(probes: Probes, line: bytes) -> None:
    options = parse(["--config", "x", "--run-dir", "y"])
    Supervisor(options, probes)._beat(line)


def test_each_probe_answers_by_what_the_worker_has_said(probes: Probes) -> None:
    assert [status(probes, path) for path in ("/startedz", "/readyz", "/livez")] == [503, 503, 200]
    beat(probes, b'{"ready": false}')
    assert [status(probes, path) for path in ("/startedz", "/readyz", "/livez")] == [200, 503, 200]
    beat(probes, b'{"ready": true}')
    assert [status(probes, path) for path in ("/startedz", "/readyz", "/livez")] == [200, 200, 200]


def test_ready_is_a_latch(probes: Probes) -> None:
    beat(probes, b'{"ready": true}')
    beat(probes, b'{"ready": false}')
    assert status(probes, "/readyz") == 200


def test_the_last_beat_is_handed_to_the_next_worker_as_it_came(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def spawn(command: list[str], **_: object) -> subprocess.Popen[bytes]:
        commands.append(command)
        return real([sys.executable, "-c", "pass"])

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", spawn)
    made = Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)
    made._run_worker()
    first = Beat(True, "Ready(warm)", "", 7)
    for line in (
        b'{"ready": false}',
        first.encode().encode(),
        b"[1]",
        b"nonsense",
        b"\xff",
        "{}".encode("utf-16"),
        b'{"x": "' + b"x" * 5000 + b'"}',
    ):
        made._beat(line)
    made._run_worker()
    last = [command[command.index("--last-beat") + 1] for command in commands]
    assert last == ["", first.encode()]
    assert [worker.parse(command[3:]).restarted for command in commands] == [False, True]
    assert [Beat.decode(worker.parse(command[3:]).last_beat) for command in commands] == [Beat(False), first]


@pytest.mark.parametrize(
    ("line", "beat"),
    [
        ("", Beat(False)),
        ("{", Beat(False)),
        ("7", Beat(False)),
        ('{"ready": true}', Beat(True)),
        ('{"ready": 1, "state": 2, "reason": null, "blocks": "x", "later": {}}', Beat(False)),
        ('{"ready": true, "state": "s", "reason": "r", "blocks": 3}', Beat(True, "s", "r", 3)),
    ],
)
def test_a_beat_of_another_version_is_read_as_far_as_it_goes(line: str, beat: Beat) -> None:
    assert Beat.decode(line) == beat
    assert Beat.decode(beat.encode()) == beat


IMPORTING = """
import runpy, sys, time

class Barrier:
    def find_spec(self, name, path=None, target=None):
        if name == "kvpool_agent.supervisor":
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Barrier())
runpy.run_module("kvpool_agent", run_name="__main__")
"""


def test_it_can_be_ended_before_it_has_imported_anything() -> None:
    with subprocess.Popen([sys.executable, "-c", IMPORTING], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"importing\n"
        process.terminate()
        try:
            assert process.wait(WAIT) == 0  # by a handler: without one it would be the signal
        finally:
            process.kill()


def test_a_worker_whose_heartbeat_stops_is_killed(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.05)
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.write(writing, b'{"ready": true}\n')
    try:
        Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)._listen(reading, process)
        assert process.wait(WAIT) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)
    assert probes.latched


def test_a_worker_that_is_too_slow_to_start_has_longer_the_next_time(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "LONGEST_START_SECONDS", 0.3)
    one = Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)
    patience = []
    for _ in range(4):
        reading, writing = os.pipe()
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        patience.append(one._first_beat_seconds)
        try:
            one._listen(reading, process)
            assert process.wait(WAIT) == -signal.SIGKILL
        finally:
            os.close(reading)
            os.close(writing)
    assert patience == [0.05, 0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b'{"drain": 2.5}', 2.5),
        (b'{"drain": "9"}', 0.0),
        (b'{"drain": 1e9}', 0.0),
        (b'{"drain": NaN}', 0.0),
        (b"{}", 0),
    ],
)
def test_a_worker_that_hands_over_has_the_time_that_it_has_said(
    probes: Probes, monkeypatch: pytest.MonkeyPatch, line: bytes, seconds: float
) -> None:
    waited: list[float] = []
    made = Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)
    made._beat(line)

    class Worker:
        def wait(self, timeout: float) -> int:
            waited.append(timeout)
            return 0

        def terminate(self) -> None:
            """Told to end."""

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Worker())
    made._run_worker()  # it has ended by itself
    made.stop()
    made._run_worker()
    assert waited == [supervisor.STOP_SECONDS, supervisor.STOP_SECONDS + seconds]


def test_a_worker_that_is_being_started_when_all_is_to_end_is_told_so(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    made = Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)

    class Worker:
        def __init__(self, *_: object, **__: object) -> None:
            made.stop()  # as a signal that comes while the process is made

        def wait(self, _timeout: float) -> int:
            return 0

        def terminate(self) -> None:
            told.append("to end")

    monkeypatch.setattr(subprocess, "Popen", Worker)
    made._run_worker()
    assert told == ["to end"]


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", json.dumps({"other": 1}).encode()])
def test_a_beat_that_cannot_be_read_changes_no_latch(probes: Probes, line: bytes) -> None:
    beat(probes, line)
    assert not probes.latched


@pytest.mark.parametrize(
    "request_line",
    [b"GET / HTTP/1.1", b"GET /readyz/ HTTP/1.1", b"POST /readyz HTTP/1.1", b"GET /readyz", b"\xff\xfe", b""],
)
def test_anything_else_is_not_found(probes: Probes, request_line: bytes) -> None:
    beat(probes, b'{"ready": true}')
    assert ask(probes, request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 404 ")


def test_a_request_that_never_ends_is_answered_at_its_limit(probes: Probes) -> None:
    assert ask(probes, b"G" * REQUEST_BYTES).startswith(b"HTTP/1.1 404 ")


def test_connections_that_say_nothing_keep_no_place(probes: Probes) -> None:
    for _ in range(2 * MAX_PROBES):
        with socket.create_connection(probes._socket.getsockname(), timeout=WAIT):
            pass
    request = b"GET /livez HTTP/1.1\r\n\r\n"
    wait_for("an answer", lambda: ask(probes, request).startswith(b"HTTP/1.1 200 "), WAIT, 0.01)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_engine_is_not_held_back_for_ever_by_a_worker_that_never_lives() -> None:
    clock = Clock()
    probes = Probes("127.0.0.1", 0, clock)
    paths = [f"GET {path} HTTP/1.1".encode() for path in ("/startedz", "/readyz")]

    def answers() -> list[str]:
        return [probes.answer(path)[0][:3] for path in paths]

    clock.now += supervisor.STARTED_SECONDS - 1
    assert answers() == ["503", "503"]
    clock.now += 1
    assert answers() == ["200", "503"]
    clock.now = 1000.0 + supervisor.READY_SECONDS
    assert answers() == ["200", "200"]
    probes._socket.close()


def test_a_worker_that_lives_and_is_not_ready_holds_the_pod_back() -> None:
    clock = Clock()
    probes = Probes("127.0.0.1", 0, clock)
    for _ in range(100):
        clock.now += supervisor.READY_SECONDS / 2
        probes.beat(ready=False)
        assert probes.answer(b"GET /readyz HTTP/1.1")[0].startswith("503")
    probes._socket.close()


def test_a_worker_that_cannot_be_started_is_tried_again(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Supervisor(parse(["--config", "x", "--run-dir", "y"]), probes)
    tries = []

    def fails(*_: object, **__: object) -> None:
        tries.append(1)
        if len(tries) == 3:
            made.stop()
        raise BlockingIOError("no process left")

    monkeypatch.setattr(supervisor, "BACK_OFF", (0.0,))
    monkeypatch.setattr(supervisor.subprocess, "Popen", fails)
    made.run()
    assert len(tries) == 3
