"""Who is who in certificates, and what agent and signer say to each other.

A certificate names its holder by one URI and nothing else: cluster, Kubernetes namespace, pool and pod. So a member of
another pool, of a pool of the same name elsewhere, or of another cluster can't pass for one of this pool, whoever has
signed for it. Signing is one HTTPS request, with bounds on both sides.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

AUDIENCE = "kvpool.io"  # of the projected service-account token
VERSION = 1
SIGN_PATH = "/sign"
ALPN = "kvpool"
MAX_REQUEST, MAX_ANSWER = 32 << 10, 256 << 10  # bytes, of the signer's two documents
IDENTITY_FOLDER = "/kvpool/identity"  # not below /run/kvpool, which the engine mounts, too
TOKEN_FILE = "token"  # noqa: S105 - a file's name
CERTIFICATE_FILE, KEY_FILE, AUTHORITIES_FILE = "tls.crt", "tls.key", "ca.crt"  # of a kubernetes.io/tls Secret
SIGNER_AUTHORITIES_FILE, PEER_AUTHORITIES_FILE = "signer-ca.crt", "peers-ca.crt"  # beside the configuration
DIGEST_DIGITS = 12

_Document = TypeVar("_Document", "SignRequest", "SignAnswer", "SignRefused")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
_SCHEME = "kvpool://"
_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class IdentityError(ValueError):
    """A name or a document of the signer's can't be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class CertificateName:
    """Whom a certificate names. Without `pod`: any member of the pool, as a Secret that all its pods share can only
    say. Without `k8s_namespace` and `pool`: the controller of the cluster. `cluster`: UID of its kube-system."""

    cluster: str
    k8s_namespace: str = ""
    pool: str = ""
    pod: str = ""

    @property
    def is_controller(self) -> bool:
        return not self.pool

    def encode(self) -> str:
        """The URI. Raises IdentityError."""
        parts = {"cluster": self.cluster}
        if not self.is_controller or self.k8s_namespace or self.pod:
            parts |= {"k8s namespace": self.k8s_namespace, "pool": self.pool}
        if self.pod:
            parts["pod"] = self.pod
        for what, part in parts.items():
            if not _PART.fullmatch(part):
                raise IdentityError(f"certificate name: {part[:80]!r} can't be a {what}; use letters, digits, - . _")
        if self.is_controller:
            return f"{_SCHEME}{self.cluster}/controller"
        pod = f"/pod/{self.pod}" if self.pod else ""
        return f"{_SCHEME}{self.cluster}/ns/{self.k8s_namespace}/pool/{self.pool}{pod}"


def parse_name(uri: str) -> CertificateName:
    """The name that a URI stands for. Raises IdentityError."""
    if not uri.startswith(_SCHEME):
        raise IdentityError(f"certificate name: {uri[:80]!r} does not begin with {_SCHEME}")
    match uri.removeprefix(_SCHEME).split("/"):
        case [cluster, "controller"]:
            name = CertificateName(cluster)
        case [cluster, "ns", namespace, "pool", pool] if pool:
            name = CertificateName(cluster, namespace, pool)
        case [cluster, "ns", namespace, "pool", pool, "pod", pod] if pool and pod:
            name = CertificateName(cluster, namespace, pool, pod)
        case _:
            raise IdentityError(f"certificate name: {uri[:80]!r} names neither a member, a pool nor a controller")
    name.encode()
    return name


def certificates_in(pem: bytes) -> list[bytes]:
    """The certificates (DER) in a PEM text, in order. Raises IdentityError where there is none, or one is damaged."""
    try:
        found = [base64.b64decode(b"".join(block.split()), validate=True) for block in _PEM.findall(pem)]
    except ValueError:
        raise IdentityError("authorities: a certificate in the PEM text is damaged") from None
    if not found:
        raise IdentityError("authorities: there is no PEM certificate in the text")
    return found


def bundle_digest(pem: bytes) -> str:
    """Names a set of authorities in a status, whatever their order and the blanks between them: the first 12 hex
    digits of the SHA-256 of the certificates (DER), sorted and each once. Raises IdentityError."""
    return hashlib.sha256(b"".join(sorted(set(certificates_in(pem))))).hexdigest()[:DIGEST_DIGITS]


class SignRequest(msgspec.Struct, frozen=True):
    """What an agent asks of the signer: its pool, its projected token, and a certificate request (PEM) whose key it
    keeps. The names in the request count for nothing."""

    version: int
    pool: str
    token: str
    csr: str


class SignAnswer(msgspec.Struct, frozen=True):
    """The leaf, with intermediates after it, and all authorities that peers may be trusted by; both PEM."""

    version: int
    certificate: str
    bundle: str


class SignRefused(msgspec.Struct, frozen=True):
    """Why the signer has not signed: a word and a sentence."""

    version: int
    reason: str
    sentence: str


def encode_document(document: SignRequest | SignAnswer | SignRefused) -> bytes:
    return msgspec.json.encode(document)


def decode_request(data: bytes) -> SignRequest:
    """Raises IdentityError."""
    return _decode(data, SignRequest, MAX_REQUEST)


def decode_answer(data: bytes) -> SignAnswer:
    """Raises IdentityError."""
    return _decode(data, SignAnswer, MAX_ANSWER)


def decode_refused(data: bytes) -> SignRefused:
    """Raises IdentityError."""
    return _decode(data, SignRefused, MAX_ANSWER)


def _decode(data: bytes, shape: type[_Document], limit: int) -> _Document:
    what = "signing request" if shape is SignRequest else "signer's answer"
    if len(data) > limit:
        raise IdentityError(f"{what}: {len(data)} bytes are over the limit of {limit}")
    try:
        found = msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, RecursionError) as error:
        raise IdentityError(f"{what}: it can't be read: {error}") from None
    if found.version != VERSION:
        raise IdentityError(f"{what}: version {found.version}, spoken here is {VERSION}; update the older side")
    return found
