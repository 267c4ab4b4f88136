"""What a request is: the front end's question over a real socket, the agent's judgement, and the folded salt."""

import base64
import dataclasses
import itertools
import json
import socket
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tenant_keys import sign_claim

from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import EnginePort
from kvpool_agent.flows.requests import RequestNames
from kvpool_agent.keyring import Keyring
from kvpool_client import front
from kvpool_client.engine_vllm import requests
from kvpool_client.front import CLAIM, DEFAULT, NOBODYS, Front, Verdict, fold
from kvpool_contract.config import AgentConfig, CacheNamespace, Members, Tls

GATEWAY, NOW = b"g" * 32, 1_700_000_000.0
MARK = "kvpool_mark"
TENANTS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "tenants.md"


class Agent:
    """The agent's side: `acme` (of the tenant acme-inc) is held, `umbrella` is another pod's."""

    def __init__(self, folder: Path, mode: str) -> None:
        for name, key in (("public", b"p" * 32), ("acme", b"a" * 32), ("gateway", GATEWAY)):
            (folder / name).write_bytes(base64.b64encode(key))
        spaces = (
            CacheNamespace(name="public", keyFile=str(folder / "public")),
            CacheNamespace(name="acme", tenant="acme-inc", keyFile=str(folder / "acme"), memoryPercent=10),
            CacheNamespace(name="umbrella", keyFile=str(folder / "umbrella"), memoryPercent=10),
        )
        config = AgentConfig(
            version=1, pool="chat", arenaBytes=1 << 20, members=Members(file="x"), tls=Tls(mode="Disabled"),
            cacheNamespaces=spaces, requestNamespace=mode,
            gatewayKeyFile=str(folder / "gateway") if mode == "Signed" else "",
        )  # fmt: skip
        self.account = Account()
        names = RequestNames(Keyring(config, ("acme",)), self.account, lambda: NOW)
        self.path = str(folder / "engine.sock")
        self.port = EnginePort(Path(self.path), None, names.session)  # type: ignore[arg-type]
        self.port.start()
        self.front = Front(self.path)

    def counted(self) -> dict[str, int]:
        return {k: v for k, v in self.account.counters.items() if k != "request_namespaces"}


