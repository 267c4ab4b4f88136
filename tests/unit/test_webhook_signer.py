"""The signer: who gets a certificate, what it says, and what every refusal is counted as. The API server is a stub
here; the cluster suite asks a real one."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvpool_contract.identity import MAX_REQUEST, SIGN_PATH, SignRequest, bundle_digest, decode_answer, encode_document
from kvpool_contract.names import POOL_LABEL
from kvpool_operator.certificates.peers import PeerPlan, PeerSettings, plan_peers
from kvpool_operator.webhook import signer as signer_module
from kvpool_operator.webhook.api import ApiServer, Client
from kvpool_operator.webhook.authority import LiveAuthority
from kvpool_operator.webhook.signer import BURST, OUTCOMES, Addresses, Signer

TOKEN = "a-token-that-nobody-else-may-read"
KEY = ec.generate_private_key(ec.SECP256R1())
CSR = (
    x509.CertificateSigningRequestBuilder()
    .subject_name(x509.Name([]))
    .sign(KEY, hashes.SHA256())
    .public_bytes(serialization.Encoding.PEM)
    .decode()
)
BOUND = {
    "authenticated": True,
    "audiences": ["kvpool.io"],
    "user": {
        "username": "system:serviceaccount:team-a:default",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["chat-0"],
            "authentication.kubernetes.io/pod-uid": ["uid-0"],
        },
    },
}
METADATA = {"name": "chat-0", "uid": "uid-0", "labels": {POOL_LABEL: "chat"}}


class Stub:
    """An API server that takes one token and knows one pod."""

    def __init__(self) -> None:
        self.review: Any = BOUND
        self.pod: Any = METADATA
        self.status = 201
        self.asked: list[Any] = []
        self.hold: asyncio.Event | None = None

    async def tokenreviews(self, request: web.Request) -> web.Response:
        if self.hold:
            await self.hold.wait()
        asked = await request.json()
        self.asked.append(asked["spec"])
        return web.json_response({"status": self.review, "spec": asked["spec"]}, status=self.status)

    async def pods(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.pod is None:
            return web.json_response({}, status=404)
        return web.json_response({"metadata": self.pod})


def authority(folder: Path) -> PeerPlan:
    made = plan_peers(datetime.now(UTC), {}, "cluster-1", PeerSettings("n"), lambda _: False)
    for name in ("tls.crt", "tls.key", "ca.crt", "cluster"):
        (folder / name).write_bytes(made.secret[name])
    return made


@asynccontextmanager
async def served(stub: Stub, folder: Path) -> AsyncIterator[tuple[TestClient[Any, Any], dict[str, int]]]:
    api = web.Application()
    api.add_routes(
        [
            web.post("/apis/authentication.k8s.io/v1/tokenreviews", stub.tokenreviews),
            web.get("/api/v1/namespaces/{namespace}/pods/{name}", stub.pods),
        ]
    )
    (folder / "token").write_text("the webhook's own")
    counts: dict[str, int] = {}

    def count(outcome: str) -> None:
        counts[outcome] = counts.get(outcome, 0) + 1

    async with TestServer(api) as server:
        client = Client(ApiServer(str(server.make_url("")).rstrip("/"), folder / "token", _no_authority(folder)))
        live = LiveAuthority(folder)
        live.refresh()
        app = web.Application()
        app.add_routes([web.post(SIGN_PATH, Signer(client, live, count, timedelta(hours=2)).sign)])
        async with TestClient(TestServer(app)) as asking:
            yield asking, counts
        await client.close()


def _no_authority(folder: Path) -> Path:
    path = folder / "api-ca.crt"
    path.write_bytes(plan_peers(datetime.now(UTC), {}, "c", PeerSettings("n"), lambda _: False).bundle)
    return path


def asking(pool: str = "chat", token: str = TOKEN, csr: str = CSR) -> bytes:
    return encode_document(SignRequest(1, pool, token, csr))


def test_a_member_gets_a_certificate_that_says_what_the_api_server_said(tmp_path: Path) -> None:
    made = authority(tmp_path)
    stub = Stub()

    async def run() -> None:
        async with served(stub, tmp_path) as (client, counts):
            answer = await client.post(SIGN_PATH, data=asking())
            assert (answer.status, counts) == (200, {"signed": 1})
            document = decode_answer(await answer.read())
            leaf = x509.load_pem_x509_certificate(document.certificate.encode())
            leaf.verify_directly_issued_by(made.signer.parsed)
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert [n.value for n in names] == ["kvpool://cluster-1/ns/team-a/pool/chat/pod/uid-0"]
            assert leaf.public_key() == KEY.public_key()
            assert leaf.not_valid_after_utc - leaf.not_valid_before_utc == timedelta(hours=2, minutes=5)
            assert bundle_digest(document.bundle.encode()) == bundle_digest(made.bundle)
        assert stub.asked == [
            {"token": TOKEN, "audiences": ["kvpool.io"]},
            "/api/v1/namespaces/team-a/pods/chat-0",
        ]

    asyncio.run(run())


def without(path: str) -> dict[str, Any]:
    review = json.loads(json.dumps(BOUND))
    del review["user"]["extra"][f"authentication.kubernetes.io/{path}"]
    found: dict[str, Any] = review
    return found


@pytest.mark.parametrize(
    ("outcome", "status", "review", "pod", "body"),
    [
        ("token_refused", 401, {"error": "expired"}, METADATA, asking()),
        ("token_refused", 401, {**BOUND, "audiences": ["https://kubernetes"]}, METADATA, asking()),
        ("token_refused", 401, {n: v for n, v in BOUND.items() if n != "audiences"}, METADATA, asking()),
        ("token_refused", 401, None, METADATA, asking()),
        ("not_bound", 401, without("pod-name"), METADATA, asking()),
        ("not_bound", 401, without("pod-uid"), METADATA, asking()),
        ("not_bound", 401, {**BOUND, "user": {**BOUND["user"], "username": "alice"}}, METADATA, asking()),
        ("not_a_member", 403, BOUND, None, asking()),
        ("not_a_member", 403, BOUND, {**METADATA, "uid": "of its successor"}, asking()),
        ("not_a_member", 403, BOUND, METADATA, asking(pool="other")),
        ("not_a_member", 403, BOUND, METADATA, asking(pool="")),
        ("not_a_member", 403, BOUND, {**METADATA, "labels": None}, asking(pool="")),
        ("bad_csr", 400, BOUND, METADATA, asking(csr="")),
        ("bad_csr", 400, BOUND, METADATA, asking(csr="x" * 9000)),
        ("malformed", 400, BOUND, METADATA, b""),
        ("malformed", 400, BOUND, METADATA, b"\xff" * 100),
        ("malformed", 400, BOUND, METADATA, b"[" * 20_000),
        ("malformed", 400, BOUND, METADATA, b'{"version":1,"pool":"chat","token":5,"csr":""}'),
        ("malformed", 400, BOUND, METADATA, asking().replace(b'"version":1', b'"version":9')),
        ("too_large", 413, BOUND, METADATA, asking(token="t" * MAX_REQUEST)),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_and_counted(
    tmp_path: Path, outcome: str, status: int, review: Any, pod: Any, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    authority(tmp_path)
    stub = Stub()
    stub.review, stub.pod = review, pod
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        async with served(stub, tmp_path) as (client, counts):
            answer = await client.post(SIGN_PATH, data=body)
            document = await answer.json()
            assert (answer.status, document["reason"], counts) == (status, outcome, {outcome: 1})
            assert len(document["sentence"]) > 20
            assert TOKEN not in await answer.text() and TOKEN not in caplog.text
            asked_of_the_token = any(isinstance(entry, dict) for entry in stub.asked)
            assert asked_of_the_token == (outcome in ("token_refused", "not_bound", "not_a_member"))

    asyncio.run(run())


def test_a_body_without_an_announced_length_is_bounded_too(tmp_path: Path) -> None:
    authority(tmp_path)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * MAX_REQUEST

    async def run() -> None:
        async with served(Stub(), tmp_path) as (client, counts):
            answer = await client.post(SIGN_PATH, data=body())
            assert (answer.status, counts) == (413, {"too_large": 1})

    asyncio.run(run())


@pytest.mark.parametrize("status", [403, 500])
def test_without_the_api_server_or_an_authority_it_says_when_to_ask_again(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    stub = Stub()
    stub.status = status
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        async with served(stub, tmp_path) as (client, counts):
            answer = await client.post(SIGN_PATH, data=asking())
            assert (answer.status, counts, stub.asked) == (503, {"unavailable": 1}, [])
            assert answer.headers["Retry-After"] == "5"
        authority(tmp_path)
        async with served(stub, tmp_path) as (client, counts):
            answer = await client.post(SIGN_PATH, data=asking())
            assert (answer.status, counts, len(stub.asked)) == (503, {"unavailable": 1}, 1)
        assert TOKEN not in caplog.text

    asyncio.run(run())


def test_an_expired_authority_signs_nothing(tmp_path: Path) -> None:
    made = authority(tmp_path)
    live = LiveAuthority(tmp_path)
    live.refresh()
    assert live.at(made.signer.expires - timedelta(seconds=1)) is not None
    assert live.at(made.signer.expires) is None


def test_files_that_do_not_fit_together_are_not_taken(tmp_path: Path) -> None:
    live = LiveAuthority(tmp_path)
    live.refresh()
    first = authority(tmp_path)
    live.refresh()
    live.refresh()
    assert (live.loaded, live.refused) == (1, 0)
    second = plan_peers(datetime.now(UTC), {}, "cluster-1", PeerSettings("n"), lambda _: False)
    for name in ("tls.crt", "tls.key"):  # the bundle is still the former one
        (tmp_path / name).write_bytes(second.secret[name])
        live.refresh()
    found = live.at(datetime.now(UTC))
    assert (live.loaded, live.refused, found and found.pair) == (1, 2, first.signer)
    (tmp_path / "ca.crt").write_bytes(first.bundle + second.bundle)
    live.refresh()
    found = live.at(datetime.now(UTC))
    assert (live.loaded, live.refused, found and found.pair) == (2, 2, second.signer)


def test_those_that_ask_too_often_or_all_at_once_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority(tmp_path)
    monkeypatch.setattr(signer_module, "AT_ONCE", 4)
    stub = Stub()

    async def run() -> None:
        stub.hold = asyncio.Event()
        async with served(stub, tmp_path) as (client, counts):
            asked = [asyncio.create_task(client.post(SIGN_PATH, data=asking())) for _ in range(10)]
            while counts.get("busy", 0) < 6:
                await asyncio.sleep(0.01)
            stub.hold.set()
            answers = [(await each).status for each in asked]
            assert (sorted(answers), counts) == ([200] * 4 + [429] * 6, {"busy": 6, "signed": 4})

    asyncio.run(run())


def test_an_address_has_a_bucket_that_fills_again_and_others_have_theirs() -> None:
    now = 0.0
    addresses = Addresses(lambda: now)
    assert [addresses.take("a") for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    assert addresses.take("b")
    now = 0.4
    assert [addresses.take("a") for _ in range(3)] == [True, True, False]
    for number in range(5000):
        addresses.take(str(number))
    assert len(addresses._left) == signer_module.ADDRESSES


def test_every_refusal_has_a_counter_from_the_start() -> None:
    assert set(OUTCOMES) == {"signed", "failed", *signer_module._CODES}
