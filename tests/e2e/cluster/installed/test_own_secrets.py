"""A pool whose members prove themselves by a Secret of its user's, and whose cache namespaces go to pods by their
labels; what such a Secret may lack; and that no key is shown anywhere, after all of it."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from authority import Authority
from secret_search import search
from standin_engine import prompt

from cluster.chart import CONTROLLER, NAMESPACE, WEBHOOK, Chart
from cluster.disclosure import listening, operator_pods, private, shown
from cluster.engines import Member
from cluster.images import ENGINE_IMAGE
from cluster.installed.conftest import namespace
from cluster.kube import AGENT, wait_for
from cluster.standins import NAME, PORT, Served, StandIns, ask, pod, share
from kvpool_contract.names import PEER_PORT, SUPERVISOR_PORT, WORKER_PORT
from kvpool_contract.tenants import KEYS_FOLDER

BLOCKS = 4
TLS, KEY, MADE = "chat-members", "acme-kv", "kvpool-keys"
TENANT = {"gold": "acme", "silver": "umbrella"}  # by the label of pods
SPEC = {
    "transport": {"tls": {"mode": "Secret", "secretRef": {"name": TLS}}},
    "cacheNamespaces": [
        {"name": "public"},
        {
            "name": "acme",
            "podSelector": {"matchLabels": {"tier": "gold"}},
            "keySecretRef": {"name": KEY},
            "quota": {"memoryPercent": 30},
        },
        {"name": "umbrella", "podSelector": {"matchLabels": {"tier": "silver"}}, "quota": {"memoryPercent": 30}},
    ],
    "requestNamespace": "TrustGateway",
}
OURS, ANOTHER = Authority("ours"), Authority("another")


@dataclass
class Pool:
    """Two pods of each label; `certificate` and `key` are those of their Secret."""

    home: StandIns
    uri: str
    certificate: bytes
    key: bytes

    def write(self, authorities: bytes) -> None:
        entries = {"tls.crt": self.certificate, "tls.key": self.key, "ca.crt": authorities}
        self._secret(TLS, "kubernetes.io/tls", {name: value for name, value in entries.items() if value})

    def _secret(self, name: str, kind: str, entries: dict[str, bytes]) -> None:
        data = {entry: base64.b64encode(value).decode() for entry, value in entries.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name}, "data": data}
        self.home.kubectl("apply", "-f", "-", stdin=json.dumps(secret))

    def create(self) -> None:
        self.write(OURS.certificate)
        self._secret(KEY, "Opaque", {"key": base64.b64encode(b"k" * 32)})
        self.home.declare(SPEC)
        wait_for("the key that nobody names", lambda: MADE in self.secrets(), 60)
        for tier in TENANT:
            for number in range(2):
                self.home.core.create_namespaced_pod(self.home.namespace, pod(f"{tier}-{number}", tier=tier))
        self.home.wait_ready(4)

    def secrets(self) -> set[str]:
        return {secret.metadata.name for secret in self.home.core.list_namespaced_secret(self.home.namespace).items}

    def of(self, tier: str) -> list[Member]:
        found = [member for member in self.home.members() if member.pod.name.startswith(tier)]
        return sorted(found, key=lambda member: member.pod.name)

    def certified(self) -> tuple[str, str]:
        """Reason and message of the pool's condition."""
        told = self.home.condition("CertificatesReady")
        return told.get("reason", ""), told.get("message", "")


@pytest.fixture(scope="module")
def pool(chart: Chart, request: pytest.FixtureRequest) -> Iterator[Pool]:
    with namespace(chart, request) as home:
        cluster = chart.core.read_namespace("kube-system").metadata.uid
        uri = f"kvpool://{cluster}/ns/{home.namespace}/pool/{NAME}"
        pool = Pool(home, uri, *OURS.leaf(uri))
        pool.create()
        yield pool


