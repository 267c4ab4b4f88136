"""Whom a certificate proves its holder to be, by given authorities, at a given time."""

from datetime import datetime
from functools import lru_cache

from cryptography import x509

from kvpool_contract.identity import CertificateName, IdentityError, parse_name
from kvpool_operator.certificates.authority import issued


def read_leaf(certificate: bytes) -> x509.Certificate | None:
    """A certificate (DER), or None where it can't be read."""
    try:
        return x509.load_der_x509_certificate(certificate)
    except ValueError:
        return None


def name_of(leaf: x509.Certificate) -> CertificateName | None:
    """The one name in a certificate, whoever has signed it."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        (uri,) = found.value.get_values_for_type(x509.UniformResourceIdentifier)
        return parse_name(uri)
    except (ValueError, x509.ExtensionNotFound, IdentityError):
        return None


def proves(leaf: x509.Certificate, bundle: bytes, now: datetime) -> bool:
    """Whether one of the authorities (PEM) has issued the certificate, and it holds now. Authorities sign leaves and
    nothing between."""
    try:
        authorities = _authorities(bundle)
    except ValueError:
        return False
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        return False
    return any(issued(leaf, each) for each in authorities if each.not_valid_after_utc > now)


@lru_cache(maxsize=4)  # every agent's certificate is held to the same bundle, for months
def _authorities(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)
