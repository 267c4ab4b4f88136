"""Asking the signer for a certificate: one HTTPS request, bounded in time and bytes, its failures told apart."""

import contextlib
import http.client
import socket
import ssl
import threading

from kvpool_agent.identity.credentials import Problem
from kvpool_contract.identity import (
    MAX_ANSWER,
    SIGN_PATH,
    VERSION,
    IdentityError,
    SignAnswer,
    SignRequest,
    decode_answer,
    decode_refused,
    encode_document,
)


def sign(address: str, authorities: bytes, pool: str, token: str, request: bytes, seconds: float) -> SignAnswer:
    """address: host:port; authorities: PEM, by which the signer is trusted; seconds: for all of it. Raises Problem."""
    body = encode_document(SignRequest(VERSION, pool, token, request.decode()))
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cadata=authorities.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except (ssl.SSLError, ValueError) as error:
        raise Problem("signer_untrusted", f"the signer's authorities can't be read: {error}") from None
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=seconds, context=context)
    late = threading.Event()

    def cut() -> None:  # the timeouts of HTTP are of each step, and there may be many
        late.set()
        sock = connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    watch = threading.Timer(seconds, cut)
    watch.daemon = True
    watch.start()
    try:
        connection.request("POST", SIGN_PATH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, data = response.status, response.read(MAX_ANSWER + 1)
    except ssl.SSLCertVerificationError as error:
        raise Problem(*_distrust(address, error)) from None
    except (OSError, http.client.HTTPException) as error:
        problem = f"no answer within {seconds:.0f} s" if late.is_set() else str(error) or type(error).__name__
        raise Problem("signer_unreachable", f"the signer {address} does not answer: {problem}") from None
    finally:
        watch.cancel()
        connection.close()
    return _answer(address, status, data)


def _distrust(address: str, error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    match error.verify_code:
        case 9:
            return "signer_not_yet_valid", f"the certificate of the signer {address} is not valid yet by this clock"
        case 10:
            return "signer_expired", f"the certificate of the signer {address} has expired by this clock"
    return "signer_untrusted", f"the signer {address} is not trusted: {error.verify_message}"


def _answer(address: str, status: int, data: bytes) -> SignAnswer:
    try:
        if status == http.client.OK:
            return decode_answer(data)
        if 400 <= status < 500:
            refused = decode_refused(data)
            raise Problem("signer_refused", f"the signer refuses: {refused.reason}: {refused.sentence}"[:500])
    except IdentityError as error:
        raise Problem("signer_answer", f"the signer {address} answers {status}: {error}"[:500]) from None
    raise Problem("signer_unreachable", f"the signer {address} answers {status}")
