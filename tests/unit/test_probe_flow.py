"""What the probe says before and between its steps; how it runs is in tests/e2e/agent/test_probe.py."""

import ctypes
import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from replica import wait_for

from kvpool_agent.account import Account
from kvpool_agent.directory.members import Member
from kvpool_agent.flows import probe as probe_flow
from kvpool_agent.flows.probe import FIRST_TOKEN, SETTLED, TOKENS, ProbeFlow, prompt
from kvpool_agent.peer import frames
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_agent.store.tag import tag_of
from kvpool_contract.reasons import REASONS


def flow(*before: str) -> ProbeFlow:
    nobody: Any = None
    return ProbeFlow(1, nobody, nobody, Account(), lambda: None, before or ("", ""))  # type: ignore[arg-type]


def test_an_engine_that_an_earlier_worker_refused_is_refused_and_another_one_is_not() -> None:
    probe = flow("engine", "mismatch")
    assert (probe.refuses("engine"), probe.refuses("another")) == (True, False)
    assert probe.before_load(time.monotonic()) == "probe_mismatch"
    assert probe.withdrawn
    assert probe.verdict() == ("engine", "mismatch")


@pytest.mark.parametrize("state", ["", "pending", "nonsense"])
def test_what_is_no_verdict_is_not_taken_over(state: str) -> None:
    probe = flow("engine", state)
    assert probe.verdict() == ("", "")
    assert probe.before_load(time.monotonic()) == ""
    assert not probe.refuses("engine")


@pytest.mark.parametrize("state", sorted(set(SETTLED) - {"mismatch"}))
def test_with_any_other_verdict_blocks_are_loaded_and_published_at_once(state: str) -> None:
    probe = flow("engine", state)
    published: list[bool] = []
    probe.when_settled(published.append)
    assert (probe.before_load(time.monotonic()), published) == ("", [True])


def test_the_prompt_is_the_same_for_everybody_and_ends_beyond_its_block() -> None:
    assert prompt(4) == [300, 331, 424, 579, 796]
    long = prompt(256)
    assert len(long) == 257
    assert all(FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS for token in long)


def test_its_reasons_are_in_the_table() -> None:
    assert {"probe_mismatch", "probe_pending", "probe_not_run"} <= REASONS.keys()


