"""A certificate authority for the agents of one machine: what the operator's signer is in a cluster.

Each member's certificate lies in a folder of its own, in the shape of a kubernetes.io/tls Secret, which its agent reads
(tls.mode Files). Keys are readable for their owner alone.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLUSTER = K8S_NAMESPACE = "demo"
BACKDATE = timedelta(minutes=5)  # clocks of other machines may be behind
DAY = timedelta(days=1)
BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def member_uri(pool: str, pod: str, cluster: str = CLUSTER, k8s_namespace: str = K8S_NAMESPACE) -> str:
    return f"kvpool://{cluster}/ns/{k8s_namespace}/pool/{pool}/pod/{pod}"


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class Authority:
    """Signs what it is asked to sign."""

    def __init__(self, name: str = "kvpool demo", life: timedelta = 30 * DAY) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, self._key.public_key(), datetime.now(UTC), life)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = pem(self._certificate)

    def sign(
        self,
        public_key: ec.EllipticCurvePublicKey,
        *uris: str,
        begin: datetime | None = None,
        life: timedelta = DAY,
        usages: tuple[x509.ObjectIdentifier, ...] = BOTH_ENDS,
        dns: tuple[str, ...] = (),
    ) -> bytes:
        """A leaf (PEM) for these names, valid for `life` from `begin` on, which is now where nothing is said."""
        names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
        builder = _builder(x509.Name([]), self._certificate.subject, public_key, begin or datetime.now(UTC), life)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        return pem(builder.sign(self._key, hashes.SHA256()))

    def leaf(
        self,
        *uris: str,
        begin: datetime | None = None,
        life: timedelta = DAY,
        usages: tuple[x509.ObjectIdentifier, ...] = BOTH_ENDS,
        dns: tuple[str, ...] = (),
    ) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, of a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self.sign(key.public_key(), *uris, begin=begin, life=life, usages=usages, dns=dns), secret


def write_identity(folder: Path, certificate: bytes, key: bytes, authorities: bytes) -> None:
    """The three files of a member, each swapped as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tls.key", key), ("ca.crt", authorities), ("tls.crt", certificate)):
        swap = folder / f".{name}"
        swap.unlink(missing_ok=True)
        with open(swap, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
        swap.rename(folder / name)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    begin: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - BACKDATE)
        .not_valid_after(begin + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )
