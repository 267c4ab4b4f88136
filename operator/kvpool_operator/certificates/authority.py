"""Keys and certificates as bytes: an authority, the leaves of servers, members and the controller, and what is read
from them."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

BACKDATE = timedelta(minutes=5)  # clocks of other machines may be behind
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @cached_property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def made(self) -> datetime:
        return self.parsed.not_valid_before_utc + BACKDATE

    @property
    def expires(self) -> datetime:
        return self.parsed.not_valid_after_utc


def read_pair(certificate: bytes | None, key: bytes | None) -> Pair | None:
    """The pair, or None where it is missing, unreadable, or key and certificate don't belong together."""
    if not certificate or not key:
        return None
    try:
        pair = Pair(certificate, key)
        secret = serialization.load_pem_private_key(key, password=None)
        if secret.public_key() != pair.parsed.public_key():
            return None
    except (ValueError, TypeError):
        return None
    return pair


def new_authority(name: str, now: datetime, life: timedelta) -> Pair:
    """An authority that signs itself, valid for `life` from `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, subject, key.public_key(), now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def new_leaf(authority: Pair, names: tuple[str, ...], now: datetime, life: timedelta) -> Pair:
    """A server's certificate for `names` (DNS names and addresses), which ends no later than its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [_alternative(name) for name in names]
    return _pair(_signed(authority, key.public_key(), names[0], alternatives, [SERVER], now, life), key)


def new_member(authority: Pair, key: PublicKey, uri: str, now: datetime, life: timedelta) -> bytes:
    """The certificate (PEM) of a pool's member for its key, which nobody else has: it answers and it asks."""
    alternatives = [x509.UniformResourceIdentifier(uri)]
    made = _signed(authority, key, "kvpool member", alternatives, [SERVER, CLIENT], now, life)
    return made.public_bytes(serialization.Encoding.PEM)


def new_client(authority: Pair, uri: str, now: datetime, life: timedelta) -> Pair:
    """A certificate with which its holder asks and never answers."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.UniformResourceIdentifier(uri)]
    return _pair(_signed(authority, key.public_key(), "kvpool controller", alternatives, [CLIENT], now, life), key)


def issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the leaf carries the authority's signature."""
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_of(leaf: Pair) -> set[str]:
    """The DNS names and addresses that the leaf is for."""
    try:
        found = leaf.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(general.value) for general in found}


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _signed(
    authority: Pair,
    key: PublicKey,
    name: str,
    alternatives: Sequence[x509.GeneralName],
    usages: Sequence[ObjectIdentifier],
    now: datetime,
    life: timedelta,
) -> x509.Certificate:
    """It ends no later than its authority."""
    issuer = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    builder = (
        _builder(subject, authority.parsed.subject, key, now, min(now + life, authority.expires))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_identifier(authority.parsed), critical=False)
    )
    return builder.sign(issuer, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), secret)
