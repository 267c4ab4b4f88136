"""Secrets of cert-manager's shape: what the command says of them, and whether the webhook takes them."""

import base64
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from cert_manager import CertManager
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_operator.webhook.certificate import LiveCertificate

URI = "kvpool://c1/ns/llm/pool/chat"
SERVICE = "kvpool-webhook.kvpool-system.svc"
OPERATIONS = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def issuer() -> CertManager:
    return CertManager()


def check(folder: Path, secret: dict[str, Any]) -> str:
    spec = {"transport": {"tls": {"mode": "Secret", "secretRef": {"name": "chat-members"}}}}
    metadata = {"name": "chat", "namespace": "llm"}
    pool = {"apiVersion": "kvpool.io/v1alpha1", "kind": "KVCachePool", "metadata": metadata, "spec": spec}
    for name, document in (("pool", pool), ("secret", secret)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return (
        CliRunner().invoke(main, ["check", str(folder / "pool.yaml"), "--secret", str(folder / "secret.yaml")]).output
    )


def test_the_certificate_that_the_page_shows_gives_a_secret_that_will_do(tmp_path: Path, issuer: CertManager) -> None:
    shown = next(text for text in OPERATIONS.split("```yaml\n")[1:] if "kind: Certificate" in text).partition("```")[0]
    spec = yaml.safe_load(shown)["spec"]
    assert spec["uris"] == [URI.replace("c1", "CLUSTER")]
    secret = issuer.secret(spec["secretName"], URI, usages=spec["usages"])
    assert "Secret chat-members: names the pool in cluster c1" in check(tmp_path, secret)


def test_one_that_will_not_do_is_told(tmp_path: Path, issuer: CertManager) -> None:
    said = check(tmp_path, issuer.secret("chat-members", URI, usages=["server auth"]))
    assert "not for both server and client authentication" in said
    assert "its one URI must be" in check(tmp_path, issuer.secret("chat-members", dns=["chat.llm.svc"]))


def test_the_webhook_shows_the_one_that_the_chart_asks_cert_manager_for(tmp_path: Path, issuer: CertManager) -> None:
    secret = issuer.secret("kvpool-webhook-certificate", dns=[SERVICE, f"{SERVICE}.cluster.local"], usages=())
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    live = LiveCertificate(tmp_path)
    live.refresh()
    assert (live.loaded, live.refused) == (1, 0)
    # as the API server does, by what cert-manager writes into caBundle; so do agents, by ca.crt in the pool's ConfigMap
    client = ssl.create_default_context(cadata=issuer.certificate.decode())
    here, there = socket.socketpair()
    server = threading.Thread(target=lambda: live.context.wrap_socket(there, server_side=True).recv(1))
    server.start()
    with here, client.wrap_socket(here, server_hostname=SERVICE) as shown:
        assert shown.version() == "TLSv1.3"
        shown.sendall(b"x")
    server.join(10)
