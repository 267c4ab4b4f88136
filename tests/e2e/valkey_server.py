"""A real Valkey or Redis server as a process of its own, and what lies in it."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from replica import LOOPBACK, free_port, wait_for
from store_process import StoreProcess

# In Debian one file is server and checker, told apart by the name that it is called by; the package with the server's
# own name would start one.
NAMES = ("valkey-server", "redis-server", "valkey-check-rdb", "redis-check-rdb")
MISSING = "a Valkey or Redis server is missing: apt-get install redis-tools (or valkey-tools)"


def program() -> str:
    """The server's program; skips where there is none, and fails where a machine is to run all tests."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(MISSING)
    return str(found)


class ValkeyServer(StoreProcess):
    """One database on the loopback address, in memory alone."""

    def __init__(self, folder: Path, *options: str, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(folder, free_port(), tls)
        self._options = options

    @property
    def url(self) -> str:
        return f"valkeys://localhost:{self.port}" if self._tls else f"valkey://{LOOPBACK}:{self.port}"

    def config(self, **fields: Any) -> dict[str, Any]:
        """An agent's `store`."""
        return {"type": "Valkey", "url": self.url, "prefix": "kv/", **fields}

    def start(self) -> "ValkeyServer":
        command = [
            program().rsplit("/", 1)[-1].replace("check-rdb", "server"), "--bind", LOOPBACK,
            "--save", "", "--appendonly", "no", "--dir", str(self._folder), *self._options,
        ]  # fmt: skip
        if self._tls:
            command += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            command += ["--tls-cert-file", str(self._tls[0]), "--tls-key-file", str(self._tls[1])]
        else:
            command += ["--port", str(self.port)]
        self.credentials.mkdir(exist_ok=True)
        if password := self._password:
            (self.credentials / "password").write_text(f"{password}\n")
        self._begin(command, program())
        wait_for("the store's server answers", self._answers, 20, 0.02)
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False
        except redis.AuthenticationError:
            return True

    @property
    def _password(self) -> str | None:
        return self._options[self._options.index("--requirepass") + 1] if "--requirepass" in self._options else None

    @property
    def client(self) -> Any:
        tls = {"ssl": True, "ssl_ca_certs": str(self.credentials / "ca.crt")} if self._tls else {}
        host = "localhost" if self._tls else LOOPBACK
        return redis.Redis(host=host, port=self.port, password=self._password, socket_timeout=5, **tls)

    # -- what lies there -----------------------------------------------------------------------------

    def objects(self) -> dict[str, bytes]:
        names = sorted(self.client.scan_iter(count=1000))
        found = {name.decode(): self.client.get(name) for name in names}
        return {name: data for name, data in found.items() if data is not None}  # else removed meanwhile

    def ends(self, name: str) -> float:
        """When an object's life is over, in seconds since 1970."""
        return float(self.client.pexpiretime(name)) / 1000

    def age(self, names: Sequence[str]) -> None:
        """These objects' lives end earlier than those of objects that are written from now on."""
        for name in names:
            self.client.expire(name, 1000)

    def flip(self, names: Sequence[str], place: int) -> None:
        """Flips one bit of each of these objects."""
        for name in names:
            data = bytearray(self.client.get(name))
            data[place] ^= 4
            self.client.set(name, bytes(data), keepttl=True)
