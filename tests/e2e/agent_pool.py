"""Replicas with a real agent process and the stand-in engine in this process, for the suites without a real engine."""

import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from patched_agent import patch
from replica import MIB, Pool, Replica, Tools, wait_for
from standin_engine import FULL_ATTENTION, HASH_BYTES, Served, StandInEngine, prompt

from kvpool_client import wire
from kvpool_client.groups import to_header
from kvpool_contract.config import digest_of
from kvpool_contract.names import block_key
from kvpool_contract.status import AgentStatus, Event, decode_status

WAIT_SECONDS = float(os.environ.get("KVPOOL_WAIT_SECONDS", "20"))  # more where others keep the machine busy
# a supervisor whose pause between workers does not grow, for tests that kill many of them
IMPATIENT = ("-c", "from kvpool_agent import supervisor; supervisor.BACK_OFF = (0.05,); supervisor.main()")
# agents that wait long for each other, for tests that say nothing of silence: a busy machine makes nobody silent
PATIENT = """
import sys
if "kvpool_agent.worker" in sys.orig_argv:
    from kvpool_agent.peer import dial
    dial.HANDSHAKE_SECONDS = 30.0  # which others take from here when they are imported
    dial.Dialer.handshake.__defaults__ = (30.0,)
    from kvpool_agent.directory import locate
    locate.LOCATE_SECONDS = 30.0
"""
# agents that wait long for the rows of their probe, so that they ask for it once, for tests that count requests
PROBING_ONCE = "from kvpool_agent.flows import probe; probe.STORED_SECONDS = 30.0"
RAW_ROWS, RAW_ROW_BYTES = 8, 4096


def block_name(engine_key: bytes, fingerprint: str, names: bytes = b"") -> bytes:
    """Under what name members know an engine's block. fingerprint: of its format, as a status has it. names: the cache
    namespace's key of names."""
    engine_hash, group = engine_key[:HASH_BYTES], int.from_bytes(engine_key[HASH_BYTES:], "big")
    return block_key(engine_hash, group, bytes.fromhex(fingerprint), names)


class Node:
    """A replica: its agent process and, once attached, its stand-in engine."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.engines: list[StandInEngine] = []

    @property
    def engine(self) -> StandInEngine:
        return self.engines[-1]

    @property
    def socket_path(self) -> str:
        return str(self.replica.folder / "run" / "engine.sock")

    def start(self) -> "Node":
        self.replica.start_agent()
        return self

    def impatient(self) -> "Node":
        self.replica.agent_entry = IMPATIENT
        return self

    def patched(self, code: str) -> "Node":
        """All of the agent's processes run this code before their own, from their next start on."""
        patch(self.replica, code)
        return self

    def begin_attach(self, **options: Any) -> "Node":
        """Starts the engine, which attaches by itself when it can."""
        port = 0 if self.engines else self.replica.engine_port
        self.engines.append(StandInEngine(self.socket_path, port=port, **options).start())
        return self

    def attach(self, **options: Any) -> "Node":
        self.begin_attach(**options)
        wait_for("attach", lambda: self.engine.session.attached, WAIT_SECONDS, 0.01)
        return self

    def close_engines(self) -> None:
        while self.engines:
            self.engines.pop().close()

    def raw_session(self, **header: Any) -> wire.Channel:
        """A connection to the engine port, for a client that does what ours never does: it has sent an attach, with
        eight rows of 4 KiB where `header` says nothing else (the memory has eight rows in any case), in a version in
        which the agent says nothing of its own accord."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(self.socket_path)
        channel = wire.Channel(sock)
        channel.settimeout(WAIT_SECONDS)
        row_bytes = header.get("row_bytes", RAW_ROW_BYTES)
        descriptor = os.memfd_create("rows", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, RAW_ROWS * (row_bytes if 0 < row_bytes < MIB else RAW_ROW_BYTES))
        geometry = {"row_bytes": RAW_ROW_BYTES, "rows": RAW_ROWS, "hash_bytes": HASH_BYTES}
        fields = {"engine": "raw", "row_bytes": RAW_ROW_BYTES}
        groups = to_header(FULL_ATTENTION)
        attach = {
            "verb": "attach", "versions": [wire.HEADS_VERSION - 1], "format": fields, "groups": groups,
            **geometry, **header,
        }  # fmt: skip
        channel.send(attach, descriptors=[descriptor])
        os.close(descriptor)
        return channel

    def loads_from(self, giver: "Node", name: str, blocks: int) -> None:
        """What the other one computes of a new prompt this one loads, all of it."""
        tokens = prompt(name, blocks)
        giver.engine.serve(tokens)
        self.until_sees(giver)
        served = self.engine.serve(tokens)
        assert served == Served(pool=blocks), served

    # -- asking --------------------------------------------------------------------------------------

    def status(self) -> AgentStatus:
        return decode_status(json.dumps(self.replica.status()).encode())

    def until(self, what: str, holds: Callable[[AgentStatus], object], seconds: float = WAIT_SECONDS) -> AgentStatus:
        """The first status for which `holds` does; the engines know by then what it says of heads."""

        def look() -> AgentStatus | None:
            status = self.status()
            return status if holds(status) else None

        found = wait_for(f"{self.replica.name}: {what}", look, seconds, 0.02)
        assert found is not None
        self.until_told()
        return found

    def until_blocks(self, blocks: int) -> AgentStatus:
        return self.until(f"{blocks} blocks", lambda status: status.arena.blocks == blocks)

    def until_knows(self, *prompts: Sequence[int]) -> "Node":
        """Until its engine does not take these for prompts that nobody knows: a moment after they were published."""
        for tokens in prompts:
            known = partial(self.engine.knows, tokens)
            wait_for(f"{self.replica.name}: a prompt is known", known, WAIT_SECONDS, 0.005)
        return self

    def until_told(self) -> None:
        """Until the engines know of all heads that the agent knows now, or that it does not: a moment later."""

        def told() -> bool:
            directory, attached = self.status().directory, [e for e in self.engines if e.session.attached]
            known = directory.heads_number if directory.head_filter else 0
            return all(bool(e.side.heads.number) is bool(known) and e.side.heads.number >= known for e in attached)

        wait_for(f"{self.replica.name}: its engines know of the heads", told, WAIT_SECONDS, 0.005)

    def until_state(self, state: str, reason: str = "") -> AgentStatus:
        return self.until(f"{state} {reason}", lambda status: (status.state, status.reason) == (state, reason))

    def until_sees(self, *others: "Node") -> "Node":
        """Until this member knows the others as they are now: what it can find by then."""
        for other in others:

            def seen(status: AgentStatus, other: "Node" = other) -> bool:
                now = other.status()
                return any(
                    peer.live and peer.format == now.format and peer.blocks == now.arena.blocks
                    for peer in status.peers
                    if peer.incarnation == now.incarnation and now.format
                )

            self.until(f"sees {other.replica.name}", seen)
        return self

    def events(self, word: str) -> list[Event]:
        return [event for event in self.status().events if event.word == word]

    def ready(self) -> bool:
        """Answer of /readyz; raises OSError where there is none."""
        return self.replica.probe("readyz")

    def kill_worker(self) -> str:
        """kill -9; returns the incarnation that is no more."""
        incarnation = self.status().incarnation
        os.kill(self.replica.worker_pid(), signal.SIGKILL)
        return incarnation

    def until_restarted(self, killed: str) -> AgentStatus:
        """The first status in which the next worker has judged what the killed one left."""
        return self.until(
            "restarted", lambda s: s.incarnation != killed and any(e.word == "recovered" for e in s.events)
        )

    def arena_file(self) -> Path:
        """The arena's memory, by way of the supervisor that holds it."""
        process = self.replica.agent_process
        assert process is not None
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # of a connection that has ended meanwhile
                if "memfd:kvpool-arena" in str(descriptor.readlink()):
                    return descriptor
        raise OSError("the supervisor holds no arena")


