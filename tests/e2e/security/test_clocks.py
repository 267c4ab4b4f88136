"""Certificates that are not valid by a member's clock: each side says which, nothing else suffers, and it ends."""

from datetime import UTC, datetime

import pytest
from agent_pool import AgentPool
from authority import DAY, member_uri, write_identity
from standin_engine import Served, prompt

BLOCKS = 4


@pytest.mark.parametrize(
    ("begin", "own", "seen"),
    [
        (-2 * DAY, ("expired", "certificate_expired"), "peer_certificate_expired"),
        (DAY, ("ok", "clock_behind"), "peer_certificate_not_yet_valid"),
    ],
    ids=["ended", "not begun"],
)
def test_a_member_whose_certificate_is_not_valid_by_the_clock_is_named_and_comes_back(
    pool: AgentPool, begin: object, own: tuple[str, str], seen: str
) -> None:
    a, b, c = pool.node("a"), pool.node("b"), pool.node("c")
    leaf = pool.pool.authority.leaf(member_uri("demo", "b-uid"), begin=datetime.now(UTC) + begin)  # type: ignore[operator]
    write_identity(b.replica.identity, *leaf, pool.pool.authority.certificate)
    for node in (a, b, c):
        node.start().attach()
    told = a.until("names it", lambda s: s.tls.reason == seen).tls
    assert told.state == "ok" and "its certificate is not valid by this clock" in told.detail
    assert (b.status().tls.state, b.status().tls.reason) == own
    b.engine.serve(prompt("b's", BLOCKS))
    assert a.engine.serve(prompt("b's", BLOCKS)) == Served(computed=BLOCKS)
    address = f"127.0.0.1:{b.replica.peer_port}"
    # b may have asked before a knew of it
    found = a.until("has asked it", lambda s: address in {one.address for one in s.peers if seen in one.error})
    (peer,) = (one for one in found.peers if one.address == address)
    assert not peer.live and seen in peer.error
    # the others go on
    assert c.until_sees(a).engine.serve(prompt("b's", BLOCKS)) == Served(pool=BLOCKS)
    # and it comes back with a certificate that is valid, without a restart
    b.replica.certify()
    b.until("renewed", lambda s: (s.tls.state, s.tls.reason) == ("ok", ""))
    b.engine.serve(prompt("later", BLOCKS))
    assert a.until_sees(b).engine.serve(prompt("later", BLOCKS)) == Served(pool=BLOCKS)
