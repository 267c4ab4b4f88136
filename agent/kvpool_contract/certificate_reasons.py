"""The reasons of certificates: of this member's own, and of those at the other end of a connection."""

from kvpool_contract.reason import Reason

CERTIFICATE_REASONS = (
    # of certificates: this member's own
    Reason(
        "no_certificate",
        "The agent has no certificate yet, so no other member talks to it.",
        "Nothing to do where it comes within moments: it keeps trying, and warms up then; else see tls in its status.",
    ),
    Reason(
        "certificate_expires_soon",
        "The certificate could not be renewed in time and ends soon.",
        "Look at the signer (the webhook's pods), or renew the Secret.",
    ),
    Reason(
        "certificate_expired",
        "The certificate has ended, so no other member talks to this one.",
        "Look at the signer (the webhook's pods), or renew the Secret; check the node's clock.",
    ),
    Reason(
        "certificate_files",
        "Certificate, key or authorities can't be read, or don't belong together; the last ones stay in force.",
        "Correct the Secret: tls.crt, tls.key and ca.crt, in PEM.",
    ),
    Reason(
        "certificate_name",
        "The certificate names another member or pool than this one.",
        "Put the URI that the detail names into the certificate.",
    ),
    Reason("clock_behind", "By this node's clock its certificate is not valid yet.", "Correct the node's clock."),
    Reason(
        "token_missing",
        "The projected service-account token can't be read.",
        "Inject the pod anew; its template lacks the token's volume.",
    ),
    Reason(
        "signer_unreachable",
        "The signer does not answer; the certificate in force goes on until it ends.",
        "Look at the webhook's pods and at the network to them.",
    ),
    Reason(
        "signer_untrusted",
        "The signer's certificate is of no authority that the agent trusts.",
        "Look at the controller, which writes the authorities into the pool's ConfigMap.",
    ),
    Reason(
        "signer_expired",
        "The signer's certificate has expired by this node's clock.",
        "Correct the node's clock if it is ahead; else look at the controller, which renews that certificate.",
    ),
    Reason(
        "signer_not_yet_valid",
        "The signer's certificate is not valid yet by this node's clock.",
        "Correct the node's clock, which is behind.",
    ),
    Reason(
        "signer_refused",
        "The signer does not issue a certificate for this pod.",
        "See the signer's own reason in the detail.",
    ),
    Reason(
        "signer_answer",
        "The signer's answer can't be used.",
        "Finish the update of operator and agents; report it if it stays.",
    ),
    # of certificates: why a connection with another member was refused
    Reason(
        "peer_no_certificate",
        "A client of the peer port showed no certificate.",
        "If it is a member, give it one; nobody else has anything to ask there.",
    ),
    Reason(
        "peer_unknown_authority",
        "The other end's certificate is of no authority that this member trusts.",
        "Give all members of the pool the same authorities.",
    ),
    Reason(
        "peer_certificate_expired",
        "The other end's certificate has expired by this node's clock.",
        "Look at tls in its status; correct the clock that is wrong.",
    ),
    Reason(
        "peer_certificate_not_yet_valid",
        "The other end's certificate is not valid yet by this node's clock.",
        "Correct this node's clock, which is behind, or that of the signer, which is ahead.",
    ),
    Reason(
        "peer_certificate_purpose",
        "The other end's certificate is not for both ends of a connection.",
        "Issue it for server and client authentication.",
    ),
    Reason(
        "peer_certificate_name",
        "The other end's certificate names no member, or several.",
        "Put exactly one kvpool:// URI into it.",
    ),
    Reason("peer_other_cluster", "The other end is of another cluster.", "Look at who sent it there."),
    Reason(
        "peer_other_k8s_namespace",
        "The other end is of a pool in another Kubernetes namespace.",
        "Look at who sent it there.",
    ),
    Reason("peer_other_pool", "The other end is of another pool.", "Look at who sent it there."),
    Reason(
        "peer_other_member",
        "The other end says that it is another member than its certificate names.",
        "Look at that pod: it uses a certificate that is not its own.",
    ),
    Reason("peer_tls_version", "The other end speaks no TLS 1.3.", "Finish the update of the pool's agents."),
    Reason(
        "peer_not_tls",
        "The other end speaks in clear.",
        "Give all members of the pool the same tls.mode; new pods have the new one.",
    ),
    Reason("peer_handshake", "The TLS handshake broke off.", "Look at the network; port scans look like this, too."),
    Reason(
        "refused_by_peer",
        "The other end does not accept this member's certificate.",
        "Look at tls in the status of both.",
    ),
)
