"""Valkey and Redis, through redis-py: one server, or whatever stands in its place behind one address.

The client is told to be plain: no second try of its own, since a request may have gone on meanwhile; no protocol beyond
the one that every server has; credentials read anew with each connection. A server that says nothing for
`SILENT_SECONDS` ends a call.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from kvpool_agent.store.external.objects import ERROR, FULL, REFUSED, SLOW, UNREACHABLE, StoreError
from kvpool_contract.external import PASSWORD_FILE, STORE_AUTHORITIES_FILE, USERNAME_FILE, Store, place

CONNECT_SECONDS, SILENT_SECONDS = 1.0, 2.0
MAX_CONNECTIONS = 32
READ_BYTES = 1 << 20  # at a time from the socket
MAX_CREDENTIAL = 4096

T = TypeVar("T")


class _Mounted(CredentialProvider):
    """What lies in the folder when a connection is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        username, password = self._read(USERNAME_FILE), self._read(PASSWORD_FILE)
        return (username, password) if username else (password,)

    @property
    def there(self) -> bool:
        return bool(self._read(PASSWORD_FILE))

    def _read(self, name: str) -> str:
        try:
            with (self._folder / name).open("rb") as opened:
                return opened.read(MAX_CREDENTIAL).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            return ""


class Valkey:
    """An `Objects`. Connects when it is first asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool: redis.ConnectionPool | None = None
        self._client: Any = None

    def _connected(self) -> Any:
        if self._client is None:
            found = place(self._store.url)
            assert found is not None
            parts, host, port = found
            folder = Path(self._store.credentialsFolder) if self._store.credentialsFolder else None
            options: dict[str, Any] = {}
            if parts.scheme in ("valkeys", "rediss"):
                options["connection_class"] = redis.SSLConnection
                authorities = folder / STORE_AUTHORITIES_FILE if folder is not None else None
                if authorities is not None and authorities.exists():
                    options["ssl_ca_certs"] = str(authorities)
            if folder is not None and (mounted := _Mounted(folder)).there:
                options["credential_provider"] = mounted
            self._pool = redis.ConnectionPool(
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
            self._client = redis.Redis(connection_pool=self._pool)
        return self._client

    def _call(self, work: Callable[[Any], T]) -> T:
        try:
            return work(self._connected())
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            self._client = None  # a password that is there by now is taken up
            raise StoreError(REFUSED, _said(error)) from None
        except redis.exceptions.OutOfMemoryError as error:
            raise StoreError(FULL, _said(error)) from None
        except redis.TimeoutError as error:
            raise StoreError(SLOW, _said(error)) from None
        except (redis.ConnectionError, OSError) as error:
            raise StoreError(UNREACHABLE, _said(error)) from None
        except redis.RedisError as error:
            word = REFUSED if str(error).startswith(("NOAUTH", "WRONGPASS", "NOPERM")) else ERROR
            raise StoreError(FULL if str(error).startswith("OOM") else word, _said(error)) from None

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
        if self._pool is not None:
            with suppress(OSError, redis.RedisError):
                self._pool.disconnect(inuse_connections=True)


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
