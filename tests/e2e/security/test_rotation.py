"""Certificates and authorities that change under load: no load fails, and everybody ends with the new ones."""

from agent_pool import AgentPool, Node
from authority import Authority, member_uri, write_identity
from standin_engine import Served, prompt
from under_load import Load

from kvpool_contract.identity import bundle_digest

BLOCKS = 2


def give(node: Node, by: Authority, *trusted: Authority) -> None:
    authorities = b"".join(authority.certificate for authority in trusted)
    certificate, key = by.leaf(member_uri("demo", node.replica.member))
    write_identity(node.replica.identity, certificate, key, authorities)


def trust(node: Node, *trusted: Authority) -> None:
    swap = node.replica.identity / ".ca"
    swap.write_bytes(b"".join(authority.certificate for authority in trusted))
    swap.rename(node.replica.identity / "ca.crt")


def test_leaf_and_authority_change_under_load_without_a_failed_load(pool: AgentPool) -> None:
    a, b = pool.all_joined("ab")
    old, new = pool.pool.authority, Authority("the next")
    b.until_sees(a)

    def computed_by_a(n: int) -> list[int]:
        """Each prompt once, and so over the network."""
        tokens = prompt(f"p{n}", BLOCKS)
        a.engine.serve(tokens)
        a.until_blocks((n + 1) * BLOCKS)
        b.until_sees(a).until_knows(tokens)
        return tokens

    with Load(b, computed_by_a) as load:
        # a new leaf; then a new authority: trusted first, signing next, alone at the end
        for step, digest in (
            (lambda node: give(node, old, old), bundle_digest(old.certificate)),
            (lambda node: trust(node, old, new), bundle_digest(old.certificate + new.certificate)),
            (lambda node: give(node, new, old, new), bundle_digest(old.certificate + new.certificate)),
            (lambda node: trust(node, new), bundle_digest(new.certificate)),
        ):
            begun = len(load.served)
            for node in (a, b):
                before = node.status().tls
                step(node)
                node.until(
                    "in force",
                    lambda s, before=before, digest=digest: (
                        s.tls.bundle == digest and (s.tls.renewals > before.renewals or s.tls.bundle != before.bundle)
                    ),
                )
            # one that began before the change has ended, and one that began after it, too
            b.until("loads under the change", lambda _, begun=begun: load.errors or len(load.served) > begun + 2, 60)
            assert load.errors == []
    assert load.served == [Served(pool=BLOCKS)] * len(load.served)
    for node in (a, b):
        status = node.status()
        assert (status.tls.state, status.tls.reason, status.tls.renewals) == ("ok", "", 2)
        assert status.tls.bundle == status.tls.authority == bundle_digest(new.certificate)
        assert {w: n for w, n in status.counters.items() if w.startswith("tls_refused_")} == {}
    assert b.status().misses == {}
    assert b.status().transfers["demand_in"].blocks == len(load.served) * BLOCKS
