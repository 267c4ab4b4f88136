"""The webhook's certificate, taken from files that somebody else replaces, without a connection lost.

The live TLS context takes a new pair for new handshakes, and connections that are open go on. A pair that does not
fit together would leave the context without any key, so it is tried on a context of its own first; the two files are
read, and copied together, since the kubelet may swap them in between.
"""

import hashlib
import logging
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

log = logging.getLogger("kvpool.webhook")

CERTIFICATE, KEY = "tls.crt", "tls.key"


class LiveCertificate:
    """`loaded` counts the pairs taken, `refused` those that were not usable; `expires` is that of the pair in use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digest = b""
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.loaded = self.refused = 0
        self.expires: datetime | None = None

    def valid(self, now: datetime) -> bool:
        return self.expires is not None and now < self.expires

    def refresh(self) -> None:
        """Takes the pair in the folder if it is a new one."""
        try:
            certificate, key = ((self._folder / name).read_bytes() for name in (CERTIFICATE, KEY))
        except OSError:
            return  # not there yet, or being replaced
        digest = hashlib.sha256(certificate + b"\0" + key).digest()
        if digest == self._digest:
            return
        self._digest = digest
        try:
            expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
            with tempfile.TemporaryDirectory() as name:
                copy = Path(name)
                (copy / CERTIFICATE).write_bytes(certificate)
                (copy / KEY).write_bytes(key)
                for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                    context.load_cert_chain(copy / CERTIFICATE, copy / KEY)
        except (ValueError, ssl.SSLError) as error:
            self.refused += 1
            log.error("the certificate in %s can't be used, the one before it stays: %s", self._folder, error)
            return
        except OSError as error:
            self._digest = b""  # tried again
            log.error("the certificate can't be copied, the one before it stays: %s", error)
            return
        self.loaded += 1
        self.expires = expires
        log.info("certificate taken, valid until %s", expires.astimezone(UTC).isoformat())