def write_configuration(node: Node, **change: Any) -> str:
    """Changes the agent's file; the hash of its new content."""
    node.replica.config |= change
    path = node.replica.folder / "agent.json"
    swap = path.with_suffix(".new")
    swap.write_text(json.dumps(node.replica.config))
    swap.rename(path)
    return digest_of(path.read_bytes())


def until_in_force(node: Node, **change: Any) -> AgentStatus:
    """Changes the agent's file; the first status in which that is in force."""
    digest = write_configuration(node, **change)
    return node.until("takes over", lambda status: status.config.hash == digest)


class AgentPool:
    """All replicas of one test; `stop` ends every process and thread."""

    def __init__(self, folder: Path, *, tls: bool = True, patient: bool = False, **agent: Any) -> None:
        """tls: whether the agents talk inside TLS. patient: as PATIENT says. agent: fields of every agent's
        configuration."""
        self._patient = patient
        tools = Tools(engine_python=Path("none"), model=Path("none"))
        self.pool = Pool(tools, folder, tls=tls, agent={"arenaBytes": 4 * MIB, **agent})
        self.nodes: list[Node] = []

    @property
    def members(self) -> Path:
        """The file of all agents' members."""
        return self.pool.members

    def node(self, name: str, **agent: Any) -> Node:
        """A replica that is not started yet."""
        made = Node(self.pool.replica(name, agent=agent))
        self.nodes.append(made.patched(PATIENT) if self._patient else made)
        return made

    def joined(self, name: str, **agent: Any) -> Node:
        """A replica whose agent runs and whose engine is attached."""
        return self.node(name, **agent).start().attach()

    def all_started(self, names: str, **agent: Any) -> list[Node]:
        """A replica for each letter, their agents started at the same time."""
        with ThreadPoolExecutor() as threads:
            return list(threads.map(Node.start, [self.node(name, **agent) for name in names]))

    def all_joined(self, names: str) -> list[Node]:
        return [node.attach() for node in self.all_started(names)]

    def stop(self) -> None:
        with ThreadPoolExecutor() as threads:
            for node in self.nodes:
                threads.submit(node.close_engines)
                threads.submit(node.replica.stop)
        self.pool.stop()
