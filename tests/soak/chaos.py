"""The faults of the soak: each one function that does it to a pool under traffic and waits until it is over.

A fault that is not over in time, that is, a member that does not come back by itself, is a failure of the run.
"""

import collections
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_pool import AgentPool, Node
from bad_peer import BadPeer
from peer_faults import FAULTS, HANDSHAKES
from replica import LOOPBACK, wait_for
from traffic import ROW, Prompts, Totals, Traffic

from kvpool_agent.peer import frames

BACK_SECONDS = 90.0
AT_A_TIME = 3
PAUSE_SECONDS = 3.0
NONSENSE = ("127.0.0.1:1", "[::1]:1", ":::", "host:port", "127.0.0.1:99999999", "x" * 3000 + ":7")


class Members:
    """The members file: what stands in it now. Any thread may call."""

    def __init__(self, pool: AgentPool) -> None:
        self._file = pool.members
        self._lock = threading.Lock()
        self._lines: list[str] = []

    def add(self, *lines: str) -> None:
        self._write(self._lines.extend, lines)

    def remove(self, *lines: str) -> None:
        self._write(lambda gone: [self._lines.remove(line) for line in gone], lines)

    def again(self) -> None:
        """Writes it as it should be: an agent that was started has added itself a second time."""
        self._write(lambda _: None, ())

    def _write(self, change: Callable[[tuple[str, ...]], object], lines: tuple[str, ...]) -> None:
        with self._lock:
            change(lines)
            new = self._file.with_suffix(".new")
            new.write_text("".join(f"{line}\n" for line in self._lines))
            new.rename(self._file)


@dataclass
class Chaos:
    """`steady`: members whose processes live through the run, so that what grows in them is seen; those of `mortal`
    are killed as well."""

    pool: AgentPool
    members: Members
    prompts: Prompts
    totals: Totals
    steady: list[Traffic]
    mortal: list[Traffic]
    options: dict[str, object]
    fingerprint: str
    seed: str
    ended: threading.Event = field(default_factory=threading.Event)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    joined: int = 0

    def __post_init__(self) -> None:
        self._taken = {traffic: threading.Lock() for traffic in (*self.steady, *self.mortal)}
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{self.seed} faults {i}"),), name=f"faults-{i}")
            for i in range(AT_A_TIME)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Returns when the faults under way are over."""
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, draw: random.Random) -> None:
        names = list(KINDS)
        while not self.ended.wait(draw.uniform(0, 2 * PAUSE_SECONDS)):
            name = draw.choice(names)
            fault, victims = KINDS[name]
            try:
                if victims == NOBODY:
                    fault(self, None, draw)
                else:
                    among = self.mortal if victims == MORTAL else [*self.steady, *self.mortal]
                    victim = draw.choice(among)
                    with self._taken[victim]:
                        fault(self, victim, draw)
                        self._back(victim, name)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run has failed and goes on
                self.totals.fail(f"{name}: {type(error).__name__}: {error}")
            self.counts[name] += 1

    def _back(self, victim: Traffic, name: str) -> None:
        node = victim.node
        what = f"{node.replica.name} attached after {name}"
        wait_for(what, lambda: node.engine.session.attached and node.status().attached, BACK_SECONDS, 0.1)

    def last(self, draw: random.Random, least: float, most: float) -> None:
        """How long a lasting fault lasts; less when the run ends."""
        self.ended.wait(draw.uniform(least, most))


def worker_of(node: Node) -> int:
    def pid() -> int:
        with contextlib.suppress(IndexError):
            return node.replica.worker_pid()
        return 0

    return wait_for(f"a worker of {node.replica.name}", pid, 30, 0.05)


# -- one function for each kind ------------------------------------------------------------------------


def kill_worker(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    os.kill(worker_of(victim.node), signal.SIGKILL)


def stop_worker(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    _stand_still(victim, draw.uniform(0.1, 4))


def hang_worker(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    """Longer than the supervisor waits for a heartbeat: it kills the worker."""
    _stand_still(victim, 12)


def _stand_still(victim: Traffic, seconds: float) -> None:
    worker = worker_of(victim.node)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)


def kill_agent(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    """All processes of the agent's container at once; its arena is lost."""
    replica = victim.node.replica
    assert replica.agent_process is not None
    os.killpg(replica.agent_process.pid, signal.SIGKILL)
    replica.agent_process.wait()
    chaos.last(draw, 0.1, 3)
    replica.start_agent()
    chaos.members.again()


