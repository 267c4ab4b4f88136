"""Secrets in the shape that cert-manager writes them, for tests without cert-manager: it is not run here.

What it does otherwise than kvpool's own signer: an RSA key in PKCS#1, no subject and so names that are critical, a
critical key usage, extended usages only where the Certificate asks for them, the intermediate authority behind the leaf
in `tls.crt`, and the root in `ca.crt`.
"""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

USAGES = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}
DAY = timedelta(days=1)


class CertManager:
    """An issuer of kind CA whose own certificate is signed by a root. `certificate`: the root's, PEM."""

    def __init__(self) -> None:
        self._root = _key()
        root = _name("root")
        made = _builder(root, root, self._root, authority=1).sign(self._root, hashes.SHA256())
        self.certificate = _pem(made)
        self._issuer, self._name = _key(), _name("issuer")
        between = _builder(self._name, root, self._issuer, authority=0).sign(self._root, hashes.SHA256())
        self._intermediate = _pem(between)

    def leaf(self, *uris: str, dns: Sequence[str] = (), usages: Sequence[str] = tuple(USAGES)) -> tuple[bytes, bytes]:
        """(tls.crt, tls.key) of a new key. usages: those of the Certificate beyond its defaults."""
        key = _key()
        names = [*map(x509.DNSName, dns), *map(x509.UniformResourceIdentifier, uris)]
        builder = _builder(x509.Name([]), self._name, key).add_extension(
            x509.SubjectAlternativeName(names), critical=True
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage([USAGES[u] for u in usages]), critical=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        return _pem(builder.sign(self._issuer, hashes.SHA256())) + self._intermediate, secret

    def secret(self, name: str, *uris: str, **options: Any) -> dict[str, Any]:
        """The manifest."""
        certificate, key = self.leaf(*uris, **options)
        entries = {"ca.crt": self.certificate, "tls.crt": certificate, "tls.key": key}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": name,
                "labels": {"controller.cert-manager.io/fao": "true"},
                "annotations": {
                    "cert-manager.io/certificate-name": name,
                    "cert-manager.io/common-name": "",
                    "cert-manager.io/issuer-kind": "ClusterIssuer",
                    "cert-manager.io/issuer-name": "our-ca",
                    "cert-manager.io/uri-sans": ",".join(uris),
                },
            },
            "data": {entry: base64.b64encode(value).decode() for entry, value in entries.items()},
        }


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, authority: int | None = None
) -> x509.CertificateBuilder:
    """authority: how many authorities may stand below this one; None for a leaf."""
    now, signs = datetime.now(UTC), authority is not None
    usage = x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not signs,
        key_cert_sign=signs,
        **dict.fromkeys(
            ("content_commitment", "data_encipherment", "key_agreement", "crl_sign", "encipher_only", "decipher_only"),
            False,
        ),
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + 90 * DAY)
        .add_extension(usage, critical=True)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=authority), critical=True)
    )