def test_members_prove_themselves_by_the_secret_of_their_user_and_share(pool: Pool) -> None:
    members = [*pool.of("gold"), *pool.of("silver")]
    first, *others = members
    share(first, others, "everybody's", BLOCKS)
    for member in members:
        status = member.status()
        tls = status.tls
        assert (tls.mode, tls.state, tls.reason, tls.name) == ("Files", "ok", "", pool.uri)
        assert status.counters.get("connections_in_clear", 0) == 0
    wait_for("the condition", lambda: pool.certified()[0] == "AllCertified", 60)
    assert pool.home.wait_status(phase="Ready", ready="4/4")["tls"] == "Secret"


def files(pool: Pool, member: Member, container: str) -> list[str]:
    """The key files in a container."""
    command = ("exec", member.pod.name, "-c", container, "--", "ls", KEYS_FOLDER)
    return sorted(pool.home.kubectl(*command, check=False).stdout.split())


def stored(member: Member, space: str) -> int:
    """Blocks of a cache namespace."""
    return next(found.blocks for found in member.status().cache_namespaces if found.name == space)


def test_pods_get_the_keys_of_their_labels_and_tenants_share_nothing_across_and_all_within(pool: Pool) -> None:
    tokens = prompt("everybody asks this", BLOCKS)
    before = {tier: [stored(member, "public") for member in pool.of(tier)] for tier in TENANT}
    for tier, tenant in TENANT.items():
        first, second = pool.of(tier)
        assert files(pool, first, AGENT) == sorted(["public", tenant])
        assert files(pool, first, "engine") == []
        for member in (first, second):
            assert [space.name for space in member.status().cache_namespaces] == ["public", tenant]
        assert ask(first.pod.address, tokens, tenant=tenant) == Served(computed=BLOCKS)
        wait_for("it is stored", lambda m=first, t=tenant: stored(m, t) == BLOCKS, 30)
        assert ask(second.pod.address, tokens, tenant=tenant) == Served(pool=BLOCKS)
        wait_for("it is stored", lambda m=second, t=tenant: stored(m, t) == BLOCKS, 30)
    # the other one's name opens nothing, and neither has put anything where all look
    for tier, others in (("gold", "umbrella"), ("silver", "acme")):
        for member in pool.of(tier):
            assert ask(member.pod.address, tokens, tenant=others) == Served(computed=BLOCKS)
            wait_for("why", lambda m=member: m.status().misses.get("not_authorised") == BLOCKS, 30)
            wait_for("it is counted", lambda m=member: m.status().counters.get("namespace_without_key") == 1, 30)
    assert {tier: [stored(member, "public") for member in pool.of(tier)] for tier in TENANT} == before
    share(pool.of("gold")[0], [pool.of("gold")[1], *pool.of("silver")], "everybody asks this", BLOCKS)


def test_a_secret_that_lacks_an_entry_or_is_of_another_authority_is_named_and_who_runs_goes_on(pool: Pool) -> None:
    first, second = pool.of("gold")
    pool.write(b"")
    pool.home.core.create_namespaced_pod(pool.home.namespace, pod("newcomer", tier="gold"))
    pool.home.wait_ready(5)
    (newcomer,) = pool.of("newcomer")
    status = newcomer.status()
    assert (status.state, status.reason) == ("Ready(degraded)", "no_certificate")
    assert (status.tls.state, status.tls.reason) == ("no_certificate", "certificate_files")
    lacks = "ca.crt can't be read: No such file or directory"
    wait_for("it is told", lambda: told_of(pool, lacks), 60)
    tokens = share(first, [second], "meanwhile", BLOCKS)
    assert ask(newcomer.pod.address, tokens) == Served(computed=BLOCKS)

    pool.write(ANOTHER.certificate)
    bring(newcomer, what="another")
    wait_for("it is told", lambda: told_of(pool, "tls.crt: it is by none of the authorities in"), 60)
    assert [member.status().tls.state for member in (first, second, newcomer)] == ["ok", "ok", "no_certificate"]

    pool.write(OURS.certificate)
    bring(*pool.home.members(), what="ours")
    wait_for("its certificate", lambda: newcomer.status().tls.state == "ok", 60)
    wait_for("the condition", lambda: pool.certified()[0] == "AllCertified", 60)
    share(first, [newcomer], "afterwards", BLOCKS)

    # under those that have a certificate it may go bad, too: they go on, and it is told
    pool.write(b"")
    bring(first, what="bad again")
    wait_for("it is told", lambda: (c := pool.certified())[0] == "CertificateNotUsed" and first.pod.name in c[1], 60)
    assert (first.status().tls.state, first.status().tls.reason) == ("ok", "certificate_files")
    share(first, [second], "with the last good one", BLOCKS)
    pool.write(OURS.certificate)
    bring(*pool.home.members(), what="ours again")
    wait_for("the condition", lambda: pool.certified()[0] == "AllCertified", 60)


