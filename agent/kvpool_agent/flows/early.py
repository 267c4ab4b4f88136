"""Warming that begins with the agent: the hot set of the format that the engine will have, while it loads its weights.

The format is the one that most ready members of the same pod template report. Nothing of it counts before an engine
attaches: the attach proves the format, and with it what was fetched; another format makes the worker start anew with
an empty arena, which then waits for its engine. Until then the pool is looked at again and again: those of a rollout
turn ready one after the other.
"""

import logging
import math
import threading
import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.warmup import WarmupFlow
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.policy.expected import Expected, Told, expected_format
from kvpool_agent.store.slab import NoRoom, OtherFormat, Slab, Slabs

log = logging.getLogger("kvpool.early")

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0  # after a warm-up that found nothing, or not all
DESCRIBE_SECONDS = 2.0
MAX_SLOT_BYTES = 1 << 30


class EarlyWarmup:
    """`start` once; any thread may call the rest."""

    def __init__(
        self,
        template: str,
        slabs: Slabs,
        members: MemberView,
        dialer: Dialer,
        breakers: Breakers,
        warmup: WarmupFlow,
        account: Account,
    ) -> None:
        self._template = template
        self._slabs = slabs
        self._members = members
        self._dialer = dialer
        self._breakers = breakers
        self._warmup = warmup
        self._account = account
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._since: float | None = None  # the warm-up's deadline counts from the attach
        self._slab: Slab | None = None
        self._running = self._whole = False
        self._tell: Callable[[str], None] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kvpool-early", daemon=True).start()

    def attached(self, slab: Slab, ended: Callable[[str], None]) -> bool:
        """An engine has proved this slab's format. True where its hot set is in, or is still being fetched: then
        `ended` is called as for any warm-up. Else one is to be started."""
        with self._lock:
            self._over.set()
            self._since = time.monotonic()
            if self._slab is not slab:
                return False
            if self._running:
                self._tell = ended
                return True
            whole = self._whole
        if whole:
            ended("")
        return whole

    def stop(self) -> None:
        """The engine starts without the pool: what is being fetched is the last."""
        with self._lock:
            self._over.set()
            self._since = -math.inf

    def unproved(self) -> tuple[str, int]:
        """The format (hex) that was expected and the bytes that were fetched for it; empty where none was."""
        with self._lock:
            slab = self._slab
        return (slab.fingerprint.hex(), len(slab.arena) * slab.slot_bytes) if slab is not None else ("", 0)

    def _run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            pause = LOOK_SECONDS
            try:
                expected = self._expected()
                if expected is not None and self._warm(expected):
                    return
                if expected is not None:
                    pause = AGAIN_SECONDS
            except Exception:
                log.exception("warming before the attach failed")

    def _expected(self) -> Expected | None:
        told = [
            Told(m.address, w.template, w.state, w.format, w.slot_bytes)
            for m in self._members.all()
            if m.live and (w := m.welcome) is not None and 0 < w.slot_bytes <= MAX_SLOT_BYTES
        ]
        return expected_format(self._template, told)

    def _warm(self, expected: Expected) -> bool:
        """Whether nothing is left to be done here."""
        if not self._open(expected):
            return False
        ended = threading.Event()

        def end(reason: str) -> None:
            with self._lock:
                self._running, self._whole = False, not reason
                tell = self._tell
            if tell is not None:
                tell(reason)
            ended.set()

        slab = self._slab
        assert slab is not None
        self._warmup.start(slab, end, lambda: self._since)
        ended.wait()
        return self._whole

    def _open(self, expected: Expected) -> bool:
        """Cuts the arena for the format, unless an engine has come; whether a warm-up of it is to be started."""
        current = self._slabs.current
        fields = current.fields if current is not None and current.fingerprint.hex() == expected.format else None
        if current is None:
            fields = self._fields(expected)
        if not fields:
            return False
        with self._lock:
            if self._over.is_set():
                return False
            try:
                slab = self._slabs.open(bytes.fromhex(expected.format), fields, expected.slot_bytes)
            except (NoRoom, OtherFormat):
                return False
            if self._slab is None:
                log.info("an engine of format %s is expected, as %s", expected.format, ", ".join(expected.addresses))
                self._account.event("format_expected", format=expected.format, members=len(expected.addresses))
            self._slab, self._running = slab, True
            return True

    def _fields(self, expected: Expected) -> dict[str, object] | None:
        for address in expected.addresses:
            if not self._breakers.usable(address):
                continue
            try:
                fields = self._dialer.fields(address, expected.format, DESCRIBE_SECONDS)
            except PeerError as error:
                log.info("%s does not say its format: %s", address, error)
                continue
            if fields:
                return fields
        return None