@pytest.fixture
def agent(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(front, "ANSWER_SECONDS", 30.0)  # an answer is what these tests are about, not how soon it comes
    made = Agent(tmp_path, request.param)
    yield made
    made.port.close()


@pytest.mark.parametrize("agent", ["TrustGateway"], indirect=True)
def test_a_trusted_gateway_names_tenants_and_what_this_pod_may_not_use_is_no_error(agent: Agent) -> None:
    judge = agent.front.judge
    assert [judge(claim) for claim in (None, "acme-inc", "public", "stranger")] == [
        DEFAULT, Verdict("acme"), DEFAULT, DEFAULT,
    ]  # fmt: skip
    assert agent.counted() == {"namespace_unknown": 1}
    # the engine keeps it from all others, the pool has nothing of it
    assert judge("umbrella") == Verdict("umbrella")
    assert agent.counted() == {"namespace_unknown": 1, "namespace_without_key": 1}
    assert [judge(claim) for claim in ("", "No Name", "x" * 600, 7, {"a": 1})] == [NOBODYS] * 5
    assert agent.counted()["claim_malformed"] == 2


@pytest.mark.parametrize("agent", ["Signed"], indirect=True)
def test_only_the_gateway_can_say_whose_a_request_is(agent: Agent) -> None:
    judge, until = agent.front.judge, int(NOW) + 60
    assert judge(sign_claim(GATEWAY, "chat", "acme-inc", until)) == Verdict("acme")
    assert judge(None) == DEFAULT
    attacks = {
        "acme-inc": "claim_malformed",
        sign_claim(b"x" * 32, "chat", "acme-inc", until): "claim_forged",
        sign_claim(GATEWAY, "chat", "acme-inc", int(NOW) - 1): "claim_expired",
        sign_claim(GATEWAY, "chat", "acme-inc", int(NOW) + 7200): "claim_too_long",
        sign_claim(GATEWAY, "elsewhere", "acme-inc", until): "claim_forged",
    }
    expected: dict[str, int] = {}
    for claim, word in attacks.items():
        assert judge(claim) == NOBODYS
        expected[word] = expected.get(word, 0) + 1
        assert agent.counted() == expected


def gateway_of_the_page(key_file: Path) -> dict[str, Any]:
    """What the page's example defines, with its key in this file and its clock at NOW."""
    _, _, section = TENANTS_PAGE.read_text().partition("### A gateway\n")
    code = section.partition("```python\n")[2].partition("```")[0]
    assert "/etc/gateway/kvpool-key" in code
    defined: dict[str, Any] = {}
    exec(code.replace("/etc/gateway/kvpool-key", str(key_file)), defined)
    defined["time"] = types.SimpleNamespace(time=lambda: NOW)
    return defined


@pytest.mark.parametrize("agent", ["Signed"], indirect=True)
def test_what_the_pages_gateway_sends_is_taken_for_its_tenants(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(base64.b64encode(b"x" * 32))
    of_a_client = {"prompt": "p", "kv_transfer_params": {"other": 1, CLAIM: "umbrella"}}
    for key, verdict, counted in (("gateway", Verdict("acme"), {}), ("other", NOBODYS, {"claim_forged": 1})):
        gateway = gateway_of_the_page(tmp_path / key)
        sent = json.loads(gateway["to_engine"](json.dumps(of_a_client).encode(), "acme-inc"))
        assert agent.front.judge(sent["kv_transfer_params"].pop(CLAIM)) == verdict
        assert sent == {"prompt": "p", "kv_transfer_params": {"other": 1}}
        assert agent.counted() == counted


@pytest.mark.parametrize("agent", ["Ignore"], indirect=True)
def test_where_claims_are_ignored_every_request_is_of_the_default_one(agent: Agent) -> None:
    assert [agent.front.judge(claim) for claim in ("acme-inc", "umbrella")] == [DEFAULT, DEFAULT]


@pytest.mark.parametrize("agent", ["TrustGateway"], indirect=True)
def test_an_answer_is_known_for_a_second_and_an_agent_that_is_gone_costs_one_question(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        assert agent.front.judge("acme-inc") == Verdict("acme")
    assert agent.account.counters["request_namespaces"] == 1
    agent.port.close()
    monkeypatch.setattr(front, "KNOWN_SECONDS", 0.0)
    agent.front._known.clear()
    assert agent.front._channel is not None
    agent.front._channel.close()
    dialled: list[str] = []
    monkeypatch.setattr(Front, "_connected", lambda self: dialled.append("once") or _gone())
    assert [agent.front.judge("acme-inc") for _ in range(9)] == [NOBODYS] * 9
    assert len(dialled) <= 1


def _gone() -> Any:
    raise ConnectionRefusedError


@pytest.mark.parametrize("agent", ["TrustGateway"], indirect=True)
def test_an_agent_that_was_started_anew_is_asked_at_once(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "KNOWN_SECONDS", 0.0)
    assert agent.front.judge("acme-inc") == Verdict("acme")
    assert agent.front._channel is not None
    agent.front._channel.shut()  # as after its worker's end
    assert agent.front.judge("acme-inc") == Verdict("acme")


def test_an_agent_that_says_nothing_is_waited_for_shortly_and_once_a_second(tmp_path: Path) -> None:
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen(1)
        asking = Front(path)
        assert asking.judge("acme") == NOBODYS
        resting_until = asking._not_before
        assert resting_until > time.monotonic()
        assert [asking.judge(f"t{n}") for n in range(50)] == [NOBODYS] * 50
        assert asking._not_before == resting_until  # nobody was asked meanwhile


def test_no_two_requests_of_different_namespaces_or_salts_have_the_same_salt() -> None:
    verdicts = [
        (DEFAULT, ""),
        (Verdict("a"), ""),
        (Verdict("ab"), ""),
        (Verdict("apart"), ""),
        (NOBODYS, "a"),
        (NOBODYS, "b"),
    ]
    salts = [None, "", "b", "ab", "\0", "kvpool:", "in", "apart"]
    folded = [fold(verdict, claim, salt) for (verdict, claim), salt in itertools.product(verdicts, salts)]
    # whoever folds by hand, and sends the outcome as a salt of their own, gets another one
    again = [fold(DEFAULT, "", salt) for salt in folded if salt is not None and salt.startswith("kvpool:")]
    every = folded + again
    assert len(set(every)) == len(every)
    assert [fold(DEFAULT, "", salt) for salt in (None, "", "mine")] == [None, "", "mine"]


def engine_request(parameters: object, salt: str | None = None, **rest: Any) -> Any:
    extra = {"kv_transfer_params": parameters, **rest} if parameters is not None else rest or None
    return types.SimpleNamespace(sampling_params=types.SimpleNamespace(extra_args=extra), cache_salt=salt)


@pytest.mark.parametrize("agent", ["TrustGateway"], indirect=True)
def test_the_tier_is_told_by_the_front_end_alone(agent: Agent) -> None:
    request = engine_request({CLAIM: "acme-inc", "other": 1, MARK: "in:umbrella"}, "s", kept=2)
    requests.settle(agent.front, MARK, request)
    assert request.sampling_params.extra_args == {"kept": 2, "kv_transfer_params": {"other": 1, MARK: "in:acme"}}
    assert request.cache_salt == fold(Verdict("acme"), "", "s")

    forged = engine_request({MARK: "in:acme"})
    requests.settle(agent.front, MARK, forged)
    assert (forged.sampling_params.extra_args, forged.cache_salt) == ({"kv_transfer_params": {}}, None)

    for parameters in (None, {}, {"other": 1}, "text", [1]):
        plain = engine_request(parameters)
        before = plain.sampling_params.extra_args
        requests.settle(agent.front, MARK, plain)
        assert (plain.sampling_params.extra_args, plain.cache_salt) == (before, None)
    pooled = types.SimpleNamespace(sampling_params=None, cache_salt=None)
    requests.settle(agent.front, MARK, pooled)
    assert pooled.cache_salt is None


def test_no_text_of_a_request_is_an_error() -> None:
    half = "\ud800"
    salts = {fold(Verdict("a"), half, half), fold(NOBODYS, half, None), fold(DEFAULT, "", front.FOLDED + half)}
    assert len(salts) == 3


def test_an_engine_whose_requests_cannot_be_settled_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Processor:
        vllm_config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={requests.MARK_FIELD: MARK})
        )

        def process_inputs(self, request: Any) -> Any:
            return request

    module = types.ModuleType("vllm.v1.engine.input_processor")
    module.InputProcessor = Processor  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    requests.install("/nowhere")
    broken = [Processor().process_inputs(types.SimpleNamespace(cache_salt="s", sampling_params=5)) for _ in range(2)]
    assert [one.cache_salt for one in broken] == ["s", "s"]  # of no claim, as it came

    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(requests, "settle", fails)
    salts = {Processor().process_inputs(types.SimpleNamespace(cache_salt="s")).cache_salt for _ in range(3)}
    assert len(salts) == 3 and "s" not in salts


def test_a_verdict_can_be_told_from_every_other() -> None:
    told = [verdict.marked for verdict in (DEFAULT, NOBODYS, Verdict("apart"), Verdict("in"), Verdict("a"))]
    assert len(set(told)) == len(told)
    assert [front.namespace_of(mark) for mark in told[2:]] == ["apart", "in", "a"]
    assert dataclasses.replace(NOBODYS) == NOBODYS
