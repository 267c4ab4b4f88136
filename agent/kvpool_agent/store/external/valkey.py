"""Valkey and Redis, through redis-py: one server, or whatever stands in its place behind one address.

The client is told to be plain: no second try of its own, since a request may have gone on meanwhile; no protocol beyond
the one that every server has; credentials read anew with each connection. A server that says nothing for
`SILENT_SECONDS` ends a call.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from kvpool_agent.store.external.mounted import Mounted
from kvpool_agent.store.external.objects import ERROR, FULL, REFUSED, SLOW, StoreError, said, unconnected
from kvpool_contract.external import PASSWORD_FILE, USERNAME_FILE, Store, place

CONNECT_SECONDS, SILENT_SECONDS = 1.0, 2.0
MAX_CONNECTIONS = 32
READ_BYTES = 1 << 20  # at a time from the socket

T = TypeVar("T")


class _Password(CredentialProvider):
    """What is mounted when a connection is opened."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        username, password = self._mounted.read(USERNAME_FILE), self._mounted.read(PASSWORD_FILE)
        return (username, password) if username else (password,)


class Valkey:
    """An `Objects`. Connects when it is first asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pool: redis.ConnectionPool | None = None
        self._client: Any = None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._pool = self._new_pool()
                self._client = redis.Redis(connection_pool=self._pool)
            return self._client

    def _new_pool(self) -> redis.ConnectionPool:
        found = place(self._store.url)
        assert found is not None
        parts, host, port = found
        mounted = Mounted(self._store.credentialsFolder)
        options: dict[str, Any] = {}
        if parts.scheme in ("valkeys", "rediss"):
            options |= {"connection_class": redis.SSLConnection, "ssl_ca_certs": mounted.authorities}
        if mounted.read(PASSWORD_FILE):
            options["credential_provider"] = _Password(mounted)
        return redis.ConnectionPool(
            host=host,
            port=port,
            db=int(parts.path.strip("/") or 0),
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=SILENT_SECONDS,
            socket_read_size=READ_BYTES,
            max_connections=MAX_CONNECTIONS,
            **options,
        )

    def _call(self, work: Callable[[Any], T]) -> T:
        try:
            return work(self._connected())
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise StoreError(REFUSED, said(error)) from None
        except redis.exceptions.OutOfMemoryError as error:
            raise StoreError(FULL, said(error)) from None
        except redis.TimeoutError as error:
            raise StoreError(SLOW, said(error)) from None
        except (redis.ConnectionError, OSError) as error:
            raise unconnected(error) from None
        except redis.RedisError as error:
            word = REFUSED if str(error).startswith(("NOAUTH", "WRONGPASS", "NOPERM")) else ERROR
            raise StoreError(FULL if str(error).startswith("OOM") else word, said(error)) from None

    def ping(self) -> None:
        self._call(lambda client: client.ping())

    def held(self, names: Sequence[str]) -> list[bool]:
        def ask(client: Any) -> list[bool]:
            with client.pipeline(transaction=False) as line:
                for name in names:
                    line.exists(name)
                return [bool(found) for found in line.execute()]

        return self._call(ask) if names else []

    def read(self, name: str, begin: int, length: int) -> bytes:
        return bytes(self._call(lambda client: client.getrange(name, begin, begin + length - 1)))

    def write(self, name: str, data: bytes) -> None:
        self._call(lambda client: client.set(name, data, ex=self._store.ttlSeconds))

    def renew(self, names: Sequence[str]) -> None:
        def ask(client: Any) -> None:
            with client.pipeline(transaction=False) as line:
                for name in names:
                    line.expire(name, self._store.ttlSeconds)
                line.execute()

        if names:
            self._call(ask)

    def remove(self, name: str) -> None:
        self._call(lambda client: client.unlink(name))

    def disconnect(self) -> None:
        with self._lock:
            pool, self._pool, self._client = self._pool, None, None
        if pool is not None:
            with suppress(OSError, redis.RedisError):
                pool.disconnect(inuse_connections=True)
