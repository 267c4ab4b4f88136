"""S3 and what speaks its protocol, through botocore: one bucket behind one address.

The client is told to be plain: no second try of its own, no checksums but the protocol's old ones, the bucket in the
path, as every such service has it. A server that says nothing for `SILENT_SECONDS` ends a call.

Objects of S3 have no time to live, and rules of a bucket count in days. So the age of an object, by the server's own
clock, says whether its life is over: one that is older than `ttlSeconds` is missing to who asks or reads. To renew it
is to copy it onto itself, which the server does alone. What is over is removed by who writes: for each `SWEPT_AFTER`
objects an agent looks at the next thousand names, round and round from a place that chance has chosen. That bounds what
lies there in vain by what is written, costs one question in so many, and needs no say over the bucket.
"""

import email.utils
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from typing import Any, TypeVar

import botocore.exceptions
from botocore.config import Config
from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)
from botocore.session import Session

from kvpool_agent.store.external.mounted import Mounted
from kvpool_agent.store.external.objects import ERROR, FULL, REFUSED, SLOW, UNREACHABLE, StoreError, said, unconnected
from kvpool_contract.external import ACCESS_KEY_FILE, SECRET_KEY_FILE, SESSION_TOKEN_FILE, Store

log = logging.getLogger("kvpool.external")

CONNECT_SECONDS, SILENT_SECONDS = 1.0, 2.0
ASKED_AT_A_TIME = 16  # names that are asked for side by side; where they all are missing, so are the rest
ASKED_SECONDS = 0.3  # after which the rest is taken for missing: within the patience of who asks
SWEPT_AFTER = 256
NAMES_AT_A_TIME = 1000
MISSING = ("404", "NoSuchKey", "InvalidRange")
FULL_CODES = ("QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded")
SLOW_CODES = ("SlowDown", "RequestTimeout")

T = TypeVar("T")


class _Key(Credentials):  # type: ignore[misc]
    """What is mounted when a request is signed."""

    def __init__(self, mounted: Mounted) -> None:
        super().__init__("", "")
        self._mounted = mounted

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        access, secret = self._mounted.read(ACCESS_KEY_FILE), self._mounted.read(SECRET_KEY_FILE)
        if not access or not secret:
            raise NoCredentialsError
        return ReadOnlyCredentials(access, secret, self._mounted.read(SESSION_TOKEN_FILE) or None)


class _OfTheSecret(CredentialProvider):  # type: ignore[misc]
    METHOD = CANONICAL_NAME = "secret"

    def __init__(self, mounted: Mounted) -> None:
        super().__init__()
        self._key = _Key(mounted)

    def load(self) -> Credentials:
        return self._key


