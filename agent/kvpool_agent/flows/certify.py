"""This member among others: the transport that the configuration asks for, its certificate, and a newcomer without one.

A newcomer whose signer is down must not hold back its pod: after a short wait it is ready and serves alone, and its
warm-up begins when the certificate comes.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvpool_agent.account import Account
from kvpool_agent.identity.keeper import Keeper
from kvpool_agent.identity.sources import Files, Managed, SignerPlace, read_file
from kvpool_agent.peer.tls import Clear, Tls, Transport
from kvpool_contract.config import AgentConfig
from kvpool_contract.identity import PEER_AUTHORITIES_FILE, CertificateName
from kvpool_contract.status import Tls as TlsStatus

log = logging.getLogger("kvpool.certify")

NEWCOMER_SECONDS = 15.0  # one answer of the signer takes ten at most


@dataclass(frozen=True)
class IdentityPlace:
    """`folder`: of token or certificate; `authorities`: of those that a pool's configuration brings; `kept`: descriptor
    of memory that outlives this worker."""

    folder: Path
    authorities: Path
    kept: int


def _there(path: Path) -> bytes:
    """What is in a file; nothing where it can't be read."""
    try:
        return read_file(path)
    except OSError:
        return b""


class Certification:
    """`transport` for dialer and server. Any thread may call."""

    def __init__(self, config: AgentConfig, member: str, place: IdentityPlace, account: Account) -> None:
        tls = config.tls
        self._keeper: Keeper | None = None
        self._in_files = tls.mode == "Files"
        self._began = time.monotonic()
        self.transport: Transport = Clear(account.count)
        if tls.mode == "Disabled":
            return
        source = (
            Files(place.folder)
            if self._in_files
            else Managed(SignerPlace(tls.signer, config.pool, place.folder, place.authorities), place.kept)
        )
        own = CertificateName(tls.cluster, tls.k8sNamespace, config.pool, member)
        keeper = self._keeper = Keeper(tls.mode, source, own, account.event)
        self.transport = Tls(
            lambda: keeper.credentials,
            own,
            account.count,
            controllers=lambda: _there(place.authorities / PEER_AUTHORITIES_FILE),
            apart=self._in_files,
        )

    def start(self) -> None:
        """Before others are asked: what lies in files is in force then."""
        if self._keeper is not None:
            if self._in_files:
                self._keeper.look()
            self._keeper.start()

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def snapshot(self) -> TlsStatus:
        if self._keeper is None:
            return TlsStatus("Disabled")
        told = self._keeper.snapshot()
        reason, detail = self.transport.trouble()
        return told if told.reason or not reason else msgspec.structs.replace(told, reason=reason, detail=detail)

    def when_certified(self, begin: Callable[[float], None], without: Callable[[], None]) -> None:
        """Calls begin(moment on the monotonic clock from which a warm-up's deadline counts): at once where there is a
        certificate or none is needed, else when it has come. `without` is called where that takes long, or
        the container has no thread left to wait on."""
        keeper, attached = self._keeper, time.monotonic()
        if keeper is None or keeper.credentials is not None:
            begin(attached)
            return

        def wait() -> None:
            came = keeper.wait(max(0.0, self._began + NEWCOMER_SECONDS - time.monotonic()))
            if not came:
                without()
                came = keeper.wait()
            if came:
                begin(time.monotonic())

        try:
            threading.Thread(target=wait, name="kvpool-newcomer", daemon=True).start()
        except RuntimeError as error:
            log.error("nobody waits for the certificate: %s", error)
            without()
