"""`kvpool status`: its table, its documents and its refusals, against real sockets."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvpool_cli.main import main
from kvpool_cli.members import Answer
from kvpool_cli.report import as_table
from kvpool_contract.calibration import Calibrated
from kvpool_contract.canary import Canary
from kvpool_contract.reasons import explain
from kvpool_contract.status import (
    AgentStatus,
    Arena,
    Capacity,
    ConfigInForce,
    Declared,
    Disk,
    EngineTokens,
    Hits,
    HugePages,
    NearIdentical,
    Peer,
    Probe,
    RdmaDevice,
    Reuse,
    Store,
    Tls,
    Transfer,
    Transport,
    Warm,
    encode_status,
)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


MIB = 2**20
WARM = AgentStatus(
    version=1,
    pool="chat",
    member="uid-a",
    incarnation="00ff",
    state="Ready(warm)",
    reason="",
    attached=True,
    attaches=1,
    engine_healthy=True,
    format="0123456789abcdef" * 2,
    format_fields={},
    arena=Arena(limit_bytes=1024 * MIB, used_bytes=512 * MIB, blocks=80),
    warm=Warm(planned_blocks=40, loaded_blocks=38),
    hits=Hits(computed_blocks=50, local_blocks=30, shared_blocks=20),
    engine_tokens=EngineTokens(),
    transfers={
        "demand_in": Transfer(3, 3 * MIB),
        "prewarm_in": Transfer(2, 2 * MIB),
        "demand_out": Transfer(9, 9 * MIB),
        "store_in": Transfer(50, 50 * MIB),
    },
    misses={},
    counters={},
    peers=[
        Peer("10.0.0.2:7700", True, "uid-b"),
        Peer("10.0.0.3:7700", True, "uid-c", breaker="open", failures=4),
        Peer(
            "10.0.0.4:7700", True, "uid-d", differences=["dtype: float32 here, bfloat16 there", "rows: 1 here, 2 there"]
        ),
    ],
    unknown_config_fields=[],
    started_at=1.0,
    events=[],
)
FIELDS = {name: getattr(WARM, name) for name in WARM.__struct_fields__}
COLD = AgentStatus(
    **{
        **FIELDS,
        "member": "uid-b",
        "state": "Ready(degraded)",
        "reason": "nothing_to_warm",
        "format": "",
        "arena": Arena(limit_bytes=1536),
        "warm": Warm(),
        "hits": Hits(),
        "transfers": {},
        "peers": [],
        "probe": Probe("not_run", "the engine's port answered 401"),
    }
)


@pytest.fixture
def agents() -> Iterator[list[str]]:
    """Addresses of a warm agent, a cold one, one of a later version, and one that is not there."""
    documents = [
        encode_status(WARM),
        encode_status(COLD),
        encode_status(AgentStatus(**{**FIELDS, "version": 9})),
    ]
    servers = []
    for document in documents:

        class Handler(BaseHTTPRequestHandler):
            body = document

            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(self.body)))
                self.end_headers()
                self.wfile.write(self.body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    threads = [threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.01}) for s in servers]
    for thread in threads:
        thread.start()
    closed = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    closed.server_close()
    yield [f"127.0.0.1:{s.server_port}" for s in [*servers, closed]]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_status_table(agents: list[str], tmp_path: Path) -> None:
    (tmp_path / "members").write_text("# a pool\n" + "\n".join(agents[:2]) + f"\n\n{agents[3]}  # gone\n{agents[2]}\n")
    result = run("status", "--members", tmp_path / "members")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows == [
        [
            "MEMBER",
            "STATE",
            "WARM",
            "LOCAL",
            "SHARED",
            "COMPUTED",
            "SHARED",
            "IN",
            "ARENA",
            "FORMAT",
            "REASON",
        ],
        [
            agents[0],
            "Ready(warm)",
            "95%",
            "30%",
            "20%",
            "50%",
            "5.0",
            "MiB",
            "512.0",
            "MiB/1.0",
            "GiB",
            "01234567",
            "-",
        ],
        [
            agents[1],
            "Ready(degraded)",
            "-",
            "-",
            "-",
            "-",
            "0",
            "B",
            "0",
            "B/1.5",
            "KiB",
            "-",
            "nothing_to_warm",
        ],
        [agents[3], *["-"] * 8, "agent_unreachable"],
        [agents[2], *["-"] * 8, "agent_unreachable"],
        [],
        *[
            line.split()
            for line in (
                "nothing_to_warm: No peer of the same format held anything to warm from. Nothing to do: "
                "the first "
                "replicas of a pool and of a new revision start cold.",
                "agent_unreachable: The agent of this member does not answer. Look at the agent "
                "container's state and log.",
                f"{agents[3]}: [Errno 111] Connection refused",
                f"{agents[2]}: the agent's status has version 9, this command reads 1; update the older of the two",
                f"{agents[0]} → uid-c: breaker open after 4 failures in a row",
                f"{agents[0]} → uid-d: not the same format: dtype: float32 here, bfloat16 there; rows: 1 here, 2 there",
                f"{agents[1]}: probe_not_run: The engine could not be asked for the pool's fixed prompt; it shares "
                "because all fields of its format agree. Let it listen on engine.port without a key on the "
                "loopback address, or accept the fields as proof. (the engine's port answered 401)",
            )
        ],
    ]


def test_the_status_documents(agents: list[str], tmp_path: Path) -> None:
    (tmp_path / "members").write_text("\n".join([agents[0], agents[3]]))
    result = run("status", "--members", tmp_path / "members", "-o", "json")
    warm, gone = json.loads(result.stdout)
    assert warm == {"member": agents[0], "status": json.loads(encode_status(WARM))}
    assert gone == {
        "member": agents[3],
        "status": None,
        "reason": "agent_unreachable",
        "error": "[Errno 111] Connection refused",
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("10.0.0.1\n", "members file: '10.0.0.1' is no address; write host:port"),
        ("# none\n", "members file: it names no member; write one host:port a line"),
    ],
)
def test_a_members_file_is_checked(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "members").write_text(text)
    result = run("status", "--members", tmp_path / "members")
    assert (result.exit_code, result.stderr) == (2, f"Error: {sentence}\n")


@pytest.mark.parametrize("arguments", [(), ("chat", "--members", "x")])
def test_status_wants_one_source(arguments: tuple[str, ...]) -> None:
    result = run("status", *arguments)
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: name a pool, or a file with --members; one of the two\n",
    )


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("apiVersion: v1\nkind: Config\n")
    result = run("status", "chat", "--kubeconfig", tmp_path / "none")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: the pods of pool chat can't be listed: ")
    assert result.stderr.count("\n") == 1


def test_the_kubernetes_client_is_loaded_only_where_it_is_needed() -> None:
    code = "import sys, kvpool_cli.main; sys.exit('kubernetes' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_an_answer_other_than_ok_is_no_answer(tmp_path: Path) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = encode_status(WARM)
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    (tmp_path / "members").write_text(f"127.0.0.1:{server.server_port}\n")
    result = run("status", "--members", tmp_path / "members", "-o", "json")
    thread.join()
    server.server_close()
    assert [row["error"] for row in json.loads(result.stdout)] == ["it answered 503 Service Unavailable"]


PROBLEM = "configuration field paused: Expected `bool`, got `str`; correct it in the pool's spec"


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        ({}, []),
        ({"config": ConfigInForce("0123456789ab", 7), "probe": Probe("same", member="b")}, []),
        ({"probe": Probe("alone")}, []),
        ({"tls": Tls("Managed", "ok", name="kvpool://c/ns/n/pool/p/pod/a", not_after=1.0)}, []),
        (
            {"tls": Tls("Managed", "expires_soon", "signer_unreachable", "the signer s:1 does not answer")},
            [f"a: {explain('signer_unreachable')} (the signer s:1 does not answer)"],
        ),
        ({"tls": Tls("Disabled")}, ["a: TLS is disabled: it talks to other members in clear"]),
        ({"probe": Probe("close", member="b")}, []),
        ({"arena": Arena(1024, 512, 100, orphan_blocks=10)}, []),
        ({"config": ConfigInForce("", 7, "config_invalid", PROBLEM)}, [f"a: {explain('config_invalid')} ({PROBLEM})"]),
        (
            {"config": ConfigInForce(needs_new_pods=["arenaBytes", "engine.port"])},
            ["a: it runs with former values of tiers.memory.size, engine.port; make its pod anew"],
        ),
        (
            {"unknown_config_fields": ["x", "y.z"]},
            ["a: it does not know the configuration fields x, y.z; update its image"],
        ),
        ({"probe": Probe("pending")}, [f"a: {explain('probe_pending')}"]),
        ({"probe": Probe("mismatch", "layer 3", "b")}, [f"a: {explain('probe_mismatch')} (beside b, layer 3)"]),
        (
            {"probe": Probe("mismatch", "layer 3", "b"), "state": "Ready(degraded)", "reason": "probe_mismatch"},
            [explain("probe_mismatch"), "a: probe_mismatch (beside b, layer 3)"],
        ),
        ({"arena": Arena(huge_pages=HugePages(True, 0, "huge_pages_off"))}, [f"a: {explain('huge_pages_off')}"]),
        ({"calibrated": Calibrated(0, 0.0, "no_answer", "it")}, [f"a: {explain('calibration_no_answer')} (it)"]),
        (
            {"canary": Canary("not_run", "the engine's port answered 401")},
            [f"a: {explain('canary_not_run')} (the engine's port answered 401)"],
        ),
        (
            {"canary": Canary("same", same=9, distrusted=["b", "c"])},
            [f"a: {explain('canary_differs')} (b, c)"],
        ),
        (
            {"arena": Arena(1024, 512, 100, orphan_blocks=11)},
            ["a: 11 of 100 blocks are orphans: no member holds the block before them"],
        ),
        ({"arena": Arena(capacity=Capacity(asked_blocks=2000, hit_blocks=500, double_hit_blocks=600))}, []),
        (
            {"arena": Arena(capacity=Capacity(asked_blocks=2000, hit_blocks=500, double_hit_blocks=800))},
            ["a: an arena of twice the size would have held 40% of the prompt blocks asked for, one of this size 25%"],
        ),
        ({"reuse": {"": Reuse(1 << 20, 999, [0, 400])}}, []),
        (
            {"reuse": {"acme": Reuse(1 << 20, 1000, [10, 300, 310, 0, 100])}},
            [
                "a: prompt blocks that come again, by the bytes of blocks used since in acme: 31% within 2.0 MiB, "
                "62% within 4.0 MiB, 72% within 16.0 MiB"
            ],
        ),
        (
            {
                "reuse": {
                    "acme": Reuse(near_identical=[NearIdentical(9, 192, 16, 1980, 2012), NearIdentical(8, 0, 16, 7, 7)])
                }
            },
            [
                "a: 9 of the last prompts in acme were computed though they are nearly as long as each other (1980 to "
                "2012 tokens): each differs from the others between token 192 and token 208; kvpool why-miss says of "
                "two of them what differs there",
                "a: 8 of the last prompts in acme were computed though they are nearly as long as each other (7 "
                "tokens): each differs from the others between token 0 and token 16; kvpool why-miss says of two of "
                "them what differs there",
            ],
        ),
        ({"disk": Disk("ready", "", 1024, 512, 10, 2), "store": Store("Valkey", "ready")}, []),
        ({"disk": Disk("degraded", "disk_slow")}, [f"a: the disk tier is degraded: {explain('disk_slow')}"]),
        ({"declared": Declared(2, 2, 40)}, ["a: of 2 declared prefixes 2 are known, as 40 blocks"]),
        (
            {"declared": Declared(2, 1, 20, "no_tokenizer", "it wants a key")},
            [f"a: of 2 declared prefixes 1 are known, as 20 blocks: {explain('no_tokenizer')} (it wants a key)"],
        ),
        ({"store": Store("Valkey", "opening")}, []),
        (
            {"store": Store("Valkey", "degraded", "store_slow", "timed out")},
            [f"a: the external store is degraded: {explain('store_slow')} (timed out)"],
        ),
        ({"transport": Transport("Auto", "TCP", "rdma_no_device")}, []),
        (
            {"transport": Transport("RDMA", "TCP", "rdma_no_device", "none")},
            [f"a: blocks come by TCP: {explain('rdma_no_device')} (none)"],
        ),
        (
            {"transport": Transport("Auto", "TCP", "rdma_memlock")},
            [f"a: blocks come by TCP: {explain('rdma_memlock')}"],
        ),
        (
            {
                "transport": Transport(
                    "Auto",
                    "RDMA",
                    devices=[
                        RdmaDevice("mlx5_0", "ready", address="10.0.0.1"),
                        RdmaDevice("mlx5_1", "failed", "rdma_port_down"),
                    ],
                ),
                "peers": [Peer("10.0.0.2:7700", True, "b", not_by_rdma="rdma_peer_without: rdma_off")],
            },
            [
                "a: blocks come by RDMA, too: mlx5_0 at 10.0.0.1",
                f"a: RDMA device mlx5_1: {explain('rdma_port_down')}",
                "a → b: by TCP, not by RDMA: rdma_peer_without: rdma_off",
            ],
        ),
    ],
)
def test_what_there_is_to_say_stands_below_the_table_in_a_line_each(change: dict[str, Any], notes: list[str]) -> None:
    status = AgentStatus(**{**FIELDS, "peers": [], **change})
    _, _, *rest = as_table([Answer("a", status)]).splitlines()
    assert rest == (["", *notes] if notes else [])
