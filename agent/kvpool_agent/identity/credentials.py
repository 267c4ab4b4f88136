"""A certificate with its key and the authorities that peers are trusted by: read as one, checked as one.

Validity is the one thing here that follows the wall clock, since certificates do; waits go by the monotonic one.
"""

import time
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvpool_contract.identity import CertificateName, IdentityError, bundle_digest, certificates_in, parse_name

_SCHEME = "kvpool://"


class Problem(Exception):  # noqa: N818 - a state that is told, not a fault of the program
    """No new credentials came; `reason` is a word of kvpool_contract.reasons."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Certified:
    """Whom a certificate names, and when it is valid: seconds since the epoch."""

    name: CertificateName
    not_before: float
    not_after: float


@dataclass(frozen=True)
class Credentials:
    """PEM: the leaf with its intermediates, its key, all authorities. `own` is read from the leaf; `bundle` and
    `authority` are digests of the authorities, and of the one that has issued the leaf (empty: none of them has)."""

    certificate: bytes
    key: bytes = field(repr=False)
    authorities: bytes
    own: Certified
    bundle: str
    authority: str


def wall_clock() -> float:
    return time.time()


def read_certified(certificate: x509.Certificate) -> Certified:
    """Raises IdentityError where it does not name exactly one holder."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    found = [uri for uri in uris if uri.startswith(_SCHEME)]
    if len(found) != 1:
        raise IdentityError(f"certificate: it has {len(found)} names that begin with {_SCHEME}, and needs exactly one")
    return Certified(
        parse_name(found[0]),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


def read_credentials(certificate: bytes, key: bytes, authorities: bytes) -> Credentials:
    """Raises IdentityError with one sentence, which never shows the key."""
    try:
        chain = x509.load_pem_x509_certificates(certificate)
    except ValueError:
        raise IdentityError("certificate: it can't be read; it must be PEM") from None
    try:
        secret = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        raise IdentityError("key: it can't be read; it must be PEM without a password") from None
    if secret.public_key() != chain[0].public_key():
        raise IdentityError("key: it is not the certificate's; both must be of the same pair")
    trusted = [x509.load_der_x509_certificate(der) for der in certificates_in(authorities)]
    return Credentials(
        certificate, key, authorities, read_certified(chain[0]), bundle_digest(authorities), _issuer(chain, trusted)
    )


def _issuer(chain: list[x509.Certificate], trusted: list[x509.Certificate]) -> str:
    for authority in trusted:
        if issued(chain[-1], authority):
            return bundle_digest(authority.public_bytes(serialization.Encoding.PEM))
    return ""


def issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the leaf carries the authority's own signature."""
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def new_key() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A new key, and the same in PEM without a password."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def new_request() -> tuple[bytes, bytes]:
    """A new key and a request for its certificate, both PEM. The request says nothing but the key: who it is for
    is what the token says."""
    key, secret = new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return secret, request.public_bytes(serialization.Encoding.PEM)
