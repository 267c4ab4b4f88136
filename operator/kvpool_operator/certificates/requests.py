"""What is taken from a certificate request: its key, once the request has shown that its sender holds it. Every name
and extension in it counts for nothing."""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from kvpool_operator.certificates.authority import PublicKey

MAX_REQUEST = 8 * 2**10  # characters of PEM


class RequestError(ValueError):
    """The request can't be signed; the message is one sentence that says why."""


def requested_key(pem: str) -> PublicKey:
    """The key of a request (PEM); raises RequestError."""
    if len(pem) > MAX_REQUEST:
        raise RequestError(f"the certificate request is longer than {MAX_REQUEST} characters")
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        if isinstance(key, ed25519.Ed25519PublicKey):
            found: PublicKey = key
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
            found = key
        else:
            raise RequestError("the request's key is neither EC P-256 nor Ed25519; make one of these")
        signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("the certificate request can't be read; send one in PEM") from None
    if not signed:
        raise RequestError("the certificate request is not signed by its own key")
    return found
