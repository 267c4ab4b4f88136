"""Members of one pool with different formats never use each other's blocks, and say why in words."""

from agent_pool import AgentPool, Node
from click.testing import CliRunner
from standin_engine import Served, prompt

from kvpool_cli.main import main
from kvpool_contract.status import Peer


def peer_of(node: Node, other: Node) -> Peer:
    member = other.status().member
    status = node.until("its fields", lambda s: any(p.member == member and p.differences for p in s.peers))
    (found,) = [peer for peer in status.peers if peer.member == member]
    return found


def test_each_says_which_fields_differ_and_a_miss_for_it_is_named_incompatible(pool: AgentPool) -> None:
    a, b = pool.all_started("ab")
    a.attach(model="one")
    b.attach(model="two", row_bytes=8192)
    a.engine.serve(prompt("p", 6))
    a.until_blocks(6)
    assert peer_of(a, b).differences == ["model: one here, two there", "row_bytes: 4096 here, 8192 there"]
    assert peer_of(b, a).differences == ["model: two here, one there", "row_bytes: 8192 here, 4096 there"]
    b.until("blocks seen", lambda s: s.peers[0].blocks == 6)
    assert b.engine.serve(prompt("p", 6)) == Served(computed=6)
    assert b.status().misses == {"incompatible": 6}
    assert b.status().transfers.keys() <= {"store_in"}
    members = pool.nodes[0].replica.folder / "status"
    members.write_text("".join(f"127.0.0.1:{node.replica.worker_port}\n" for node in (a, b)))
    shown = CliRunner().invoke(main, ["status", "--members", str(members)])
    assert shown.exit_code == 0
    note = "a-uid: not the same format: model: two here, one there; row_bytes: 8192 here, 4096 there"
    assert f"127.0.0.1:{b.replica.worker_port} → {note}" in shown.stdout
    # a third one of the same format as the first shares with it all the same
    c = pool.node("c").start().attach(model="one").until_sees(a)
    assert c.engine.serve(prompt("p", 6)) == Served(pool=6)
