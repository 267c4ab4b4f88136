"""Members of a pool in the test's own process: what lets its agents take them for members."""

import os
import ssl

from authority import CLUSTER, K8S_NAMESPACE, member_uri
from replica import Pool

from kvpool_agent.identity.credentials import Credentials, read_credentials
from kvpool_agent.peer.tls import CLEAR, Tls, Transport
from kvpool_contract.identity import ALPN, CertificateName

NAME = "demo"


def credentials(pool: Pool, member: str) -> Credentials:
    certificate, key = pool.authority.leaf(member_uri(NAME, member))
    return read_credentials(certificate, key, pool.authority.certificate)


def transport(pool: Pool, member: str) -> Transport:
    """As this member talks to the others."""
    if not pool.tls:
        return CLEAR
    own = credentials(pool, member)
    return Tls(lambda: own, CertificateName(CLUSTER, K8S_NAMESPACE, NAME))


def server_context(own: Credentials, **options: object) -> ssl.SSLContext:
    """For a server that is no agent. options: attributes of the context."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), own, options)


def client_context(own: Credentials | None, **options: object) -> ssl.SSLContext:
    """For a client that is no agent; it trusts everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _loaded(context, own, options)


def _loaded(context: ssl.SSLContext, own: Credentials | None, options: dict[str, object]) -> ssl.SSLContext:
    context.set_alpn_protocols([ALPN])
    for name, value in options.items():
        setattr(context, name, value)
    if own is not None:
        load_pair(context, own.certificate + own.key)
    return context


def load_pair(context: ssl.SSLContext, pem: bytes) -> None:
    """Certificate and key, which need no file."""
    descriptor = os.memfd_create("leaf")
    os.write(descriptor, pem)
    context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
