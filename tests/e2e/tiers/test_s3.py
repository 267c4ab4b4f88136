"""S3 as a store of objects, against a real server: how long objects live, who asks, and what faults are called."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from replica import LOOPBACK, wait_for
from s3_server import S3Server

from kvpool_agent.store.external import s3
from kvpool_agent.store.external.objects import ERROR, FULL, REFUSED, SLOW, UNREACHABLE, StoreError
from kvpool_contract.external import Store

NAMES = [f"kv/{n:032x}" for n in range(40)]


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> S3Server:
    made = S3Server(tmp_path)
    request.addfinalizer(made.stop)
    return made.start()


def fault(call: Callable[[], object]) -> StoreError:
    with pytest.raises(StoreError) as raised:
        call()
    return raised.value


def store_on(server: S3Server, **fields: object) -> s3.S3:
    return s3.S3(Store(**server.config(**fields)))


def test_what_is_over_is_missing_to_who_asks_and_removed_by_who_writes(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lasting = store_on(server, ttlSeconds=2), store_on(server)
    store.write(NAMES[0], b"first")
    wait_for("its life is over", lambda: server.ends(NAMES[0], 2) <= time.time(), 20, 0.05)
    assert store.held(NAMES[:1]) == [False] and store.read(NAMES[0], 0, 9) == b""
    assert lasting.held(NAMES[:1]) == [True] and lasting.read(NAMES[0], 1, 3) == b"irs"
    before = server.ends(NAMES[0])
    lasting.renew(NAMES[:2])  # of which one is not there
    assert server.ends(NAMES[0]) > before
    wait_for("its life is over again", lambda: server.ends(NAMES[0], 2) <= time.time(), 20, 0.05)

    for _ in range(2):  # from a place that chance has chosen, and from the front
        lasting._sweep()
    assert server.names() == NAMES[:1]  # with so long a life it is not over
    monkeypatch.setattr(s3, "SWEPT_AFTER", 2)
    monkeypatch.setattr(store, "_sweep_from", NAMES[-1])  # the next round begins in front

    def removed() -> bool:
        store.write(NAMES[2], b"later")
        return NAMES[0] not in server.names()

    wait_for("it is removed", removed, 20, 0.05)


def test_names_are_asked_for_in_their_order_and_no_more_of_them_where_many_are_missing(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ASKED_SECONDS", 60.0)
    store = store_on(server)
    for n in (0, 20, 39):
        store.write(NAMES[n], b"there")
    assert store.held(NAMES[:16]) == [True] + [False] * 15
    assert store.held(NAMES) == [n in (0, 20, 39) for n in range(40)]
    # sixteen in a row that are nowhere
    assert store.held([*NAMES[1:17], NAMES[20]]) == [False] * 17
    assert store.held([*NAMES[1:16], NAMES[20]]) == [False] * 15 + [True]
    assert store.held([]) == []
    monkeypatch.setattr(s3, "ASKED_SECONDS", 0.0)  # the time is over when the first sixteen have been asked for
    assert store.held(NAMES) == [n == 0 for n in range(40)]


def test_without_a_secret_the_key_is_found_as_awss_clients_find_theirs(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, entry in (("AWS_ACCESS_KEY_ID", "accessKeyId"), ("AWS_SECRET_ACCESS_KEY", "secretAccessKey")):
        monkeypatch.setenv(variable, (server.credentials / entry).read_text().strip())
    store_on(server, credentialsFolder="").ping()
    # where there is one, nothing else is a key
    empty = tmp_path / "empty"
    empty.mkdir()
    assert fault(store_on(server, credentialsFolder=str(empty)).ping).word == REFUSED


def test_a_bucket_that_is_not_there_and_a_server_that_is_not_are_named(server: S3Server) -> None:
    told = fault(store_on(server, bucket="caches-of-others").ping)
    assert (told.word, told.detail) == (ERROR, "there is no bucket caches-of-others")
    store = store_on(server)
    server.stop()
    assert fault(store.ping).word == UNREACHABLE


ANSWERS = [
    (503, "SlowDown", SLOW),
    (429, "TooManyRequests", SLOW),
    (400, "RequestTimeout", SLOW),
    (507, "InsufficientStorage", FULL),
    (403, "QuotaExceeded", FULL),
    (400, "XMinioAdminBucketQuotaExceeded", FULL),
    (403, "AccessDenied", REFUSED),
    (401, "Unauthorized", REFUSED),
    (500, "InternalError", ERROR),
    (404, "NoSuchBucket", ERROR),
]


def test_what_a_service_answers_has_one_word(tmp_path: Path) -> None:
    answers = iter(ANSWERS)

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # in which a server says that it wants the body

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, code, _ = next(answers)
            body = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Answering)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    for entry in ("accessKeyId", "secretAccessKey"):
        (tmp_path / entry).write_text("some")
    url = f"http://{LOOPBACK}:{server.server_port}"
    store = s3.S3(Store(type="S3", url=url, bucket="caches", credentialsFolder=str(tmp_path)))
    told = [fault(lambda: store.write("kv/a", b"block")) for _ in ANSWERS]
    assert [(error.word, error.detail) for error in told] == [(word, f"{code}: so it is") for _, code, word in ANSWERS]
    server.shutdown()
    server.server_close()
