"""The signer at a real API server: tokens as the kubelet projects them, and every kind that must not do."""

import base64
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from cluster.controllers import Controller
from cluster.kube import Kube, wait_for
from cluster.pools import Pools
from cluster.webhook import CONFIGURATION, NAMESPACE, SETTINGS, Webhook, namespace, running
from kvpool_contract.identity import (
    MAX_REQUEST,
    SIGN_PATH,
    SignRequest,
    bundle_digest,
    decode_answer,
    encode_document,
    parse_name,
)
from kvpool_operator.certificates.peers import PeerSettings

TEAM, POOL = "kvpool-signer-tests", "chat"


@pytest.fixture(scope="module")
def webhook(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with running(kube, tmp_path_factory.mktemp("signer")) as running_webhook:
        namespace(kube, TEAM)
        yield running_webhook


@pytest.fixture
def pod(kube: Kube, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A member's pod, which no node takes."""
    name = f"member-{abs(hash(request.node.name)) % 10**6}"
    yield create(kube, name, POOL)
    kube.kubectl("-n", TEAM, "delete", "pod", name, "--ignore-not-found", "--grace-period=0", "--force")


def create(kube: Kube, name: str, pool: str) -> Any:
    spec = {"schedulerName": "nobody", "containers": [{"name": "engine", "image": "none"}]}
    metadata = {"name": name, "labels": {"kvpool.io/pool": pool}}
    return kube.core.create_namespaced_pod(TEAM, {"metadata": metadata, "spec": spec})


def token(kube: Kube, pod: Any = None, audience: str = "kvpool.io") -> str:
    """Of the account that pods have; bound to a pod as the kubelet asks for it."""
    bound = (
        ["--bound-object-kind=Pod", f"--bound-object-name={pod.metadata.name}"]
        if pod is not None
        else []
    )  # fmt: skip
    return kube.kubectl("-n", TEAM, "create", "token", "default", f"--audience={audience}", *bound).stdout.strip()


def csr(names: tuple[str, ...] = ()) -> tuple[ec.EllipticCurvePrivateKey, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        own = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names])
        builder = builder.add_extension(own, critical=True)
    return key, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def post(webhook: Webhook, body: bytes) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(webhook.files / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=context, timeout=20)
    try:
        connection.request("POST", SIGN_PATH, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def refused(webhook: Webhook, token_text: str, pool: str = POOL) -> str:
    """The reason, which is also counted, once and alone."""
    before = webhook.metric_by("signatures_total", "outcome")
    status, body = post(webhook, encode_document(SignRequest(1, pool, token_text, csr()[1])))
    reason = str(json.loads(body)["reason"])
    assert status != 200
    assert webhook.metric_by("signatures_total", "outcome") == {**before, reason: before[reason] + 1}
    return reason


def test_a_pods_token_gets_a_certificate_of_that_pod_whatever_the_request_says(
    kube: Kube, webhook: Webhook, pod: Any
) -> None:
    signed = webhook.metric("signatures_total", outcome="signed")
    own = "kvpool://somewhere/controller"
    key, request = csr((own, f"kvpool://x/ns/{TEAM}/pool/other/pod/other"))
    status, body = post(webhook, encode_document(SignRequest(1, POOL, token(kube, pod), request)))
    assert status == 200, body
    answer = decode_answer(body)
    leaf = x509.load_pem_x509_certificate(answer.certificate.encode())
    (uri,) = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    name = parse_name(str(uri.value))
    cluster = kube.core.read_namespace("kube-system").metadata.uid
    assert (name.cluster, name.k8s_namespace, name.pool, name.pod) == (cluster, TEAM, POOL, pod.metadata.uid)
    assert leaf.public_key() == key.public_key()
    (authority,) = x509.load_pem_x509_certificates(answer.bundle.encode())
    leaf.verify_directly_issued_by(authority)
    secret = kube.core.read_namespaced_secret(webhook.peers.secret, SETTINGS.k8s_namespace).data
    assert bundle_digest(base64.b64decode(secret["ca.crt"])) == bundle_digest(answer.bundle.encode())
    assert webhook.metric("signatures_total", outcome="signed") == signed + 1


def test_tokens_for_others_unbound_of_pods_that_are_gone_and_of_other_pools_are_refused(
    kube: Kube, webhook: Webhook, pod: Any
) -> None:
    stranger = create(kube, "stranger", "other")
    gone = token(kube, stranger)
    assert refused(webhook, token(kube, pod, "https://kubernetes.default.svc")) == "token_refused"
    assert refused(webhook, token(kube)) == "not_bound"
    assert refused(webhook, token(kube, stranger)) == "not_a_member"
    assert refused(webhook, token(kube, pod), pool="other") == "not_a_member"
    kube.kubectl("-n", TEAM, "delete", "pod", "stranger", "--grace-period=0", "--force")
    # whoever looks at tokens hears of the pod's end a moment later, and the signer itself finds no pod until then
    wait_for("the API server takes it no more", lambda: refused(webhook, gone, pool="other") == "token_refused", 30)
    create(kube, "stranger", "other")  # another pod of the same name
    assert refused(webhook, gone, pool="other") == "token_refused"
    kube.kubectl("-n", TEAM, "delete", "pod", "stranger", "--grace-period=0", "--force")
    for nonsense in ("", "nonsense", "a.b.c", "x" * 4000):
        assert refused(webhook, nonsense) == "token_refused"


def test_an_expired_token_and_one_that_nobody_has_signed_are_refused(kube: Kube, webhook: Webhook, pod: Any) -> None:
    """The same claims, signed with the cluster's own key: only the time makes the difference."""
    assert kube.provided.folder, "needs the key of a cluster of this machine"
    claims = json.loads(decoded(token(kube, pod).split(".")[1]))
    key = service_account_key(kube.provided.folder)
    fresh, expired = (signed(key, {**claims, "exp": int(time.time()) + left}) for left in (600, -60))
    status, body = post(webhook, encode_document(SignRequest(1, POOL, fresh, csr()[1])))
    assert status == 200, body
    assert refused(webhook, expired) == "token_refused"
    forged = signed(rsa.generate_private_key(65537, 2048), {**claims, "exp": int(time.time()) + 600})
    assert refused(webhook, forged) == "token_refused"


def test_garbage_and_what_is_too_large_costs_the_api_server_nothing(webhook: Webhook) -> None:
    for body, status, reason in (
        (b"", 400, "malformed"),
        (b"\0" * 100, 400, "malformed"),
        (b"x" * (MAX_REQUEST + 1), 413, "too_large"),
        (encode_document(SignRequest(1, POOL, "t", "no request")), 400, "bad_csr"),
    ):
        before = webhook.metric("signatures_total", outcome=reason)
        found, answer = post(webhook, body)
        assert (found, json.loads(answer)["reason"]) == (status, reason)
        assert webhook.metric("signatures_total", outcome=reason) == before + 1


def test_without_the_api_server_nothing_is_signed_and_the_log_holds_no_token(
    kube: Kube, webhook: Webhook, pod: Any
) -> None:
    text = token(kube, pod)
    webhook.door.shut()
    try:
        assert refused(webhook, text) == "unavailable"
    finally:
        webhook.door.open()
    assert post(webhook, encode_document(SignRequest(1, POOL, text, csr()[1])))[0] == 200
    assert text not in webhook.log() and text.split(".")[2] not in webhook.log()


def test_a_new_authority_is_taken_without_a_restart(kube: Kube, webhook: Webhook, pod: Any) -> None:
    """As the controller rotates: the present one grows old, the next one signs once it is trusted."""
    loaded, later = webhook.metric("authorities_loaded"), datetime.now(UTC) + 0.7 * webhook.peers.life
    both = webhook.authorise(later)
    assert both.pending and len(x509.load_pem_x509_certificates(both.bundle)) == 2
    settled = webhook.authorise(later + webhook.peers.settle)
    assert not settled.pending
    wait_for("both were taken", lambda: webhook.metric("authorities_loaded") >= loaded + 1, 30)

    def of_the_next() -> x509.Certificate | None:
        status, body = post(webhook, encode_document(SignRequest(1, POOL, token(kube, pod), csr()[1])))
        assert status == 200, body
        leaf = x509.load_pem_x509_certificate(decode_answer(body).certificate.encode())
        return leaf if leaf.issuer == settled.signer.parsed.subject else None

    # one more load may be that of both authorities, before the next one signs
    wait_for("the next one signs", of_the_next, 30, 1.0).verify_directly_issued_by(settled.signer.parsed)


def test_the_controller_keeps_the_members_authority_and_tells_every_pool(
    kube: Kube, webhook: Webhook, tmp_path: Path
) -> None:
    home = Pools(kube.provided, NAMESPACE)
    home.create("managed", transport={"tls": {}})
    home.create("files", transport={"tls": {"mode": "Secret", "secretRef": {"name": "ours"}}})
    home.create("clear")
    secret = PeerSettings(NAMESPACE).secret

    def entries(pool: str) -> dict[str, str]:
        found = home.config_map(f"{pool}-kvpool")
        return dict(found.data) if found else {}

    def secret_bundle(name: str) -> str:
        return base64.b64decode(kube.core.read_namespaced_secret(name, NAMESPACE).data["ca.crt"]).decode()

    def told() -> bool:
        wanted = {"peers-ca.crt": secret_bundle(secret), "signer-ca.crt": secret_bundle(SETTINGS.leaf_secret)}
        return wanted.items() <= entries("managed").items()

    arguments = ("--webhook", CONFIGURATION, "--peers-authority", secret)
    controller = Controller(home, tmp_path, *arguments, everywhere=False).start()
    try:
        wait_for("the managed pool", told, 60)
        cluster = kube.core.read_namespace("kube-system").metadata.uid
        assert json.loads(entries("managed")["agent.json"])["tls"] == {
            "mode": "Managed",
            "signer": f"kvpool-webhook.{NAMESPACE}.svc:443",
            "cluster": cluster,
            "k8sNamespace": NAMESPACE,
        }
        wait_for("the others", lambda: entries("files") and entries("clear"), 60)
        assert (sorted(entries("files")), sorted(entries("clear"))) == (["agent.json", "peers-ca.crt"], ["agent.json"])
        home.wait_condition("CertificatesReady", "False", "Disabled", "clear")
        home.wait_condition("CertificatesReady", "False", "NoMembers", "managed")
        before = secret_bundle(secret)
        kube.core.delete_namespaced_secret(secret, NAMESPACE)
        assert controller.end() == 0
        controller.start()
        wait_for("the new authority", lambda: told() and secret_bundle(secret) != before, 60)
    finally:
        assert controller.end() == 0, controller.log_file.read_text()
        home.clear()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def service_account_key(folder: Path) -> rsa.RSAPrivateKey:
    """With which this machine's API server signs tokens."""
    (path,) = folder.rglob("sa.key")
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


def signed(key: rsa.RSAPrivateKey, claims: dict[str, Any]) -> str:
    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    text = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "RS256"}, claims))
    return f"{text}.{encoded(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
