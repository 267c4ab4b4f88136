"""The configuration in force: the mounted file, read again once a second, and kept when it can't be used.

A mount swaps the file as a whole, so its content is what is compared; no notification of the kernel's crosses every
kind of mount. What was in force survives the worker in memory that the supervisor holds, so that a restart beside a
vanished or broken file is no outage, and fields that hold for new pods stay what this pod began with.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from kvpool_contract.config import AgentConfig, ConfigError, decode_config, digest_of, encode_config, take_over
from kvpool_contract.status import ConfigInForce

log = logging.getLogger("kvpool.config")

LOOK_SECONDS = 1.0
MAX_BYTES = 1 << 20


class Configuration:
    """`config` is what holds now; one thread offers, any may read."""

    def __init__(self, file: Path, kept: int) -> None:
        """kept: descriptor of the supervisor's memory. Raises ConfigError where neither it nor the file can be
        used."""
        self._file = file
        self._kept = kept
        self._seen: bytes | None = None
        self._problem = ""
        self._digest = ""
        self._new_pods: tuple[str, ...] = ()
        self.unknown_fields: tuple[str, ...] = ()
        last = self._last()
        if last is None:
            self.config = self._first()
        else:
            self.config, self._digest = last
            self.look()

    def look(self) -> bool:
        """Reads the file; whether something is to be told: another configuration holds, or another problem."""
        try:
            data = self._read()
        except ConfigError as error:
            return self._refused(error)
        if data == self._seen and not self._problem:
            return False
        self._seen = data
        try:
            decoded = decode_config(data)
        except ConfigError as error:
            return self._refused(error)
        self._problem = ""
        self.config, self._new_pods = take_over(self.config, decoded.config)
        self.unknown_fields, self._digest = decoded.unknown_fields, digest_of(data)
        self._keep()
        if self._new_pods:
            log.warning("configuration: %s changed; that holds for new pods", ", ".join(self._new_pods))
        return True

    @property
    def in_force(self) -> ConfigInForce:
        return ConfigInForce(
            self._digest,
            self.config.generation,
            "config_invalid" if self._problem else "",
            self._problem,
            list(self._new_pods),
        )

    async def follow(self, changed: Callable[[], None]) -> None:
        """Looks once a second, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.look():
                changed()

    def _read(self) -> bytes:
        try:
            with self._file.open("rb") as opened:
                return opened.read(MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"configuration file: it can't be read: {error.strerror}; restore it") from None

    def _refused(self, error: ConfigError) -> bool:
        """The last one stays."""
        if str(error) == self._problem:
            return False
        self._problem = str(error)
        log.error("%s; the last configuration stays in force", error)
        return True

    def _first(self) -> AgentConfig:
        data = self._read()
        decoded = decode_config(data)
        self._seen, self._digest, self.unknown_fields = data, digest_of(data), decoded.unknown_fields
        self.config = decoded.config
        self._keep()
        return decoded.config

    def _keep(self) -> None:
        text = json.dumps({"digest": self._digest, "document": encode_config(self.config)}).encode()
        with contextlib.suppress(OSError):
            os.ftruncate(self._kept, 0)
            os.pwrite(self._kept, text, 0)

    def _last(self) -> tuple[AgentConfig, str] | None:
        """What an earlier worker of this pod had in force; a death while it was written leaves none."""
        try:
            found = json.loads(os.pread(self._kept, 2 * MAX_BYTES, 0))
            return decode_config(found["document"].encode()).config, str(found["digest"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
