"""Telling the engine's clients which chains the pool knows, so that a prompt it can't know is answered without a word.

A client may take it from there that a prompt whose first block is not named is a miss, in the step that asks for it.
That must never hide a block: it holds only while the heads of every live member are known, as of a moment ago; one that
does not tell them, or that holds too many, ends it for the time being, and so does whatever gives misses another reason
than that nobody holds the blocks. What is told lapses by itself, so that an agent that stands still hides nothing that
others publish meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kvpool_agent.directory.members import MemberView
from kvpool_agent.engine_port.server import Port
from kvpool_agent.store.heads import UNKNOWN, Heads, Union
from kvpool_agent.store.slab import Slab, Slabs

log = logging.getLogger("kvpool.heads")

LOOK_SECONDS = 0.1
GAP_SECONDS = 0.01  # from one word to the next, so that what changes at the same time is told at once
RENEW_SECONDS = 1.0
VALID_SECONDS = 3.0
OWN = ""  # among the addresses: this member itself


@dataclass(eq=False)
class _Client:
    """What a client has been told: up to which number, UNKNOWN while nothing holds, and when."""

    number: int = UNKNOWN
    at: float = 0.0


class HeadFilter:
    """One thread; any thread may `join` and `leave`."""

    def __init__(
        self,
        slabs: Slabs,
        members: MemberView,
        obstacle: Callable[[bool], bool],
        tiers: Mapping[str, Heads] | None = None,
    ) -> None:
        """obstacle: whether misses may have another reason now than that nobody holds the blocks; it is told whether
        there are other members. tiers: what lies in this member's other tiers, by a name that is no address."""
        self._slabs, self._members, self._obstacle = slabs, members, obstacle
        self._union: Union = members.heads
        self._clients: dict[Port, _Client] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._followed: Heads | None = None
        self._union.names.follow(self._wake.set)
        self._tiers = tiers or {}
        for tier, heads in self._tiers.items():
            heads.follow(partial(self._take_up, tier, heads))
        self._thread = threading.Thread(target=self._run, name="kvpool-heads", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()

    def join(self, port: Port) -> None:
        """A client that is told from now on."""
        with self._lock:
            self._clients[port] = _Client()
        self._wake.set()

    def leave(self, port: Port) -> None:
        with self._lock:
            self._clients.pop(port, None)

    @property
    def known(self) -> tuple[bool, int, int, int]:
        """Whether it is in force, how many heads are known, the number of that state, and of the oldest one that a
        client knows."""
        slab, names = self._slabs.current, self._union.names
        with self._lock:
            told = min((client.number for client in self._clients.values()), default=UNKNOWN)
        return slab is not None and self._holds(slab), len(names), names.number, told

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            try:
                self.look()
            except Exception:
                log.exception("a look failed")
            self._ended.wait(GAP_SECONDS)

    def look(self) -> None:
        """Takes up what has changed, and tells it."""
        slab = self._slabs.current
        with self._lock:
            clients = list(self._clients.items())
        if slab is not None:
            self._follow_own(slab)
        told = slab if slab is not None and clients and self._holds(slab) else None
        for port, client in clients:
            if told is not None:
                self._tell(port, client, told.fingerprint)
            elif client.number != UNKNOWN:
                port.send({"verb": "heads", "number": UNKNOWN})
                client.number = UNKNOWN

    def _take_up(self, of: str, heads: Heads) -> None:
        self._union.told(of, heads.since(self._union.number(of)))

    def _follow_own(self, slab: Slab) -> None:
        heads = slab.arena.heads
        if heads is not self._followed:
            self._union.forget(OWN)
            heads.follow(partial(self._take_up, OWN, heads))
            self._followed = heads

    def _holds(self, slab: Slab) -> bool:
        """Whether the heads of all who could be asked are known, and a miss has no other reason."""
        live = [member for member in self._members.all() if member.live and member.welcome is not None]
        own = slab.fingerprint.hex()
        same = [m for m in live if m.welcome is not None and m.welcome.format == own]
        incompatible = not same and any(m.welcome is not None and m.welcome.blocks for m in live)
        known = all(self._union.knows(of) for of in (OWN, *self._tiers, *(member.address for member in same)))
        return known and not incompatible and not self._obstacle(bool(same))

    def _tell(self, port: Port, client: _Client, fingerprint: bytes) -> None:
        now = time.monotonic()
        told = self._union.names.since(client.number)
        if told.number == client.number and now < client.at + RENEW_SECONDS:
            return
        header = {
            "verb": "heads",
            "number": told.number,
            "whole": told.whole,
            "added": len(told.added),
            "seconds": VALID_SECONDS,
            "format": fingerprint.hex(),
        }
        port.send(header, b"".join([*told.added, *told.withdrawn]))
        client.number, client.at = told.number, now  # the status shows no more than what a client has been sent