ROW = 4096
FIELDS = {"block_tokens": 4, "kv_dtype": "float32"}
FORMAT = bytes(16)
KEY = b"k" * 16
OURS, THEIRS = struct.pack("<f", 1.5) * (ROW // 4), struct.pack("<f", -2.5) * (ROW // 4)


SERVERS: list[ThreadingHTTPServer] = []


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    while SERVERS:
        server = SERVERS.pop()
        server.shutdown()
        server.server_close()


class Engine:
    """Answers on its port with each status in turn, the last one for ever; with 200 its client stores the row."""

    def __init__(self, *statuses: int) -> None:
        self.asked: list[dict[str, Any]] = []
        self.flow: ProbeFlow | None = None
        self.slab: Slab | None = None
        left, engine = list(statuses), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                engine.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = left.pop(0) if len(left) > 1 else left[0]
                if status == 200:
                    engine.store(engine.asked[-1]["kv_transfer_params"]["kvpool_probe"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        SERVERS.append(self.server)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def store(self, token: str) -> None:
        assert self.flow is not None and self.slab is not None
        assert self.flow.expects(token)
        rows = self.flow.take(self.slab, [(KEY, lambda address: ctypes.memmove(address, OURS, ROW) and None)])
        assert rows is not None
        self.flow.keep(self.slab, rows)


class Others:
    """The other members and the way to them: what each has, None for one that is silent."""

    def __init__(self, **rows: bytes | None) -> None:
        self.rows: dict[str, bytes | None] = rows
        self.asked: list[str] = []

    def live(self, fingerprint: bytes) -> list[Member]:
        return [
            Member(name, True, frames.Welcome(1, name, "i", "Ready(warm)", fingerprint.hex(), 5)) for name in self.rows
        ]

    def settle(self, seconds: float) -> None:
        pass

    def fetch(self, address: str, fingerprint: bytes, keys: list[bytes], purpose: str, until: float, land: Any) -> None:
        assert (keys, purpose) == ([KEY], "probe")
        self.asked.append(address)
        row = self.rows[address]
        if row is None:
            raise PeerError("silent")
        if row:
            tag = tag_of(KEY, memoryview(row))
            land(0, tag, len(row), lambda view: view.__setitem__(slice(None), row))


class Bench:
    def __init__(self, engine: Engine, others: Others, expected: int = 1) -> None:
        self.refused = self.ended = 0
        self.slab = Slabs(ArenaMemory.anonymous(16 * ROW), 0.0).open(FORMAT, dict(FIELDS), ROW)
        directory: Any = others
        self.flow = ProbeFlow(engine.server.server_address[1], directory, directory, Account(), self._refuse)
        engine.flow, engine.slab = self.flow, self.slab
        self.flow.attached("engine", self.slab, self._end, expected)

    def _refuse(self) -> None:
        self.refused += 1

    def _end(self) -> None:
        self.ended += 1

    def state(self) -> str:
        wait_for("a verdict", lambda: self.flow.snapshot().state != "pending", 20, 0.005)
        return self.flow.snapshot().state

    def before_load(self) -> str:
        return self.flow.before_load(time.monotonic() + 5)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [(OURS, "same"), (struct.pack("<f", 1.501) * (ROW // 4), "close"), (THEIRS, "mismatch"), (b"", "alone")],
)
def test_one_request_and_one_comparison_give_the_verdict(row: bytes, verdict: str) -> None:
    engine, others = Engine(200), Others(b=row)
    bench = Bench(engine, others)
    assert bench.state() == verdict
    assert (len(engine.asked), others.asked) == (1, ["b"])
    assert (engine.asked[0]["prompt"], engine.asked[0]["max_tokens"]) == (prompt(4), 1)
    refused = verdict == "mismatch"
    wait_for("its consequence", lambda: (bench.refused, bench.ended) == (refused, refused), 20, 0.005)
    assert bench.flow.refuses("engine") is refused
    assert len(bench.flow.rows(bench.slab, [KEY])) == (not refused)
    # one slot holds its row, the one for the comparison is free again, and the arena's table knows of neither
    assert (bench.slab.arena.used_slots, len(bench.slab.arena)) == (1, 0)


def test_one_that_is_alone_compares_before_a_load_with_whoever_has_come() -> None:
    others = Others()
    bench = Bench(Engine(200), others)
    assert (bench.state(), bench.before_load()) == ("alone", "")
    others.rows["b"] = THEIRS
    assert bench.before_load() == "probe_mismatch"
    assert (bench.refused, bench.ended, bench.flow.snapshot().member) == (1, 1, "b")


def test_a_comparison_that_ends_in_a_fault_of_this_agents_own_is_made_again_before_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_descriptor(*_: Any) -> None:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Others, "fetch", no_descriptor)
        bench = Bench(Engine(200), Others(b=OURS))
        assert (bench.state(), bench.flow.snapshot().detail) == ("alone", "the comparison failed, see the agent's log")
    assert (bench.before_load(), bench.flow.snapshot().state) == ("", "same")


def test_of_a_member_that_does_not_answer_nothing_is_loaded_and_it_is_asked_once_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_flow, "AGAIN_SECONDS", 60.0)
    others = Others(b=None)
    bench = Bench(Engine(200), others)
    assert bench.state() == "alone"
    others.asked.clear()
    assert [bench.before_load() for _ in range(3)] == ["probe_pending"] * 3
    assert others.asked == ["b"]
    others.rows["c"] = OURS
    assert (bench.before_load(), bench.flow.snapshot().member) == ("", "c")


def test_a_member_whose_engine_could_not_be_asked_is_loaded_from_and_asked_once_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_flow, "AGAIN_SECONDS", 60.0)
    others = Others(b=b"")
    bench = Bench(Engine(200), others)
    assert bench.state() == "alone"
    others.asked.clear()
    assert [bench.before_load() for _ in range(3)] == [""] * 3
    assert others.asked == ["b"]


@pytest.mark.parametrize(
    ("statuses", "verdict", "detail"),
    [
        ((401,), "not_run", "the engine's port answered 401"),
        ((503, 503, 200), "same", ""),
        ((400,), "not_run", "the engine's port answered 400"),
    ],
)
def test_what_the_engines_port_answers(statuses: tuple[int, ...], verdict: str, detail: str) -> None:
    engine = Engine(*statuses)
    bench = Bench(engine, Others(b=OURS))
    assert (bench.state(), bench.flow.snapshot().detail, bench.before_load()) == (verdict, detail, "")
    assert len(engine.asked) == len(statuses)


def test_requests_do_not_wait_for_a_port_that_has_no_answer_to_give() -> None:
    """Until they come it may be one of an engine that is not up yet."""
    engine = Engine(*[503] * 500)
    bench = Bench(engine, Others(b=OURS))
    wait_for("it is asked again", lambda: len(engine.asked) > 1, 20, 0.005)
    assert bench.flow.snapshot().state == "pending"
    told: list[bool] = []
    bench.flow.when_settled(told.append)
    wait_for("what waits for the verdict is told", lambda: told == [True], 20, 0.005)
    assert (bench.before_load(), bench.state()) == ("", "not_run")
    assert bench.flow.snapshot().detail == "requests come, and the engine's port answered 503"


def test_of_a_model_whose_rows_cannot_be_compared_nobody_asks_the_engine() -> None:
    engine, others = Engine(200), Others(b=THEIRS)
    bench = Bench(engine, others, expected=0)
    assert (bench.state(), bench.flow.snapshot().detail) == ("not_run", probe_flow.NOTHING_WHOLE)
    assert (engine.asked, others.asked, bench.before_load()) == ([], [], "")


def test_an_engine_that_stores_nothing_of_it_has_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_flow, "STORED_SECONDS", 0.05)
    monkeypatch.setattr(Engine, "store", lambda self, token: None)
    bench = Bench(Engine(200), Others(b=OURS))
    assert (bench.state(), bench.flow.snapshot().blocks) == ("not_run", [])


def test_rows_that_were_let_go_at_first_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_flow, "STORED_SECONDS", 0.05)
    store, engine = Engine.store, Engine(200)
    monkeypatch.setattr(Engine, "store", lambda self, token: store(self, token) if len(self.asked) > 1 else None)
    bench = Bench(engine, Others(b=OURS))
    assert (bench.state(), len(engine.asked)) == ("same", 2)
