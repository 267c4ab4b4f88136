"""The authority that signs for members, from files that the controller writes by way of a Secret and the kubelet swaps
at any moment: what doesn't fit together is not taken, and the one before stays."""

import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kvpool_operator.certificates.authority import Pair, read_pair
from kvpool_operator.certificates.peers import CLUSTER
from kvpool_operator.certificates.plan import BUNDLE, CERTIFICATE, KEY

log = logging.getLogger("kvpool.webhook")


@dataclass(frozen=True)
class Authority:
    """`bundle`: all authorities that peers trust, this one among them (PEM). `cluster`: its name in certificates."""

    pair: Pair
    bundle: str
    cluster: str


class LiveAuthority:
    """`loaded` counts the authorities taken, `refused` those that were not usable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digest = b""
        self._found: Authority | None = None
        self.loaded = self.refused = 0

    def at(self, now: datetime) -> Authority | None:
        """The one that signs; None where there is none, or it has expired."""
        found = self._found
        return found if found is not None and now < found.pair.expires else None

    @property
    def expires(self) -> float:
        """Seconds since 1970; 0 where there is none."""
        return self._found.pair.expires.timestamp() if self._found else 0.0

    def refresh(self) -> None:
        """Takes what lies in the folder if it is something new."""
        try:
            files = [(self._folder / name).read_bytes() for name in (CERTIFICATE, KEY, BUNDLE, CLUSTER)]
        except OSError:
            return  # not there yet, or being replaced
        digest = hashlib.sha256(b"\0".join(files)).digest()
        if digest == self._digest:
            return
        self._digest = digest
        certificate, key, bundle, cluster = files
        pair = read_pair(certificate, key)
        if pair is None or certificate not in bundle or not cluster:
            self.refused += 1
            log.error("the authority in %s can't be used, the one before it stays", self._folder)
            return
        self._found = Authority(pair, bundle.decode(), cluster.decode().strip())
        self.loaded += 1
        log.info("the authority for members is taken, valid until %s", pair.expires.isoformat())
