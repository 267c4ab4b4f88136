"""Certificates on a real cluster: pods get theirs from the signer and share over TLS alone; without the signer what
runs goes on; and leaves and authorities change under load without a load that fails."""

import base64
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from secret_search import search

from cluster.chart import NAMESPACE, WEBHOOK, Chart
from cluster.disclosure import private, shown
from cluster.engines import Member
from cluster.installed.conftest import HOT_BLOCKS
from cluster.kube import wait_for
from cluster.standins import Served, StandIns, ask, share
from cluster.turns import load
from kvpool_contract.identity import ALPN, bundle_digest, parse_name
from kvpool_contract.names import PEER_PORT
from kvpool_operator.certificates.authority import new_authority
from kvpool_operator.certificates.peers import PeerSettings

BLOCKS = HOT_BLOCKS
SECRET = "kvpool-peers-authority"
LEAF_SECONDS = 480  # with five minutes of the past: renewed after about a minute
FOLLOWING_SECONDS = 240  # a kubelet brings a Secret or a ConfigMap into its pods within two minutes


def certified(standins: StandIns) -> tuple[str, str]:
    """What the pool's condition says of its certificates: status and reason."""
    told = standins.condition("CertificatesReady")
    return told.get("status", ""), told.get("reason", "")


def peers_bundle(standins: StandIns) -> bytes:
    found = standins.core.read_namespaced_config_map("chat-kvpool", standins.namespace)
    return str(found.data["peers-ca.crt"]).encode()


def test_members_get_their_certificates_from_the_signer_and_share_over_tls_alone(
    chart: Chart, lasting: StandIns, hot: list[int]
) -> None:
    first, second = lasting.members()
    assert ask(second.pod.address, hot) == Served(host=BLOCKS)
    cluster = chart.core.read_namespace("kube-system").metadata.uid
    for member in (first, second):
        tls = member.status().tls
        assert (tls.mode, tls.state, tls.reason) == ("Managed", "ok", "")
        name = parse_name(tls.name)
        assert (name.cluster, name.k8s_namespace, name.pool, name.pod) == (
            cluster, lasting.namespace, "chat", member.pod.uid,
        )  # fmt: skip
        assert tls.bundle == tls.authority == bundle_digest(peers_bundle(lasting))
        assert 0 < tls.not_after - time.time() <= 24 * 3600
        assert member.status().counters.get("connections_in_clear", 0) == 0
    wait_for("the condition", lambda: certified(lasting) == ("True", "AllCertified"), 60)
    told = lasting.wait_status(phase="Ready", ready="2/2")
    assert told["tls"] == "Managed"
    first_end = datetime.fromtimestamp(min(m.status().tls.not_after for m in (first, second)), UTC)
    assert told["certificatesExpire"] == first_end.strftime("%Y-%m-%dT%H:00:00Z")
    described = lasting.kubectl("describe", "kvp", "chat").stdout
    assert f"Certificates Expire: {told['certificatesExpire']}" in " ".join(described.split())

    # whoever has no certificate of the pool's is not answered, whatever it says first
    def refusals_so_far() -> int:
        return first.status().counters.get("tls_refused_peer_no_certificate", 0)

    refused = refusals_so_far()
    assert answered(first.pod.address, stranger()) == b""
    assert answered(first.pod.address, None) == b""
    wait_for("the refusal", lambda: refusals_so_far() == refused + 1, 30)


def stranger() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    return context


def answered(host: str, context: ssl.SSLContext | None) -> bytes:
    """What comes back on a connection that begins with a question."""
    with socket.create_connection((host, PEER_PORT), timeout=10) as plain:
        try:
            sock = context.wrap_socket(plain) if context else plain
            sock.sendall(b"\0\0\0\1\0\0\0\0x")
            return sock.recv(100)
        except OSError:
            return b""


def test_without_the_signer_what_runs_goes_on_and_a_newcomer_serves_alone_until_it_is_back(
    chart: Chart, lasting: StandIns, hot: list[int]
) -> None:
    first, second = lasting.members()
    copy = injected_copy(lasting, first)
    chart.scale_to(WEBHOOK, 0)
    try:
        # of the pods that run each still loads what the other computes
        tokens = share(first, [second], "meanwhile", BLOCKS)
        lasting.core.create_namespaced_pod(lasting.namespace, copy)
        (newcomer,) = (m for m in lasting.wait_ready(3) if m.pod.name == copy["metadata"]["name"])
        status = newcomer.status()
        assert (status.state, status.reason) == ("Ready(degraded)", "no_certificate")
        assert (status.tls.state, status.tls.reason) == ("no_certificate", "signer_unreachable")
        assert ask(newcomer.pod.address, tokens) == Served(computed=BLOCKS)
        wait_for("it is told", lambda: certified(lasting) == ("False", "NoCertificate"), 60)
        lasting.wait_status(phase="Degraded", ready="3/3")
    finally:
        chart.scale_to(WEBHOOK, 2)
    wait_for("its certificate", lambda: newcomer.status().tls.state == "ok", 180)
    share(first, [newcomer], "afterwards", BLOCKS)
    wait_for("all is well", lambda: certified(lasting) == ("True", "AllCertified"), 60)


