"""Where credentials come from: a folder of files, or the signer. One step at a time, asked once a second.

A step gives new credentials, or None where nothing has changed, or raises a Problem; what was in force stays then. A
key that the signer has certified is made here and never leaves memory.
"""

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509

from kvpool_agent.identity.credentials import Credentials, Problem, new_request, read_credentials, wall_clock
from kvpool_agent.identity.signer import sign
from kvpool_agent.policy.validity import pause_after, renew_at
from kvpool_contract.identity import (
    AUTHORITIES_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    MAX_ANSWER,
    PEER_AUTHORITIES_FILE,
    SIGNER_AUTHORITIES_FILE,
    TOKEN_FILE,
    IdentityError,
    SignAnswer,
    certificates_in,
)

SIGN_SECONDS = 10.0
SETTLE_SECONDS = 30.0  # between two certificates, whatever a clock says


class Source(Protocol):
    def step(self, current: Credentials | None) -> Credentials | None: ...


def read_file(path: Path) -> bytes:
    """Raises OSError. Bounded: a file that grows for ever is no certificate."""
    with path.open("rb") as opened:
        return opened.read(MAX_ANSWER)


class Files:
    """A certificate, its key and the authorities in a folder, as a Secret is mounted; read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / name for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE)]
        self._seen: list[bytes] | str = ""

    def step(self, current: Credentials | None) -> Credentials | None:  # noqa: ARG002
        found: list[bytes] | str
        try:
            found = [read_file(path) for path in self._paths]
        except OSError as error:
            found = f"{error.filename} can't be read: {error.strerror}"
        if found == self._seen:
            return None
        self._seen = found
        if isinstance(found, str):
            raise Problem("certificate_files", found)
        try:
            read = read_credentials(*found)
        except IdentityError as error:
            raise Problem("certificate_files", f"{self._paths[0].parent}: {error}") from None
        if not read.authority:  # all members have the same files, so none would trust another
            leaf, _, authorities = self._paths
            raise Problem("certificate_files", f"{leaf}: it is by none of the authorities in {authorities}")
        return read


@dataclass(frozen=True)
class SignerPlace:
    """Where a certificate is asked for, and what with: `address` host:port of the signer; `folder` of the token;
    `authorities`: folder with those of signer and peers."""

    address: str
    pool: str
    folder: Path
    authorities: Path


class Managed:
    """Certificates from the signer, renewed before half their life is over; they outlive the worker in memory that
    the supervisor holds, so that a restarted one needs no signer."""

    def __init__(
        self,
        place: SignerPlace,
        kept: int,
        ask: Callable[..., SignAnswer] = sign,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """kept: descriptor of the supervisor's memory."""
        self._place, self._kept, self._ask, self._clock = place, kept, ask, clock
        self._chance = random.random()
        self._spoilt = b""  # what was mounted and can't be used
        self._failures = 0
        self._next = 0.0
        self._restored = False

    def step(self, current: Credentials | None) -> Credentials | None:
        if not self._restored:
            self._restored = True
            if (last := self._last()) is not None:
                return last
        mounted = self._mounted(current)
        if current is not None and mounted not in (b"", current.authorities):
            return self._keep(current.certificate, current.key, mounted)
        if mounted and self._spoilt:
            self._spoilt = b""
            return current  # what was told of the file is not true any more
        if not self._is_due(current) or self._clock() < self._next:
            return None
        try:
            renewed = self._renew(current)
        except Problem:
            self._failures += 1
            self._next = self._clock() + pause_after(self._failures, self._chance)
            raise
        self._failures, self._next = 0, self._clock() + SETTLE_SECONDS
        return renewed

    def _is_due(self, current: Credentials | None) -> bool:
        """Also where the authority that has issued it is trusted no more."""
        if current is None or not current.authority:
            return True
        return wall_clock() >= renew_at(current.own.not_before, current.own.not_after, self._chance)

    def _renew(self, current: Credentials | None) -> Credentials:
        place = self._place
        try:
            token = read_file(place.folder / TOKEN_FILE).decode().strip()
        except (OSError, ValueError):
            raise Problem("token_missing", f"{place.folder / TOKEN_FILE} can't be read") from None
        try:
            trusted = read_file(place.authorities / SIGNER_AUTHORITIES_FILE)
        except OSError as error:
            raise Problem("signer_untrusted", f"{error.filename} can't be read: {error.strerror}") from None
        key, request = new_request()
        answer = self._ask(place.address, trusted, place.pool, token, request, SIGN_SECONDS)
        return self._keep(answer.certificate.encode(), key, self._mounted(current) or answer.bundle.encode())

    def _mounted(self, current: Credentials | None) -> bytes:
        """The peers' authorities that lie beside the configuration; empty where there are none, or none that can be
        used, which is told once: the last ones stay then."""
        file = self._place.authorities / PEER_AUTHORITIES_FILE
        try:
            found = read_file(file)
        except OSError:
            return b""
        if found == self._spoilt:
            return b""
        if current is not None and found == current.authorities:
            return found
        try:
            for der in certificates_in(found):
                x509.load_der_x509_certificate(der)
        except ValueError as error:
            self._spoilt = found
            raise Problem("certificate_files", f"{file}: {error}") from None
        return found

    def _keep(self, certificate: bytes, key: bytes, authorities: bytes) -> Credentials:
        try:
            credentials = read_credentials(certificate, key, authorities)
        except IdentityError as error:
            raise Problem("signer_answer", str(error)) from None
        text = json.dumps([part.decode() for part in (certificate, key, authorities)]).encode()
        os.ftruncate(self._kept, 0)
        os.pwrite(self._kept, text, 0)
        return credentials

    def _last(self) -> Credentials | None:
        """What an earlier worker of this pod had; a death while it was written leaves none."""
        try:
            parts = [str(part).encode() for part in json.loads(os.pread(self._kept, 4 * MAX_ANSWER, 0))]
            return read_credentials(*parts)
        except (OSError, ValueError, TypeError, IndexError, RecursionError):
            return None
