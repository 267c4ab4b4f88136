"""The fidelity canary: when a prompt is asked for, what is asked of the engine, and what follows from its answers."""

import math
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from replica import wait_for
from standin_http import serve_http

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.distrust import Distrust
from kvpool_agent.flows import canary
from kvpool_agent.flows.canary import CanaryFlow, waiting
from kvpool_agent.flows.request import Request, beginning
from kvpool_agent.policy.boundary import NO_LIMIT, Blocks
from kvpool_agent.policy.fidelity import TOLERATED, judge, variation
from kvpool_client.groups import FULL, WINDOW, Group
from kvpool_client.samples import CANARY, Samples, canary_of, packed, unpacked
from kvpool_contract.config import AgentConfig, Canary, Engine, Members, Tls
from kvpool_contract.external import STORE

KEY, OWN = b"k" * 16, b"o" * 16
TOKENS = [5, 6, 7, 8]
A, B = "10.0.0.1:7700", "10.0.0.2:7700"


def logs(**chances: float) -> dict[str, float]:
    return {token: math.log(chance) for token, chance in chances.items()}


# -- the policy ----------------------------------------------------------------------------------------


def test_the_variation_is_half_of_the_differences_and_a_token_that_one_side_lacks_is_as_likely_as_its_least() -> None:
    assert variation(logs(a=0.6, b=0.4), logs(a=0.6, b=0.4)) == 0
    assert variation(logs(a=0.6, b=0.4), logs(a=0.5, b=0.5)) == pytest.approx(0.1)
    assert variation(logs(a=0.6, b=0.1), logs(a=0.6, c=0.1)) == 0, "either may be the other's twenty-first"
    assert variation(logs(a=0.6, b=0.3), logs(a=0.6, c=0.1)) == pytest.approx(0.1)
    assert variation(logs(a=1.0), logs(b=1.0)) == 0, "one token each says nothing of others"
    assert variation({"a": -9999.0, "b": 0.0}, {"a": -9999.0, "b": 0.0}) == 0


def test_an_answer_differs_beyond_what_is_tolerated_and_beyond_what_the_engine_differs_from_itself() -> None:
    right, near, far = logs(a=0.5, b=0.5), logs(a=0.5 + TOLERATED * 0.9, b=0.5), logs(a=0.503, b=0.497)
    assert not judge(right, right, right).differs
    assert not judge(near, right, right).differs
    assert judge(far, right, right).differs
    noisy = judge(far, logs(a=0.498, b=0.502), right)
    assert (noisy.variation, noisy.noise) == (pytest.approx(0.003), pytest.approx(0.002))
    assert not noisy.differs
    assert judge(logs(a=0.52, b=0.48), logs(a=0.498, b=0.502), right).differs


# -- the client ----------------------------------------------------------------------------------------


def test_a_prompt_is_told_once_by_the_plan_that_asked_for_it_and_up_to_what_was_asked() -> None:
    samples = Samples()
    samples.ended("r", TOKENS)
    assert (samples.known, samples.take("r", 3)) == (False, b"")
    samples.want("r", 3, 2)
    samples.ended("other", [1, 2, 3])
    assert samples.take("other", 3) == b""
    samples.ended("r", TOKENS)
    assert unpacked(samples.take("r", 3)) == TOKENS[:2]
    assert samples.take("r", 3) == b""
    samples.want("r", 4, 2)
    samples.ended("r", TOKENS)
    assert samples.take("r", 5) == b"", "it made way for another, and went on by another plan"
    samples.forget()
    assert not samples.known


def test_only_a_text_marks_the_agents_own_request() -> None:
    assert [canary_of(p) for p in (None, {}, {CANARY: 1}, {CANARY: "m"})] == ["", "", "", "m"]


# -- the flow ------------------------------------------------------------------------------------------