def test_no_private_key_of_the_operators_is_shown_anywhere_after_it(chart: Chart, lasting: StandIns) -> None:
    keys = private(chart)
    assert any(name.startswith(f"{SECRET}/") for name in keys)
    assert search(shown(chart, lasting), keys) == []


def injected_copy(standins: StandIns, member: Member) -> dict[str, Any]:
    """A pod as people copy it out of a cluster: it needs no webhook any more."""
    found = json.loads(standins.kubectl("get", "pod", member.pod.name, "-o", "json").stdout)
    spec = found["spec"]
    for name in ("nodeName", "serviceAccount", "priority", "preemptionPolicy"):
        spec.pop(name, None)
    tokens = {v["name"] for v in spec["volumes"] if v["name"].startswith("kube-api-access-")}
    spec["volumes"] = [v for v in spec["volumes"] if v["name"] not in tokens]
    for container in (*spec["containers"], *spec["initContainers"]):
        container["volumeMounts"] = [m for m in container.get("volumeMounts", []) if m["name"] not in tokens]
    kept = {name: found["metadata"][name] for name in ("labels", "annotations") if name in found["metadata"]}
    kept["labels"].pop("pod-template-hash", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "name": "newcomer"}, "spec": spec}


@pytest.fixture
def short_lived(chart: Chart) -> Iterator[Chart]:
    """Members are certified for minutes."""
    whole = chart.deployment(WEBHOOK)["spec"]["template"]["spec"]["containers"][0]["command"]
    short = [f"--leaf-seconds={LEAF_SECONDS}" if part.startswith("--leaf-seconds") else part for part in whole]
    set_command(chart, short)
    yield chart
    set_command(chart, whole)


def set_command(chart: Chart, command: list[str]) -> None:
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/command", "value": command}]
    chart.kubectl("patch", "deployment", WEBHOOK, "--type=json", "-p", json.dumps(patch))
    chart.kubectl("rollout", "status", f"deployment/{WEBHOOK}", "--timeout=120s")


def test_leaves_and_authorities_change_under_load_and_no_load_fails(short_lived: Chart, standins: StandIns) -> None:
    chart, settings = short_lived, PeerSettings(NAMESPACE, SECRET)
    members = standins.create(2)
    standins.heat("hot", BLOCKS)
    known = [refusals(m) for m in members]  # such as of one that had no certificate yet when it was asked first
    with load(members, BLOCKS) as loads:
        before = [m.status().tls.renewals for m in members]
        wait_for("a renewal of each", lambda: renewed(members, before), FOLLOWING_SECONDS)
        # another authority: at first it is only trusted
        first = {name: base64.b64decode(text) for name, text in secret(chart).items()}
        second = new_authority("kvpool peers 2", datetime.now(UTC) - settings.settle, settings.life)
        old, both = first["ca.crt"], first["ca.crt"] + second.certificate
        write(chart, {**first, "authority-2.crt": second.certificate, "authority-2.key": second.key, "ca.crt": both})
        wait_for("all trust both", lambda: bundles(members) == {bundle_digest(both)}, FOLLOWING_SECONDS)
        wait_for("it signs", lambda: base64.b64decode(secret(chart)["tls.crt"]) == second.certificate, 120)
        of_second = {bundle_digest(second.certificate)}
        wait_for("all leaves are of it", lambda: authorities(members) == of_second, FOLLOWING_SECONDS)
        # and the old one goes
        present = {name: base64.b64decode(text) for name, text in secret(chart).items()}
        present = {name: value for name, value in present.items() if not name.startswith("authority-1.")}
        write(chart, {**present, "ca.crt": second.certificate})
        wait_for("nobody trusts the old one", lambda: bundles(members) == of_second, FOLLOWING_SECONDS)
        at = loads.whole
        wait_for("sharing goes on", lambda: loads.whole >= at + 10, 60)
    assert old != second.certificate
    assert loads.others == [], (loads.whole, [m.status().counters for m in members])
    for member, at_first in zip(members, known, strict=True):
        status = member.status()
        assert (status.tls.state, status.tls.reason) == ("ok", "")
        refused = refusals(member) - at_first
        assert refused.keys() <= {"tls_refused_peer_handshake"}, refused  # such as one that a busy machine made late
        assert status.misses.get("transfer_failed", 0) == 0


def refusals(member: Member) -> Counter[str]:
    return Counter({word: n for word, n in member.status().counters.items() if word.startswith("tls_refused")})


def secret(chart: Chart) -> dict[str, str]:
    data: dict[str, str] = chart.core.read_namespaced_secret(SECRET, NAMESPACE).data
    return data


def write(chart: Chart, data: dict[str, bytes]) -> None:
    found = chart.core.read_namespaced_secret(SECRET, NAMESPACE)
    found.data = {name: base64.b64encode(value).decode() for name, value in data.items()}
    chart.core.replace_namespaced_secret(SECRET, NAMESPACE, found)


def bundles(members: list[Member]) -> set[str]:
    return {m.status().tls.bundle for m in members}


def authorities(members: list[Member]) -> set[str]:
    return {m.status().tls.authority for m in members}


def renewed(members: list[Member], before: list[int]) -> bool:
    return all(m.status().tls.renewals > n for m, n in zip(members, before, strict=True))
