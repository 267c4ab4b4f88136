"""What the API server said is asked for again when it may have changed, and not before."""

import threading
from collections import Counter
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from kvpool_operator.controller.cluster import Cluster, Document, Entries
from kvpool_operator.controller.known import SPREAD, Known
from kvpool_operator.desired.spaces import KEYS_SECRET

KEY, GOOD_SECONDS = ("a", "chat"), 60.0
CONFIG_MAP = {"kind": "ConfigMap", "metadata": {"namespace": "a", "name": "chat-kvpool"}}
SERVICE = {"kind": "Service", "metadata": {"namespace": "a", "name": "chat-kvpool"}}
ENTRIES = Entries(frozenset({"chat.default"}), ours=True, version="1")


class Server:
    """Counts what it is asked; `pool` is what it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: Counter[str] = Counter()
        self.now = 1000.0
        self.pool: Document | None = pool()
        self.refusal: Exception | None = None
        self.during: Any = lambda: None  # happens while an answer is on its way
        for name in ("read_pool", "read", "pods", "apply", "write_status", "secret_entries", "add_entries"):
            monkeypatch.setattr(Cluster, name, self._answer(name))
        monkeypatch.setattr(Cluster, "__init__", lambda _: None)
        self.known = Known(GOOD_SECONDS, lambda: self.now)

    def _answer(self, name: str) -> Any:
        def answer(_: Cluster, *given: Any) -> Any:
            self.asked[name] += 1
            answers = {"read_pool": self.pool, "read": CONFIG_MAP, "pods": ["a pod"], "secret_entries": ENTRIES}
            found = {**given[0], "status": given[1]} if name == "write_status" else answers.get(name)
            self.during()
            if self.refusal and name in ("apply", "write_status", "add_entries"):
                raise self.refusal
            return found

        return answer

    def a_pass(self) -> "Counter[str]":
        """What a pass asks that finds nothing to do."""
        before = self.asked.copy()
        if self.known.read_pool(KEY) is not None:
            for wanted in (CONFIG_MAP, SERVICE):
                self.known.read(wanted)
            assert self.known.secret_entries("a", KEYS_SECRET) is ENTRIES
            self.known.pods(KEY)
        return self.asked - before

    def sees(self, gone: bool = False, **changes: Any) -> bool:
        return self.known.pool_seen(KEY, pool(**changes), gone=gone)


def pool(**changes: Any) -> Document:
    return {"metadata": {"namespace": "a", "name": "chat", "uid": "1", "generation": 1, **changes}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


ALL = {"read_pool": 1, "read": 2, "secret_entries": 1, "pods": 1}


def test_a_second_pass_asks_nothing_until_what_is_known_is_old(server: Server) -> None:
    assert server.a_pass() == ALL
    server.now += GOOD_SECONDS * (1 - SPREAD) - 1
    assert server.a_pass() == {}
    server.now += SPREAD * GOOD_SECONDS + 2
    assert server.a_pass() == ALL


def test_a_pod_that_changes_makes_the_pods_be_read_and_nothing_else(server: Server) -> None:
    server.a_pass()
    server.known.pods_seen(("a", "other"))
    assert server.a_pass() == {}
    server.known.pods_seen(KEY)
    assert server.a_pass() == {"pods": 1}


@pytest.mark.parametrize("change", [{"generation": 2}, {"uid": "2"}, {"deletionTimestamp": "now"}])
def test_a_pool_that_changes_is_read_with_its_objects(server: Server, change: dict[str, Any]) -> None:
    server.a_pass()
    assert server.sees(**change)
    assert server.a_pass() == {"read_pool": 1, "read": 2, "secret_entries": 1}


def test_a_pool_that_is_gone_is_news_and_nothing_of_it_is_kept(server: Server) -> None:
    server.a_pass()
    assert server.sees(gone=True)
    server.pool = None
    assert server.a_pass() == {"read_pool": 1}
    server.pool = pool(uid="2")
    assert server.sees(uid="2")
    assert server.a_pass() == ALL


def test_the_own_status_is_no_news_and_the_next_one_replaces_it(server: Server) -> None:
    server.a_pass()
    written = server.known.write_status(pool(), {"phase": "Ready"})
    assert not server.sees(resourceVersion="2")
    assert server.known.read_pool(KEY) is written
    assert server.asked["read_pool"] == 1


def test_a_status_that_was_refused_makes_the_pool_be_read(server: Server) -> None:
    server.a_pass()
    server.refusal = ApiException(status=409)
    with pytest.raises(ApiException):
        server.known.write_status(pool(), {})
    assert server.a_pass() == {"read_pool": 1}


@pytest.mark.parametrize("refusal", [None, ApiException(status=500)])
def test_an_object_that_was_applied_is_read_again(server: Server, refusal: Exception | None) -> None:
    server.a_pass()
    server.refusal = refusal
    try:
        server.known.apply(SERVICE)
    except ApiException as error:
        assert error is refusal
    assert server.a_pass() == {"read": 1}


@pytest.mark.parametrize("refusal", [None, ApiException(status=409)])
def test_keys_that_were_written_are_looked_for_again(server: Server, refusal: Exception | None) -> None:
    server.a_pass()
    server.refusal = refusal
    for k8s_namespace, asked in (("other", {}), ("a", {"secret_entries": 1})):
        try:
            server.known.add_entries(k8s_namespace, KEYS_SECRET, {}, ENTRIES)
        except ApiException as error:
            assert error is refusal
        assert server.a_pass() == asked


def test_an_answer_that_was_on_its_way_when_a_watch_spoke_is_not_kept(server: Server) -> None:
    def speaks() -> None:
        teller = threading.Thread(target=lambda: (server.known.pods_seen(KEY), server.sees(generation=2)))
        teller.start()
        teller.join()

    server.during = speaks
    server.a_pass()
    server.during = lambda: None
    assert server.a_pass() == ALL
    assert server.a_pass() == {}
