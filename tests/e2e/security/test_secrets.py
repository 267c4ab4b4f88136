"""Keys and tokens are planted and everything that an agent says is searched for them: log, status, metrics, answers to
probes, command lines, environments. Also where it is given nonsense in their place, and has crashed."""

import base64
import json
import os
import resource
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest
from agent_pool import AgentPool, Node
from replica import LOOPBACK, get
from secret_search import search
from signer import Signer, managed
from standin_engine import Served, prompt

BLOCKS = 6
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
LEAK = (
    "import logging\n"
    "from kvpool_agent.keyring import Space\n"
    "take = Space.take\n"
    "def told(self, keys):\n"
    "    logging.getLogger('kvpool').warning('keys %s', [key.hex() for key in keys])\n"
    "    take(self, keys)\n"
    "Space.take = told\n"
)
LIMITLESS = (
    "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\nresource.setrlimit = lambda *_: None\n"
)
FORBIDS_NOTHING = "from kvpool_contract import core_dumps\ncore_dumps.forbid = lambda: None\n"


def said(node: Node) -> dict[str, bytes]:
    """Everything that a stranger to the agent's files can be shown of it."""
    replica, told = node.replica, {}
    told["log"] = (replica.folder / "agent.log").read_bytes()
    told["status"] = json.dumps(replica.status()).encode()
    told["metrics"] = get(f"http://{LOOPBACK}:{replica.worker_port}/metrics", 5) or b""
    assert b"kvpool_" in told["metrics"]
    assert replica.agent_process is not None
    for who, pid in (("supervisor", replica.agent_process.pid), ("worker", replica.worker_pid())):
        for what in ("cmdline", "environ"):
            told[f"{who}'s {what}"] = Path(f"/proc/{pid}/{what}").read_bytes()
    return told


def keys(folder: Path, planted: dict[str, bytes]) -> dict[str, Any]:
    """A configuration of two cache namespaces and a gateway, with their keys in files."""
    for name in ("public", "acme", "gateway"):
        planted[name] = secrets.token_bytes(32)
        (folder / name).write_bytes(base64.b64encode(planted[name]))
    return {
        "cacheNamespaces": [
            {"name": "public", "keyFile": str(folder / "public")},
            {"name": "acme", "keyFile": str(folder / "acme"), "memoryPercent": 40},
        ],
        "requestNamespace": "Signed",
        "gatewayKeyFile": str(folder / "gateway"),
        "arenaBytes": 64 << 20,
    }


def test_what_was_planted_is_nowhere_in_what_agents_say(pool: AgentPool, signer: Signer, tmp_path: Path) -> None:
    planted: dict[str, bytes] = {}
    agent = keys(tmp_path, planted)
    a = pool.node("a", **agent).start().attach()
    planted["private key"] = base64.b64decode("".join((a.replica.identity / "tls.key").read_text().splitlines()[1:-1]))
    b = managed(pool, signer, "b")
    planted["token"] = b"planted-token-b"
    b.start().attach()
    # shares, then loses its worker, its certificate's signer and the sense of its files
    a.engine.serve(prompt("p", BLOCKS))
    a.until_blocks(BLOCKS)
    a.until_restarted(a.kill_worker())
    signer.tokens.clear()
    refused = managed(pool, signer, "c")
    signer.tokens.clear()
    planted["refused token"] = b"planted-token-c"
    refused.start().until("refused", lambda s: s.tls.failures)
    for name in ("acme", "gateway"):
        planted[f"nonsense for {name}"] = nonsense = f"no-key-{secrets.token_hex(16)}".encode()
        (tmp_path / name).write_bytes(nonsense)
    planted["nonsense for a private key"] = nonsense = f"no-key-{secrets.token_hex(16)}".encode()
    (a.replica.identity / "tls.key").write_bytes(nonsense)
    a.until("tells of the keys", lambda s: any(space.problem for space in s.cache_namespaces))
    a.until_restarted(a.kill_worker())
    for node in (a, b, refused):
        assert search(said(node), planted) == [], node.replica.name


def test_the_search_finds_what_an_agent_lets_out(pool: AgentPool, tmp_path: Path) -> None:
    planted: dict[str, bytes] = {}
    node = pool.node("a", **keys(tmp_path, planted)).patched(LEAK).start().attach()
    assert node.engine.serve(prompt("p", 1)) == Served(computed=1)
    assert sorted(set(search(said(node), planted))) == [("acme", "log"), ("public", "log")]


@pytest.mark.skipif(
    "/" in (pattern := CORE_PATTERN.read_text()) or "|" in pattern,
    reason=f"core dumps of this machine go elsewhere ({CORE_PATTERN})",
)
@pytest.mark.parametrize("forbids", [True, False])
def test_a_running_agent_that_crashes_leaves_no_dump(pool: AgentPool, forbids: bool) -> None:
    """Where no limit is asked, as on a node that pipes dumps to a program: the limit can't be set there."""
    node = pool.node("a").patched(LIMITLESS + ("" if forbids else FORBIDS_NOTHING)).start().attach()
    supervisor, before = node.replica.agent_process, node.status().incarnation
    assert supervisor is not None
    folder = Path(f"/proc/{supervisor.pid}/cwd").readlink()  # where a dump would lie
    assert Path(f"/proc/{node.replica.worker_pid()}/cwd").readlink() == folder
    os.kill(node.replica.worker_pid(), signal.SIGABRT)
    node.until_restarted(before)
    os.kill(supervisor.pid, signal.SIGABRT)
    assert supervisor.wait(20) == -signal.SIGABRT
    assert bool(list(folder.iterdir())) is not forbids


def test_agents_ask_for_no_dump_at_all(pool: AgentPool) -> None:
    node = pool.node("a").start()
    assert node.replica.agent_process is not None
    for pid in (node.replica.agent_process.pid, node.replica.worker_pid()):
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


@pytest.mark.parametrize("written", [str, bytes.hex, lambda s: base64.b64encode(b"xy" + s + b"z").decode(), list])
def test_a_secret_is_found_in_each_form(written: Any) -> None:
    secret = secrets.token_bytes(32)
    text = f"before {written(secret)} after".encode()
    assert search({"x": text}, {"s": secret}) == [("s", "x")]
    assert search({"x": text}, {"s": secrets.token_bytes(32)}) == []
