"""Whom a certificate proves its holder to be, by given authorities, at a given time."""

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from kvpool_contract.identity import CertificateName, IdentityError, parse_name


def name_in(certificate: bytes) -> CertificateName | None:
    """The one name in a certificate (DER), whoever has signed it."""
    try:
        found = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        (uri,) = found.value.get_values_for_type(x509.UniformResourceIdentifier)
        return parse_name(uri)
    except (ValueError, x509.ExtensionNotFound, IdentityError):
        return None


def proves(certificate: bytes, bundle: bytes, now: datetime) -> bool:
    """Whether one of the authorities (PEM) has issued the certificate (DER), and it holds now. Authorities sign leaves
    and nothing between."""
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        authorities = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return False
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        return False
    return any(_issued(leaf, each) for each in authorities if each.not_valid_after_utc > now)


def _issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
