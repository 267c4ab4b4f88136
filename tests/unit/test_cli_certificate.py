"""`kvpool check --secret`: whether a user's Secret is one that members can prove themselves by."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_operator.certificates.authority import Pair, new_authority, new_client, new_leaf, new_member

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
AUTHORITY, OTHER = (new_authority(name, NOW, 300 * DAY) for name in ("ours", "another"))
URI = "kvpool://c1/ns/team-a/pool/chat"


def pair(uri: str = URI, life: timedelta = 30 * DAY, now: datetime = NOW) -> Pair:
    own = new_client(AUTHORITY, uri, now, life)
    key: Any = own.parsed.public_key()
    return Pair(new_member(AUTHORITY, key, uri, now, life), own.key)


def secret(of: Pair, **changes: Any) -> dict[str, Any]:
    entries = {"tls.crt": of.certificate, "tls.key": of.key, "ca.crt": AUTHORITY.certificate}
    data = {name: base64.b64encode(value).decode() for name, value in entries.items()}
    return {"kind": "Secret", "metadata": {"name": "ours"}, "data": data} | changes


def check(folder: Path, document: Any, mode: str = "Secret") -> tuple[int, str]:
    tls = {"mode": mode} | ({"secretRef": {"name": "ours"}} if mode == "Secret" else {})
    pool = {
        "apiVersion": "kvpool.io/v1alpha1",
        "kind": "KVCachePool",
        "metadata": {"name": "chat", "namespace": "team-a"},
        "spec": {"transport": {"tls": tls}},
    }
    (folder / "pool.yaml").write_text(yaml.safe_dump(pool))
    (folder / "secret.yaml").write_text(yaml.safe_dump(document))
    given = ["--secret", str(folder / "secret.yaml")] if document else []
    result = CliRunner().invoke(main, ["check", str(folder / "pool.yaml"), *given])
    return result.exit_code, result.output


def test_a_secret_that_can_be_used_is_told_with_its_end(tmp_path: Path) -> None:
    code, output = check(tmp_path, secret(pair()))
    end = f"{NOW + 30 * DAY:%Y-%m-%d}"
    assert code == 0 and output.splitlines()[1] == f"Secret ours: names the pool in cluster c1, holds until {end}"
    assert check(tmp_path, secret(pair(life=6 * DAY)))[1].endswith(", which is soon: renew it\n")
    plain = {"tls.crt": pair().certificate.decode()}
    assert check(tmp_path, secret(pair(), stringData=plain))[0] == 2  # it goes before data, and is of another key


def test_clear_text_is_told(tmp_path: Path) -> None:
    assert check(tmp_path, None, "Managed")[1].count("\n") == 1
    assert "speak in clear" in check(tmp_path, None, "Disabled")[1]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"kind": "ConfigMap"}, "this is no Secret"),
        (secret(pair(), metadata={"name": "other"}), "its name is 'other'"),
        (secret(pair(), metadata={"name": "ours", "namespace": "b"}), "it is in namespace b"),
        (secret(pair(), data={}), "tls.crt is missing"),
        (secret(pair(), data={"tls.crt": "%"}), "tls.crt is not base64"),
        (secret(Pair(pair().certificate, pair().key)), "are no pair in PEM"),
        (secret(pair(), stringData={"ca.crt": "none"}), "ca.crt holds no certificate"),
        (secret(pair(), stringData={"ca.crt": OTHER.certificate.decode()}), "tls.crt is by none of the authorities"),
        (secret(pair("kvpool://c1/ns/team-a/pool/other")), f"its one URI must be {URI.replace('c1', 'CLUSTER')}"),
        (secret(pair("kvpool://c1/controller")), "does not name the pool"),
        (secret(pair(URI + "/pod/u")), "names one pod"),
        (secret(new_leaf(AUTHORITY, ("chat",), NOW, DAY)), "does not name the pool"),
        (secret(new_client(AUTHORITY, URI, NOW, DAY)), "not for both server and client"),
        (secret(pair(now=NOW - 40 * DAY)), "renew it"),
        (secret(pair(now=NOW + 2 * DAY)), "renew it"),
    ],
)
def test_one_that_cannot_is_told_why_and_what_to_do(tmp_path: Path, document: dict[str, Any], sentence: str) -> None:
    code, output = check(tmp_path, document)
    assert code == 2 and sentence in output and output.startswith("Error: secret: ")
