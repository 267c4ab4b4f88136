"""Whether a Secret holds what the members of a pool can prove themselves by, without a cluster."""

import base64
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kvpool_contract.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, CertificateName, IdentityError
from kvpool_operator.certificates.authority import issued, read_pair
from kvpool_operator.certificates.proof import name_of
from kvpool_operator.desired.pool import KVCachePool

SOON = timedelta(days=7)


class CertificateError(Exception):
    """The Secret can't be used; the message names the entry and the fix."""


def check_secret(document: Any, pool: KVCachePool, now: datetime) -> str:
    """What to say of a Secret that can be used. Raises CertificateError."""
    if not isinstance(document, dict) or document.get("kind") != "Secret":
        raise CertificateError("secret: this is no Secret; give the manifest of one")
    metadata = document.get("metadata") or {}
    wanted = pool.spec.transport.tls.secret_ref.name
    if metadata.get("name") != wanted:
        raise CertificateError(
            f"secret: its name is {metadata.get('name')!r}, the pool's transport.tls.secretRef.name is {wanted!r}; "
            f"make them equal"
        )
    if metadata.get("namespace", pool.metadata.namespace) != pool.metadata.namespace:
        raise CertificateError(
            f"secret: it is in namespace {metadata['namespace']}, the pool in {pool.metadata.namespace}; put it there"
        )
    certificate, key, authorities = (_entry(document, name) for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE))
    pair = read_pair(certificate, key)
    if pair is None:
        raise CertificateError(f"secret: {CERTIFICATE_FILE} and {KEY_FILE} are no pair in PEM; correct them")
    try:
        trusted = x509.load_pem_x509_certificates(authorities)
    except ValueError:
        raise CertificateError(f"secret: {AUTHORITIES_FILE} holds no certificate in PEM; put it in") from None
    last = x509.load_pem_x509_certificates(certificate)[-1]  # of the leaf and the authorities between
    if not any(issued(last, each) for each in trusted):
        raise CertificateError(
            f"secret: {CERTIFICATE_FILE} is by none of the authorities in {AUTHORITIES_FILE}; put its authority in"
        )
    return f"Secret {wanted}: {_judge(pair.parsed, pool, now)}"


def _entry(document: dict[str, Any], name: str) -> bytes:
    plain, encoded = (document.get("stringData") or {}).get(name), (document.get("data") or {}).get(name)
    try:
        found = str(plain).encode() if plain else base64.b64decode(encoded or "", validate=True)
    except ValueError:
        raise CertificateError(f"secret: {name} is not base64; encode it, or use stringData") from None
    if not found:
        raise CertificateError(f"secret: {name} is missing; agents need {CERTIFICATE_FILE}, {KEY_FILE} and ca.crt")
    return found


def _judge(leaf: x509.Certificate, pool: KVCachePool, now: datetime) -> str:
    name = name_of(leaf)
    own = (pool.metadata.namespace, pool.metadata.name)
    if name is None or (name.k8s_namespace, name.pool) != own:
        raise CertificateError(
            f"secret: the certificate does not name the pool; its one URI must be {_example(pool)}, where CLUSTER is "
            f"the UID of the namespace kube-system"
        )
    if name.pod:
        raise CertificateError(
            f"secret: the certificate names one pod, and all use it; its URI must be {_example(pool)}"
        )
    try:
        usages = set(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usages = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= usages:
        raise CertificateError("secret: the certificate is not for both server and client authentication; issue it so")
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise CertificateError(
            f"secret: the certificate holds from {leaf.not_valid_before_utc:%Y-%m-%d} until "
            f"{leaf.not_valid_after_utc:%Y-%m-%d}; renew it"
        )
    soon = ", which is soon: renew it" if leaf.not_valid_after_utc - now < SOON else ""
    return f"names the pool in cluster {name.cluster}, holds until {leaf.not_valid_after_utc:%Y-%m-%d}{soon}"


def _example(pool: KVCachePool) -> str:
    try:
        return CertificateName("CLUSTER", pool.metadata.namespace, pool.metadata.name).encode()
    except IdentityError as error:
        raise CertificateError(f"secret: {error}") from None
