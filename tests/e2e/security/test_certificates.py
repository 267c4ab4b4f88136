"""Agents with certificates from a signer: issued for their token, kept while it is away; a newcomer without one."""

import itertools
from datetime import timedelta

from agent_pool import AgentPool
from signer import Signer, managed
from standin_engine import Served, prompt

BLOCKS = 6
SOON = "from kvpool_agent.flows import certify; certify.NEWCOMER_SECONDS = 0.5"


def test_a_token_becomes_a_certificate_and_no_token_none(pool: AgentPool, signer: Signer) -> None:
    a, b = (managed(pool, signer, name).start().attach() for name in "ab")
    b.loads_from(a, "p", BLOCKS)
    for node in (a, b):
        told = node.status().tls
        assert (told.mode, told.state, told.reason) == ("Managed", "ok", "")
        assert told.name == f"kvpool://demo/ns/demo/pool/demo/pod/{node.replica.member}"
        # nothing of it lies in a file: token and the signer's authority are all there is
        assert sorted(path.name for path in node.replica.identity.iterdir()) == ["token"]
    assert len(signer.asked) == 2
    stranger = managed(pool, signer, "s")
    signer.tokens.clear()
    told = stranger.start().until("refused", lambda s: s.tls.failures).tls
    assert (told.state, told.reason) == ("no_certificate", "signer_refused")
    assert told.detail == "the signer refuses: token_refused: The token is nobody's."
    for node in (a, b, stranger):
        assert "planted-token" not in node.replica.log("agent", 1 << 20)
        assert "planted-token" not in str(node.replica.status())


def test_a_certificate_outlives_its_worker_while_the_signer_is_away(pool: AgentPool, signer: Signer) -> None:
    a, b = (managed(pool, signer, name).start().attach() for name in "ab")
    b.loads_from(a, "before", BLOCKS)
    signer.stop()
    named = a.status().tls
    a.until_restarted(a.kill_worker())
    a.until("attached", lambda s: s.attached)
    assert a.status().tls == named
    held = a.status().arena.blocks
    attempts = itertools.count()
    # for two seconds nothing is stored
    a.until("stores", lambda s: s.arena.blocks > held or not a.engine.serve(prompt(f"{next(attempts)}", 1)))
    b.loads_from(a, "after", BLOCKS)
    assert len(signer.asked) == 2


def test_a_renewal_that_fails_leaves_the_old_one_in_force_and_says_why(pool: AgentPool, signer: Signer) -> None:
    signer.life = timedelta(seconds=60)  # and five minutes that lie behind it: it is to be renewed at once
    a, b = (managed(pool, signer, name).start().attach() for name in "ab")
    b.loads_from(a, "before", BLOCKS)
    signer.stop()
    quick = "from kvpool_agent.identity import sources; sources.SETTLE_SECONDS = 0.5"
    a.replica.stop_agent()
    a.patched(quick)
    signer.start()
    a.start()
    a.until("attached", lambda s: s.attached)
    signer.stop()
    told = a.until("tried", lambda s: s.tls.failures.get("signer_unreachable")).tls
    assert (told.state, told.reason) == ("expires_soon", "signer_unreachable")
    b.loads_from(a, "meanwhile", BLOCKS)
    signer.life = timedelta(days=30)
    signer.start()
    told = a.until("renewed", lambda s: s.tls.reason == "").tls
    assert (told.state, told.renewals > 0) == ("ok", True)
    b.loads_from(a, "after", BLOCKS)


def test_a_newcomer_whose_signer_is_away_is_ready_alone_and_warms_up_when_its_certificate_comes(
    pool: AgentPool, signer: Signer
) -> None:
    a = managed(pool, signer, "a").start().attach()
    a.engine.serve(prompt("hot", BLOCKS))
    a.until_blocks(BLOCKS)
    signer.stop()
    b = managed(pool, signer, "b").patched(SOON).start().attach()
    told = b.until_state("Ready(degraded)", "no_certificate")
    assert (told.tls.state, told.tls.reason) == ("no_certificate", "signer_unreachable")
    b.until("latched", lambda _: b.ready())
    assert b.engine.serve(prompt("hot", BLOCKS)) == Served(computed=BLOCKS)
    b.engine.forget()
    a.engine.serve(prompt("hotter", BLOCKS))
    a.until_blocks(2 * BLOCKS)
    signer.start()
    b.until_state("Ready(warm)")
    status = b.status()
    assert status.warm.loaded_blocks == status.warm.planned_blocks == 2 * BLOCKS
    assert status.transfers["prewarm_in"].blocks == BLOCKS  # the others it has computed itself
    assert b.engine.serve(prompt("hotter", BLOCKS)) == Served(pool=BLOCKS)
    assert [event.word for event in status.events if "certificate" in event.word] == [
        "certificate_problem", "certificate_in_force"
    ]  # fmt: skip
