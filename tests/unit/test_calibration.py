"""Calibration: what a new engine is asked, what is known by it before the first request, and what ends it."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from replica import wait_for
from standin_http import serve_http

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs
from kvpool_agent.flows.calibrate import LENGTHS, ROUNDS, Calibration
from kvpool_agent.flows.ready import ReadyFlow
from kvpool_agent.policy.readiness import DEGRADED, WARMING, Limits, Readiness
from kvpool_client.samples import canary_of
from kvpool_contract.calibration import Calibrated
from kvpool_contract.config import AgentConfig, Loading, Members, Tls

Mode = Literal["Measured", "Always", "Never"]
LONG = 600.0  # seconds that nobody waits for
WAIT = 30.0
PROMPTS = ROUNDS * len(LENGTHS)


class Bench:
    """A calibration beside an engine that answers as `answer` says, of a member whose warm-up has ended."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[int], dict[str, Any] | int | None] = lambda _tokens: {}
        self.going_on = threading.Event()  # where the engine waits before it answers
        self.going_on.set()
        self.http = serve_http(("127.0.0.1", 0), str, self._complete)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.account, self.costs, self.settled = Account(), Costs(), True
        self.healthy = True
        self.readiness = Readiness(Limits(LONG, LONG), 0.0)
        self.flow = self.made(int(self.http.server_address[1]))

    def made(self, port: int) -> Calibration:
        bench = self

        class Probe:
            @property
            def settled(self) -> bool:
                return bench.settled

        probe: Any = Probe()
        ready = ReadyFlow(self.readiness, self.account)
        return Calibration(port, lambda: self.healthy, probe, self.costs, ready, self.account)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any] | int | None:
        self.asked.append(body)
        self.going_on.wait(LONG)
        return self.answer(len(body["prompt"]))

    def lengths(self) -> list[int]:
        return [len(body["prompt"]) for body in self.asked]

    def begin(self, seconds: float = LONG, *, paused: bool = False, mode: Mode = "Measured") -> None:
        self.readiness.attached(0.0)
        self.flow.begin(
            AgentConfig(
                version=1, pool="p", arenaBytes=1 << 20, members=Members(file="m"), tls=Tls(mode="Disabled"),
                loading=Loading(mode=mode, calibrationSeconds=seconds), paused=paused,
            )
        )  # fmt: skip
        self.readiness.warmed("nothing_to_warm", 0.0)

    def ended(self) -> Calibrated:
        """What is told in the end, when the pod is ready."""
        wait_for("ready", lambda: self.readiness.ready, WAIT, 0.005)
        assert self.readiness.state == DEGRADED
        told = self.flow.snapshot()
        (event,) = [event for event in self.account.events if event.word == "calibrated"]
        assert (event.detail["ended_by"], event.detail["prompts"]) == (told.ended_by, told.prompts)
        assert self.account.counters.get("calibration_prompts", 0) == told.prompts
        return told

    def until_asked(self, requests: int) -> None:
        wait_for("asked", lambda: len(self.asked) == requests, WAIT, 0.005)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.going_on.set()
    made.http.shutdown()
    made.http.server_close()


def test_each_length_is_asked_for_twice_and_nothing_of_it_can_be_found_loaded_or_kept(bench: Bench) -> None:
    assert bench.costs.recompute(0, 1000) is None
    bench.begin()
    told = bench.ended()
    assert (told.ended_by, told.prompts, told.detail) == ("complete", PROMPTS, "")
    assert bench.lengths() == [*LENGTHS, *LENGTHS]
    assert len({body["cache_salt"] for body in bench.asked}) == PROMPTS
    for body in bench.asked:
        assert body["max_tokens"] == 1
        assert canary_of(body["kv_transfer_params"])
        assert body["kv_transfer_params"]["max_offload_tokens"] == 0
    assert bench.costs.recompute(0, 1000) is not None
    found = bench.costs.snapshot().recompute
    assert (found.count, found.longest) == (PROMPTS, LENGTHS[-1])
    assert bench.costs.outcomes() == {}, "nobody has waited for these"


def test_the_costs_of_tokens_are_known_by_it_without_what_every_answer_takes() -> None:
    costs = Costs(lambda: 1000.0)
    for tokens in LENGTHS * ROUNDS:
        costs.calibrated(tokens, 0.05 + tokens * 1e-3)
    assert costs.recompute(0, 1000) == pytest.approx(1.0, rel=0.03)
    assert costs.recompute(4000, 5000) == pytest.approx(1.0, rel=0.03)


def test_until_it_has_ended_a_warm_member_is_not_ready(bench: Bench) -> None:
    bench.going_on.clear()
    bench.begin()
    bench.until_asked(1)
    assert (bench.readiness.state, bench.flow.snapshot()) == (WARMING, Calibrated())
    bench.going_on.set()
    assert bench.ended().ended_by == "complete"


def test_a_request_ends_it_at_once_while_a_prompt_is_computed(bench: Bench) -> None:
    def answer(_tokens: int) -> dict[str, Any]:
        if len(bench.asked) == 2:
            bench.going_on.clear()
        return {}

    bench.answer = answer
    bench.begin()
    bench.until_asked(3)  # which the engine does not answer
    bench.flow.requested()
    told = bench.ended()
    assert (told.ended_by, told.prompts) == ("traffic", 2)
    assert bench.costs.snapshot().recompute.count == 2
    assert bench.lengths() == list(LENGTHS[:3])