def told_of(pool: Pool, sentence: str) -> bool:
    """Whether the pool's condition names the newcomer alone, with this."""
    reason, message = pool.certified()
    if (reason, sentence in message) == ("NoCertificate", True):
        return message.startswith("1 of 5: newcomer (")
    raise ValueError((reason, message))


def bring(*members: Member, what: str) -> None:
    """A kubelet looks after a pod that has changed at once, and brings the Secret as it is now. what: another one each
    time."""
    for member in members:
        member.kube.kubectl("annotate", "pod", member.pod.name, f"example.test/secret={what}", "--overwrite")


def test_pods_listen_at_the_documented_ports_and_no_others(chart: Chart, pool: Pool) -> None:
    for member in (pool.of("gold")[0], *pool.of("newcomer")):
        found = listening(pool.home, member.pod.name, AGENT)
        assert found == {"open": {PORT, PEER_PORT, SUPERVISOR_PORT, WORKER_PORT}, "loopback": set()}
    for name, container, ports in (
        (CONTROLLER, "controller", {"open": {8080, 8081}, "loopback": {8082}}),
        (WEBHOOK, "webhook", {"open": {8080, 9443}, "loopback": set()}),
    ):
        for each in operator_pods(chart, name):
            assert listening(chart, each, container) == ports


def keys(chart: Chart, pool: Pool) -> dict[str, bytes]:
    found = private(chart) | private(pool.home)
    assert {name.split()[0] for name in found} == {
        "kvpool-peers-authority/tls.key",
        "kvpool-peers-authority/authority-1.key",
        "kvpool-webhook-authority/authority-1.key",
        "kvpool-webhook-certificate/tls.key",
        f"{MADE}/{NAME}.public",
        f"{MADE}/{NAME}.umbrella",
        f"{KEY}/key",
        f"{TLS}/tls.key",
    }
    return found


def test_no_key_is_shown_anywhere_after_all_of_it(chart: Chart, pool: Pool) -> None:
    places = shown(chart, pool.home)
    assert search(places, keys(chart, pool)) == []
    logs = [place for place in places if place.startswith("log ")]
    assert {place.split("/")[0] for place in logs} == {f"log {NAMESPACE}", f"log {pool.home.namespace}"}
    assert all(places[place] for place in logs if not place.endswith(("/engine", "/kvpool-client")))


def test_a_key_that_is_let_out_is_found_where_it_is(chart: Chart, pool: Pool) -> None:
    secret, home = {"name": MADE, "key": f"{NAME}.umbrella"}, pool.home
    leak = {
        "name": "leak",
        "image": ENGINE_IMAGE,
        "command": ["python3", "-c", "import os; print(os.environ['KEY'])"],
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": secret}}],
    }
    spec = {"restartPolicy": "Never", "containers": [leak]}
    home.core.create_namespaced_pod(home.namespace, {"metadata": {"name": "leak"}, "spec": spec})
    read = home.core.read_namespaced_pod
    wait_for("it is written", lambda: read("leak", home.namespace).status.phase == "Succeeded", 60)
    made = home.core.read_namespaced_secret(MADE, home.namespace).data[f"{NAME}.public"]
    home.kubectl("create", "configmap", "leak", f"--from-literal=leak={made}")  # in base64 once more
    found = {(name.split(" ")[0], place) for name, place in search(shown(chart, home), keys(chart, pool))}
    assert found == {
        (f"{MADE}/{NAME}.umbrella", f"log {home.namespace}/leak/leak"),
        (f"{MADE}/{NAME}.public", f"objects {home.namespace}"),
    }