def restart_engine(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    with victim.turn:
        victim.node.close_engines()
        victim.node.begin_attach(**chaos.options)


def lose_engine(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    """The connection is lost in the middle of whatever runs, as by an engine that is killed; the client comes back."""
    channel = victim.node.engine.session._channel
    if channel is not None:
        channel.shut()


def flip_bit(chaos: Chaos, victim: Traffic, draw: random.Random) -> None:
    """In the arena, while the own engine does not copy: between the last check and a copy nobody could see it."""
    slot = draw.randrange(victim.node.replica.config["arenaBytes"] // ROW - 1)
    with victim.turn, victim.node.arena_file().open("r+b") as memory:
        memory.seek(slot * ROW + draw.randrange(ROW))
        old = memory.read(1)
        memory.seek(-1, os.SEEK_CUR)
        memory.write(bytes([old[0] ^ 1 << draw.randrange(8)]))


def join_and_leave(chaos: Chaos, _: None, draw: random.Random) -> None:
    """A newcomer warms up, serves, and leaves again, in order or killed."""
    chaos.joined += 1
    node = chaos.pool.node(f"joiner-{chaos.joined}")
    address = f"{LOOPBACK}:{node.replica.peer_port}"
    node.start()
    chaos.members.add(address)
    try:
        node.begin_attach(**chaos.options)
        wait_for(f"{node.replica.name} attached", lambda: node.engine.session.attached, BACK_SECONDS, 0.05)
        traffic = Traffic(node, chaos.prompts, chaos.totals, random.Random(f"{chaos.seed} {node.replica.name}"))
        traffic.start()
        chaos.last(draw, 3, 20)
        if draw.random() < 0.5:
            assert node.replica.agent_process is not None
            os.killpg(node.replica.agent_process.pid, signal.SIGKILL)
            chaos.last(draw, 0.5, 3)
        traffic.end()
    finally:
        node.close_engines()
        node.replica.stop()
        chaos.members.remove(address)
        chaos.pool.nodes.remove(node)


def bad_peer(chaos: Chaos, _: None, draw: random.Random) -> None:
    """One that holds what is asked for, and misbehaves in one of the ways of the fault matrix."""
    fault = draw.choice(FAULTS)
    handshake = draw.choice([*HANDSHAKES, "", "", ""])
    with contextlib.closing(BadPeer(chaos.fingerprint, chaos.pool.pool, f"bad-{draw.random()}", row_bytes=ROW)) as peer:
        for tokens in chaos.prompts.shared:
            peer.knows_tokens(tokens)
        peer.answers[fault.at] = fault.answer
        if handshake:
            peer.answers[frames.Hello] = HANDSHAKES[handshake][0]
        chaos.members.add(peer.address)
        try:
            chaos.last(draw, 3, 12)
        finally:
            chaos.members.remove(peer.address)


def nonsense(chaos: Chaos, _: None, draw: random.Random) -> None:
    """Members that are none."""
    chaos.members.add(*NONSENSE)
    chaos.last(draw, 1, 5)
    chaos.members.remove(*NONSENSE)


ALL, MORTAL, NOBODY = "all", "mortal", "nobody"
KINDS: dict[str, tuple[Callable[[Chaos, Traffic, random.Random], None], str]] = {
    "worker killed": (kill_worker, MORTAL),
    "worker stopped": (stop_worker, ALL),
    "worker hung": (hang_worker, MORTAL),
    "agent killed": (kill_agent, MORTAL),
    "engine restarted": (restart_engine, ALL),
    "engine lost": (lose_engine, ALL),
    "bit flipped": (flip_bit, ALL),
    "member joined and left": (join_and_leave, NOBODY),
    "bad peer": (bad_peer, NOBODY),
    "nonsense among the members": (nonsense, NOBODY),
}
