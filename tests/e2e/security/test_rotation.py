"""Certificates and authorities that change under load: no load fails, and everybody ends with the new ones."""

import threading

from agent_pool import AgentPool, Node
from authority import Authority, member_uri, write_identity
from standin_engine import Served, prompt

from kvpool_contract.identity import bundle_digest

BLOCKS, PROMPTS = 2, 120
PAUSE_SECONDS = 0.15


class Loading(threading.Thread):
    """Loads one prompt after another from the other member, each once and so over the network, until it is told to
    stop."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._ended = threading.Event()
        self.served: list[Served] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(PAUSE_SECONDS) and len(self.served) < PROMPTS:  # a rate, not a wait
                self.served.append(self._node.engine.serve(prompt(f"p{len(self.served)}", BLOCKS)))
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            self.error = error

    def __enter__(self) -> "Loading":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


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
    for n in range(PROMPTS):
        a.engine.serve(prompt(f"p{n}", BLOCKS))
    a.until_blocks(PROMPTS * BLOCKS)
    b.until_sees(a)
    with Loading(b) as loading:
        # a new leaf; then a new authority: trusted first, signing next, alone at the end
        for step, digest in (
            (lambda node: give(node, old, old), bundle_digest(old.certificate)),
            (lambda node: trust(node, old, new), bundle_digest(old.certificate + new.certificate)),
            (lambda node: give(node, new, old, new), bundle_digest(old.certificate + new.certificate)),
            (lambda node: trust(node, new), bundle_digest(new.certificate)),
        ):
            begun = len(loading.served)
            for node in (a, b):
                before = node.status().tls
                step(node)
                node.until(
                    "in force",
                    lambda s, before=before, digest=digest: (
                        s.tls.bundle == digest and (s.tls.renewals > before.renewals or s.tls.bundle != before.bundle)
                    ),
                )
            assert loading.error is None
            assert begun < len(loading.served)
        last = len(loading.served)
        assert last < PROMPTS, "the load ended before the rotation did"
        b.until("some more", lambda _: len(loading.served) >= min(last + 3, PROMPTS))
    assert loading.error is None
    assert loading.served == [Served(pool=BLOCKS)] * len(loading.served)
    for node in (a, b):
        status = node.status()
        assert (status.tls.state, status.tls.reason, status.tls.renewals) == ("ok", "", 2)
        assert status.tls.bundle == status.tls.authority == bundle_digest(new.certificate)
        assert {w: n for w, n in status.counters.items() if w.startswith("tls_refused_")} == {}
    assert b.status().misses == {}
    assert b.status().transfers["demand_in"].blocks == len(loading.served) * BLOCKS
