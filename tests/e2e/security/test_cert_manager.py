"""A pool with `transport.tls.mode: Secret`, whose Secret is one of cert-manager's shape."""

from agent_pool import AgentPool, Node
from authority import CLUSTER, K8S_NAMESPACE, write_identity
from cert_manager import CertManager

URI = f"kvpool://{CLUSTER}/ns/{K8S_NAMESPACE}/pool/demo"
BLOCKS = 6


def test_members_with_one_certificate_of_cert_managers_shape_share_and_take_over_its_renewal(pool: AgentPool) -> None:
    issuer = CertManager()

    def mounted(*nodes: Node, **options: object) -> None:
        certificate, key = issuer.leaf(URI, **options)  # type: ignore[arg-type]
        for node in nodes:
            write_identity(node.replica.identity, certificate, key, issuer.certificate)

    nodes = [pool.node(name) for name in "ab"]
    mounted(*nodes)
    a, b = (node.start().attach() for node in nodes)
    b.loads_from(a, "p", BLOCKS)
    for node in (a, b):
        told = node.status().tls
        assert (told.mode, told.state, told.reason, told.name) == ("Files", "ok", "", URI)
        assert "connections_in_clear" not in node.status().counters
    mounted(a, b)  # as cert-manager renews it, with another key
    for node in (a, b):
        node.until("renewed", lambda status: status.tls.renewals == 1)
    b.loads_from(a, "renewed", BLOCKS)
    # a Certificate without `usages` has no extended ones, and serves
    mounted(a, b, usages=())
    for node in (a, b):
        node.until("without usages", lambda status: status.tls.renewals == 2)
    b.loads_from(a, "without usages", BLOCKS)
    # one for servers alone does not, and is named
    mounted(a, usages=("server auth",))
    a.until("for servers alone", lambda status: status.tls.renewals == 3)
    b.until("refused", lambda status: status.counters.get("tls_refused_peer_certificate_purpose"))