class S3:
    """An `Objects`. Connects when it is first asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._made: Any = None
        self._askers = ThreadPoolExecutor(ASKED_AT_A_TIME, "kvpool-store-ask")
        self._unswept, self._sweep_from = 0, store.prefix + secrets.token_hex(4)

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._new_client()
            return self._made

    def _new_client(self) -> Any:
        mounted, session = Mounted(self._store.credentialsFolder), Session()
        if self._store.credentialsFolder:  # else the pod's own, as all clients of such services find it
            session.get_component("credential_provider").insert_before("env", _OfTheSecret(mounted))
        return session.create_client(
            "s3",
            region_name=self._store.region,
            endpoint_url=self._store.url,
            verify=mounted.authorities,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=SILENT_SECONDS,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=2 * ASKED_AT_A_TIME,
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def _call(self, work: Callable[[Any], T], missing: Callable[[], T] | None = None) -> T:
        """missing: what to return where there is no such object."""
        try:
            return work(self._client())
        except ClientError as error:
            code, status, message = _told(error)
            if missing is not None and code in MISSING:
                return missing()
            raise StoreError(_word(code, status), f"{code}: {message}"[:200]) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreError(REFUSED, said(error)) from None
        except ReadTimeoutError as error:
            raise StoreError(SLOW, said(error)) from None
        except (botocore.exceptions.ConnectionError, HTTPClientError, IncompleteReadError, OSError) as error:
            raise unconnected(error) from None
        except BotoCoreError as error:
            raise StoreError(ERROR, said(error)) from None

    def _each(self, ask: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """Side by side; what has not begun when the connections are ended does not begin any more."""
        client = self._client()

        def one(name: str) -> T:
            if self._made is not client:
                raise StoreError(UNREACHABLE, "its connections were ended")
            return ask(name)

        return list(self._askers.map(one, names))

    def _of(self, name: str) -> dict[str, str]:
        return {"Bucket": self._store.bucket, "Key": name}

    def ping(self) -> None:
        def no_bucket() -> None:
            raise StoreError(ERROR, f"there is no bucket {self._store.bucket}")

        self._call(lambda client: client.head_bucket(Bucket=self._store.bucket), no_bucket)

    def held(self, names: Sequence[str]) -> list[bool]:
        found, until = list[bool](), time.monotonic() + ASKED_SECONDS
        while len(found) < len(names):
            there = self._each(self._is_there, names[len(found) : len(found) + ASKED_AT_A_TIME])
            found += there
            if not any(there) or time.monotonic() > until:
                found += [False] * (len(names) - len(found))
        return found

    def _is_there(self, name: str) -> bool:
        return self._call(lambda client: self._lives(client.head_object(**self._of(name))), lambda: False)

    def _lives(self, answer: dict[str, Any]) -> bool:
        return _age(answer, answer["LastModified"]) < self._store.ttlSeconds

    def read(self, name: str, begin: int, length: int) -> bytes:
        def ask(client: Any) -> bytes:
            answer = client.get_object(**self._of(name), Range=f"bytes={begin}-{begin + length - 1}")
            with closing(answer["Body"]) as body:
                return bytes(body.read()) if self._lives(answer) else b""

        return self._call(ask, lambda: b"")

    def write(self, name: str, data: bytes) -> None:
        self._call(lambda client: client.put_object(**self._of(name), Body=data))
        with self._lock:
            self._unswept += 1
            if sweep := self._unswept >= SWEPT_AFTER:
                self._unswept = 0
        if sweep:
            self._askers.submit(self._sweep)

    def renew(self, names: Sequence[str]) -> None:
        def ask(name: str) -> None:
            of = self._of(name)
            self._call(lambda client: client.copy_object(**of, CopySource=of, MetadataDirective="REPLACE"), dict)

        self._each(ask, names)

    def remove(self, name: str) -> None:
        self._call(lambda client: client.delete_object(**self._of(name)))

    def _sweep(self) -> None:
        """Removes what is over, of the next names."""
        try:
            answer = self._call(
                lambda client: client.list_objects_v2(
                    Bucket=self._store.bucket,
                    Prefix=self._store.prefix,
                    StartAfter=self._sweep_from,
                    MaxKeys=NAMES_AT_A_TIME,
                )
            )
            listed = answer.get("Contents", [])
            self._sweep_from = listed[-1]["Key"] if answer.get("IsTruncated") else self._store.prefix
            for each in listed:
                if _age(answer, each["LastModified"]) >= self._store.ttlSeconds:
                    self.remove(each["Key"])
        except StoreError as error:
            log.info("the external store was not looked through for what is over: %s", error)

    def disconnect(self) -> None:
        with self._lock:
            client, self._made = self._made, None
        if client is not None:
            client.close()


def _age(answer: dict[str, Any], changed: datetime) -> float:
    """Seconds since an object was written or renewed, by the clock of the server that answers."""
    now = email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return (now - changed).total_seconds()


def _told(error: ClientError) -> tuple[str, int, str]:
    """The service's own word, its HTTP status, and its sentence."""
    named, answer = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    return str(named.get("Code", "")), int(answer.get("HTTPStatusCode", 0)), str(named.get("Message", ""))


def _word(code: str, status: int) -> str:
    if code in FULL_CODES or status == 507:
        return FULL
    if code in SLOW_CODES or status in (429, 503):
        return SLOW
    return REFUSED if status in (401, 403) else ERROR
