"""Names in certificates and the signer's documents: each is read as it was written, and what is wrong is said."""

import base64
import hashlib
import json
from typing import Any

import pytest

from kvpool_contract import identity
from kvpool_contract.identity import CertificateName, IdentityError, bundle_digest, parse_name

NAMES = {
    "kvpool://c-1/ns/team-a/pool/chat/pod/8f.0_x": CertificateName("c-1", "team-a", "chat", "8f.0_x"),
    "kvpool://c-1/ns/team-a/pool/chat": CertificateName("c-1", "team-a", "chat"),
    "kvpool://c-1/controller": CertificateName("c-1"),
}


@pytest.mark.parametrize("uri", NAMES)
def test_a_name_is_read_as_it_was_written(uri: str) -> None:
    assert parse_name(uri) == NAMES[uri]
    assert NAMES[uri].encode() == uri
    assert NAMES[uri].is_controller is uri.endswith("/controller")


NEITHER = "names neither a member, a pool nor a controller"


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("spiffe://c/controller", "does not begin with kvpool://"),
        ("KVPOOL://c/controller", "does not begin with kvpool://"),
        ("kvpool://", NEITHER),
        ("kvpool://c", NEITHER),
        ("kvpool://c/controller/", NEITHER),
        ("kvpool://c/ns/n", NEITHER),
        ("kvpool://c/ns/n/pool/", NEITHER),
        ("kvpool://c/ns/n/pool/p/", NEITHER),
        ("kvpool://c/ns/n/pool/p/pod/", NEITHER),
        ("kvpool://c/ns/n/pool/p/pod/u/more", NEITHER),
        ("kvpool:///controller", "'' can't be a cluster"),
        ("kvpool://c/ns//pool/p", "'' can't be a k8s namespace"),
        ("kvpool://c/ns/n/pool/p?/pod/u", "'p?' can't be a pool"),
        ("kvpool://c/ns/n/pool/p/pod/u%2f", "'u%2f' can't be a pod"),
        ("kvpool://c/ns/n/pool/p\n", "can't be a pool"),
        ("kvpool://c/ns/n/pool/" + 254 * "p", "can't be a pool"),
    ],
)
def test_what_is_no_name_is_refused(uri: str, problem: str) -> None:
    with pytest.raises(IdentityError, match=r"^certificate name: ") as raised:
        parse_name(uri)
    assert problem in str(raised.value)


@pytest.mark.parametrize("name", [CertificateName("c", "n"), CertificateName("c", pod="u"), CertificateName("")])
def test_half_a_name_is_not_written(name: CertificateName) -> None:
    with pytest.raises(IdentityError):
        name.encode()


def pem(content: bytes) -> bytes:
    text = base64.encodebytes(content)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


def test_a_bundle_is_named_by_its_certificates_alone() -> None:
    one, two = pem(b"1" * 90), pem(b"2" * 90)
    expected = hashlib.sha256(b"1" * 90 + b"2" * 90).hexdigest()[:12]
    assert bundle_digest(one + two) == bundle_digest(b"# text\n" + two + b"\n\n" + one + one) == expected
    assert bundle_digest(one) != bundle_digest(two)
    with pytest.raises(IdentityError, match="no PEM certificate"):
        bundle_digest(b" \n")
    with pytest.raises(IdentityError, match="damaged"):
        bundle_digest(b"-----BEGIN CERTIFICATE-----\nAA=A\n-----END CERTIFICATE-----")


DOCUMENTS: list[tuple[Any, Any]] = [
    (identity.SignRequest(1, "chat", "token", "csr"), identity.decode_request),
    (identity.SignAnswer(1, "leaf", "bundle"), identity.decode_answer),
    (identity.SignRefused(1, "other_pool", "It is not in the pool."), identity.decode_refused),
]


@pytest.mark.parametrize(("document", "decode"), DOCUMENTS, ids=lambda one: type(one).__name__)
def test_documents_are_read_as_written_and_bounded(document: Any, decode: Any) -> None:
    data = identity.encode_document(document)
    assert decode(data) == document
    fields = json.loads(data)
    with pytest.raises(IdentityError, match="version 2, spoken here is 1"):
        decode(json.dumps({**fields, "version": 2}).encode())
    del fields["version"]
    with pytest.raises(IdentityError, match="can't be read"):
        decode(json.dumps(fields).encode())
    with pytest.raises(IdentityError, match="over the limit"):
        decode(data + b" " * identity.MAX_ANSWER)