def test_after_the_first_request_nothing_is_asked(bench: Bench) -> None:
    bench.flow.requested()
    bench.begin()
    assert bench.ended() == Calibrated(0, 0.0, "traffic")
    assert bench.asked == []


def test_before_the_probe_has_settled_nothing_is_asked_and_a_request_ends_that_too(bench: Bench) -> None:
    bench.settled = False
    bench.begin()
    assert bench.readiness.state == WARMING
    bench.flow.requested()
    assert bench.ended() == Calibrated(0, 0.0, "traffic")
    assert bench.asked == []


@pytest.mark.parametrize(
    ("settled", "healthy"), [(False, True), (True, False), (True, True)], ids=["of its probe", "at all", "of a prompt"]
)
def test_an_engine_without_an_answer_holds_the_pod_back_until_the_deadline_alone(
    bench: Bench, settled: bool, healthy: bool
) -> None:
    bench.going_on.clear()
    bench.settled, bench.healthy = settled, healthy
    bench.begin(0.1)
    told = bench.ended()
    assert (told.ended_by, told.prompts) == ("deadline", 0)
    assert len(bench.asked) <= (settled and healthy)  # on a busy machine the time may be over before the first one
    assert bench.costs.recompute(0, 1000) is None


def test_lengths_that_the_engine_does_not_take_are_left_out(bench: Bench) -> None:
    bench.answer = lambda tokens: 400 if tokens > LENGTHS[1] else {}
    bench.begin()
    told = bench.ended()
    assert (told.ended_by, told.prompts) == ("complete", 2 * ROUNDS)
    assert bench.lengths() == [*LENGTHS[:3], *LENGTHS[:2]]
    assert bench.costs.snapshot().recompute.longest == LENGTHS[1]


@pytest.mark.parametrize(("answer", "status"), [(None, 404), (400, 400), (401, 401)])
def test_an_engine_that_completes_nothing_is_named_and_its_pod_is_ready(
    bench: Bench, answer: int | None, status: int
) -> None:
    bench.answer = lambda _tokens: answer
    bench.begin()
    assert bench.ended() == Calibrated(0, 0.0, "no_answer", f"the engine's port answered {status}")
    assert len(bench.asked) == 1


def test_an_engine_that_ends_in_between_is_named_and_its_pod_is_ready(bench: Bench) -> None:
    bench.http.shutdown()
    bench.http.server_close()
    bench.begin()
    told = bench.ended()
    assert (told.ended_by, told.prompts) == ("no_answer", 0)
    assert told.detail.startswith("no answer on the engine's port")


def test_without_a_thread_the_pod_is_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(**_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("kvpool_agent.flows.calibrate.threading", SimpleNamespace(Thread=none_left))
    bench.begin()
    assert bench.ended() == Calibrated(0, 0.0, "no_answer", "the agent had no thread left")


@pytest.mark.parametrize("settled", [False, True], ids=["of its probe", "of a prompt"])
def test_it_ends_where_the_pod_has_not_waited_for_it(bench: Bench, settled: bool) -> None:
    bench.going_on.clear()
    bench.settled = settled
    bench.begin()
    if settled:
        bench.until_asked(1)
    bench.readiness.bare("probe_mismatch", 1.0)
    bench.going_on.set()
    wait_for("its end", lambda: bench.flow.snapshot().ended_by, WAIT, 0.005)
    told = bench.flow.snapshot()
    assert (told.prompts, told.ended_by, told.detail) == (settled, "deadline", "the pod turned ready before")
    assert (len(bench.asked), bench.readiness.reason) == (settled, "probe_mismatch")


def test_it_runs_from_its_beginning_to_its_end(bench: Bench) -> None:
    bench.going_on.clear()
    assert not bench.flow.running
    bench.begin()
    assert bench.flow.running
    bench.going_on.set()
    assert bench.ended().ended_by == "complete"
    wait_for("no more", lambda: not bench.flow.running, WAIT, 0.005)


@pytest.mark.parametrize(
    ("seconds", "paused", "mode", "latched", "bare"),
    [
        (0.0, False, "Measured", False, False), (LONG, True, "Measured", False, False),
        (LONG, False, "Measured", True, False), (LONG, False, "Always", False, False),
        (LONG, False, "Never", False, False), (LONG, False, "Measured", False, True),
    ],
)  # fmt: skip
def test_where_it_is_not_asked_for_nothing_is_asked_and_nobody_held_back(
    bench: Bench, seconds: float, paused: bool, mode: Mode, latched: bool, bare: bool
) -> None:
    bench.readiness = Readiness(Limits(LONG, LONG), 0.0, latched=latched)
    if bare:
        bench.readiness.bare("not_attached", 0.0)
    bench.flow = bench.made(int(bench.http.server_address[1]))
    bench.begin(seconds, paused=paused, mode=mode)
    assert bench.readiness.ready
    assert (bench.flow.snapshot(), bench.asked, bench.account.events) == (Calibrated(), [], [])