class Bench:
    """A flow beside an engine whose answers are given: `answers` says the likeliest tokens for each request, by its
    place and salt; None for no answer."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.asked: list[dict[str, Any]] = []
        self.metrics = ""
        self.dropped: list[bytes] = []
        self.answers: Callable[[int, str], dict[str, float] | None] = lambda _n, _salt: logs(a=0.5, b=0.5)
        self.cached: dict[int, int] = {}  # where it is another number than it should be, by the request's place
        self.http = serve_http(("127.0.0.1", 0), lambda: self.metrics, self._complete)
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        self.account = Account()
        members = SimpleNamespace(all=lambda: [_member(A, "a"), _member(B, "b")])
        self.distrust = Distrust(members)  # type: ignore[arg-type]
        self.config = AgentConfig(
            version=1, pool="p", arenaBytes=1 << 20, members=Members(file="m"), tls=Tls(mode="Disabled"),
            engine=Engine(port=int(self.http.server_address[1])), canary=Canary(intervalSeconds=seconds),
        )  # fmt: skip
        slab: Any = SimpleNamespace(number=0, arena=SimpleNamespace(drop=self.dropped.append))
        self.slab = slab
        self.flow = CanaryFlow(lambda: self.config, lambda: [slab], self.distrust, self.account)
        self.account.computed_elsewhere(KEY, A)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any] | None:
        place, salt = len(self.asked), body.get("cache_salt", "")
        computed = salt and all(one.get("cache_salt") != salt for one in self.asked)
        self.asked.append(body)
        held = self.cached.get(place, 0 if computed else len(TOKENS))
        self.flow.held(body["kv_transfer_params"][CANARY], held)
        found = self.answers(place, salt)
        return None if found is None else {"choices": [{"logprobs": {"top_logprobs": [found]}}]}

    def wants(self, *keys: bytes, plan: int = 1) -> int:
        """Of a request that goes on from these blocks, each of as many tokens as the prompt has."""
        request, hits = full(*(keys or (KEY,)))
        return self.flow.wants(self, plan, self.slab, request, hits)

    def compare(self) -> Any:
        """One comparison; the status after it."""
        before = self.flow.snapshot()
        ended = before.same + before.differs + before.inconclusive + before.not_run
        assert wait_for("due", self.wants, 10, 0.01)
        self.flow.take(self, 1, packed(TOKENS))

        def now() -> Any:
            found = self.flow.snapshot()
            return found if found.same + found.differs + found.inconclusive + found.not_run > ended else None

        return wait_for("compared", now, 30, 0.01)


def _member(address: str, uid: str) -> Any:
    return SimpleNamespace(address=address, welcome=SimpleNamespace(member=uid))


def full(*keys: bytes, tokens: int = len(TOKENS), window: int = 0) -> tuple[Request, list[list[int]]]:
    """A request of one group, with these blocks of so many tokens, and the hits that are all of them."""
    group = Group(0, WINDOW if window else FULL, window, tokens)
    return Request([Blocks(group, [True] * len(keys))], [keys], NO_LIMIT), [list(range(len(keys)))]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_prompt_is_asked_for_once_in_an_interval_and_only_with_other_members_blocks(bench: Bench) -> None:
    assert not bench.wants(OWN)
    bench.account.computed_elsewhere(OWN, STORE)
    assert not bench.wants(KEY, OWN), "nobody could be told to be the cause"
    bench.account.computed_elsewhere(OWN, "10.0.0.9:7700")
    assert not bench.wants(KEY, OWN), "who gave it is gone"
    assert not bench.flow.wants(bench, 1, bench.slab, full(KEY)[0], [[]])
    bench.config = Bench(0).config
    assert not bench.wants(), "0: none is compared"
    bench.config = Bench(3600).config
    assert bench.wants() == len(TOKENS)
    assert not bench.wants(), "not before the interval is over"
    bench.account.forget(A)
    assert bench.account.givers([KEY]) == {""}


def test_of_a_long_prompt_the_part_is_taken_that_can_be_gone_on_from() -> None:
    keys = [bytes([n]) * 16 for n in range(5)]
    assert beginning(*full(*keys, tokens=100), 500) == (500, keys)
    assert beginning(*full(*keys, tokens=100), 499) == (400, keys[:4])
    assert beginning(*full(*keys, tokens=100, window=200), 499) == (0, [])
    assert beginning(full(*keys)[0], [[]], 499) == (0, [])
    request, _ = full(*keys, tokens=100)
    assert beginning(request, [[2]], 499) == (300, keys[:3]), "what the engine itself holds before is a part of it"


def test_what_is_no_longer_asked_for_or_of_another_plan_is_not_compared(bench: Bench) -> None:
    bench.flow.take(bench, 1, packed(TOKENS))
    assert bench.wants(plan=7)
    for session, plan, tokens in ((bench, 8, TOKENS), (None, 7, TOKENS), (bench, 7, TOKENS[:2])):
        bench.flow.take(session, plan, packed(tokens))
    assert bench.asked == []
    with pytest.raises(ValueError, match="bytes"):
        bench.flow.take(bench, 7, b"abc")


def test_the_engine_is_asked_for_one_token_as_it_is_then_under_a_salt_of_nobodys_and_under_that_again(
    bench: Bench,
) -> None:
    assert bench.compare().state == "same"
    salts = [body.get("cache_salt", "") for body in bench.asked]
    assert salts[0] == "" != salts[1] == salts[2]
    for body in bench.asked:
        assert body["prompt"] == [*TOKENS, TOKENS[0]]
        assert (body["max_tokens"], body["logprobs"], body["temperature"]) == (1, 20, 0)
        assert body["kv_transfer_params"]["max_offload_tokens"] == 0
    bench.compare()
    assert bench.asked[4]["cache_salt"] != salts[1]
    assert bench.account.counters["canary_same"] == 2
    assert bench.dropped == []


def test_a_difference_that_is_found_twice_ends_loads_from_the_giver_and_drops_what_came_from_there(
    bench: Bench,
) -> None:
    other = b"x" * 16
    bench.account.computed_elsewhere(other, A)
    bench.account.computed_elsewhere(OWN, B)
    bench.answers = lambda _n, salt: logs(a=0.5, b=0.5) if salt else logs(a=0.6, b=0.4)
    status = bench.compare()
    assert (status.state, status.differs, status.distrusted) == ("differs", 1, ["a"])
    assert (status.variation, status.noise) == (pytest.approx(0.1), 0.0)
    assert len(bench.asked) == 6
    assert sorted(bench.dropped) == [KEY, other]
    breakers = Breakers(Account(), distrusts=bench.distrust.refuses)
    assert (breakers.usable(A), breakers.begin(A), breakers.view(A)[0]) == (False, False, "distrusted")
    assert (breakers.usable(B), breakers.view(B)[0], breakers.reason([A, B])) == (True, "closed", "distrusted")
    assert breakers.reason([B]) == "breaker_open"
    assert [event.word for event in bench.account.events] == ["canary_differs"]


def test_a_difference_that_is_found_once_is_no_difference(bench: Bench) -> None:
    bench.answers = lambda n, _salt: logs(a=0.5, b=0.5) if n else logs(a=0.6, b=0.4)
    assert bench.compare().state == "same"
    assert len(bench.asked) == 6
    assert bench.distrust.members == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_where_the_caches_hold_another_thing_nothing_is_concluded(bench: Bench, place: int) -> None:
    bench.cached[place] = 1
    bench.answers = lambda _n, salt: logs(a=0.5, b=0.5) if salt else logs(a=0.6, b=0.4)
    status = bench.compare()
    assert (status.state, status.inconclusive, status.distrusted) == ("inconclusive", 1, [])
    assert status.detail.startswith("1 tokens were in the engine's caches")
    assert len(bench.asked) == place + 1
    bench.cached[len(bench.asked)] = -1
    assert bench.compare().detail == "the engine's client did not say what its caches held"


def test_an_engine_without_an_answer_or_log_probabilities_is_named(bench: Bench) -> None:
    bench.answers = lambda _n, _salt: None
    status = bench.compare()
    assert (status.state, status.detail, status.not_run) == ("not_run", "the engine's port answered 404", 1)
    bench.answers = lambda _n, _salt: {}
    assert bench.compare().detail == "the engine's answer has no log-probabilities"
    bench.http.shutdown()
    bench.http.server_close()
    assert bench.compare().detail.startswith("no answer on the engine's port")
    assert bench.account.counters["canary_not_run"] == 3


def test_an_engine_whose_requests_wait_is_not_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "QUEUE_SECONDS", 0.0)
    bench.metrics = 'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
    status = bench.compare()
    assert (status.state, status.detail, bench.asked) == ("inconclusive", "the engine had a queue all the time", [])
    assert [waiting(page) for page in ("", "vllm:num_requests_waiting 0\n", "vllm:num_requests_waiting 1\n")] == [
        False, False, True,
    ]  # fmt: skip
    bench.metrics = ""
    assert bench.compare().state == "same"
