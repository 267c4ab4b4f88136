"""The states of an agent and the way between them.

Starting → Warming → Ready(warm) | Ready(degraded, reason) → Draining. Ready is a latch: the supervisor keeps it
for the life of the agent's container, so no later outage empties a Service. A worker that follows another one in a
container that was ready goes on with its state, unless the arena did not survive. That an engine runs without the
pool stands until one attaches: the warm-up for another engine, which ends meanwhile, says nothing about it. Pure:
events go in with their time, the state comes out.
"""

import math
from dataclasses import dataclass

from kvpool_contract import config

# how a warm-up may end
_WARM_UP_REASONS = ("", "nothing_to_warm", "warm_deadline", "warm_incomplete", "arena_lost")
PAUSED, RESUMED = "paused", "resumed"
STARTING, WARMING, WARM, DEGRADED = "Starting", "Warming", "Ready(warm)", "Ready(degraded)"
DRAINING = "Draining"


@dataclass(frozen=True)
class Limits:
    """Seconds from the first attach to giving up on the hot set, from a healthy engine to giving up on attach, and
    from the worker's start to giving up on an engine that is never seen healthy: it may listen elsewhere. blocks:
    whether the first of these counts from the last block that came, so that only a warm-up that stands still ends."""

    deadline_seconds: float
    attach_grace_seconds: float
    start_seconds: float = 1800.0
    blocks: bool = False

    def deadline(self, attached_at: float, block_at: float) -> float:
        """When the hot set is given up. block_at: when its last block came, any time before the attach if none has."""
        return self.deadline_seconds + (max(attached_at, block_at) if self.blocks else attached_at)


def limits(said: config.Readiness) -> Limits:
    """Those of a configuration."""
    return Limits(said.deadlineSeconds, said.attachGraceSeconds, blocks=said.onDeadline == "Block")


class Readiness:
    """`state`, `reason` (of Ready(degraded), else empty) and `ready_at`. Times in seconds of one clock."""

    def __init__(self, limits: Limits, now: float, *, latched: bool = False, last: tuple[str, str] = ("", "")) -> None:
        """latched: an earlier worker of this container was ready already, or none was for so long that the supervisor
        made the pod ready; last: the state and reason that it told."""
        self._limits = limits
        self._started_at = now
        self._state, self._reason = STARTING, ""
        if latched:
            self._state, self._reason = last if last[0] in (WARM, DEGRADED) else (DEGRADED, "warm_deadline")
        self.latched = latched
        self._resumed = latched and self._reason != RESUMED
        self._paused = self._leaving = False
        self._bare = self._held = False
        # how the warm-up ended, None while that is not known
        self._warmed = self._reason if latched and self._reason in _WARM_UP_REASONS else None
        self.healthy_at: float | None = None
        self.attached_at: float | None = None
        self.ready_at: float | None = None

    @property
    def state(self) -> str:
        if self._leaving:
            return DRAINING
        return DEGRADED if self._paused else self._state

    @property
    def reason(self) -> str:
        if self._leaving:
            return ""
        return PAUSED if self._paused else self._reason

    @property
    def ready(self) -> bool:
        return self.state in (WARM, DEGRADED)

    @property
    def lasting(self) -> tuple[str, str]:
        """State and reason for the next worker, which sees for itself whether the pool is paused."""
        early = self._paused and self._state in (STARTING, WARMING)
        return (DEGRADED, RESUMED) if early else (self._state, self._reason)

    @property
    def added_seconds(self) -> float:
        """What the pool cost this start: ready − max(engine healthy, attached), 0 until all are known."""
        known = [t for t in (self.healthy_at, self.attached_at) if t is not None]
        if self.ready_at is None or not known or self.latched:
            return 0.0
        return max(0.0, self.ready_at - max(known))

    def limit(self, limits: Limits) -> None:
        """Other limits from now on."""
        self._limits = limits

    def pause(self, paused: bool, now: float) -> None:
        """While the pool is paused the agent is ready, whatever was before; afterwards it is what it would be, but
        never unready again."""
        before, self._paused = self._paused, paused
        if paused and self.ready_at is None:
            self.ready_at = now
        elif before and not paused and self._state in (STARTING, WARMING):
            self._state, self._reason = DEGRADED, RESUMED

    def leave(self) -> None:
        """The agent was told to end, and hands over what it holds."""
        self._leaving = True

    def engine_healthy(self, now: float) -> None:
        if self.healthy_at is None:
            self.healthy_at = now

    def attached(self, now: float) -> None:
        """An engine session has begun; warming starts with the first one."""
        if self.attached_at is None:
            self.attached_at = now
        bare, self._bare = self._bare, False
        if bare and self._warmed is not None and self._reason != "probe_mismatch":
            self.warmed(self._warmed, now)
        elif self._state == STARTING:
            self._state = WARMING
        elif bare or self._reason in ("not_attached", "probe_mismatch"):  # of the engine before this one
            self._reason, self._resumed = "nothing_to_warm", False

    def bare(self, reason: str, now: float) -> None:
        """The engine starts, or goes on, without the pool."""
        self._bare = True
        self._enter(DEGRADED, reason, now)

    def warmed(self, reason: str, now: float) -> None:
        """The warm-up has ended: with an empty reason the hot set is in, else what kept it from that."""
        if self._resumed and self._reason in _WARM_UP_REASONS:
            # the warm-up of the earlier worker has been judged; this one only brings in what is missing
            complete = not reason and self._reason not in ("", "nothing_to_warm")
            if not complete:
                return
        self._warmed = reason
        if self._bare or (self._held and self._state == WARMING):
            return
        self._enter(DEGRADED if reason else WARM, reason, now)

    def hold(self) -> None:
        """The end of the warm-up makes nobody ready before `let_go`, or the deadline."""
        self._held = True

    def let_go(self, now: float) -> None:
        """Ready, where the warm-up has ended meanwhile."""
        self._held = False
        if self._state == WARMING and self._warmed is not None:
            self.warmed(self._warmed, now)

    def arena_lost(self) -> None:
        """A latched worker has recovered nothing although its predecessor held blocks."""
        if self._resumed and self._reason in _WARM_UP_REASONS:
            self._state, self._reason = DEGRADED, "arena_lost"

    def tick(self, now: float, block_at: float = -math.inf) -> None:
        """Lets deadlines pass. block_at: when the last block of the hot set came."""
        limits = self._limits
        if self._paused:
            return
        if self._state == WARMING and self.attached_at is not None:
            if now >= limits.deadline(self.attached_at, block_at):
                self.let_go(now)
                if self._state == WARMING:
                    self._enter(DEGRADED, "warm_deadline", now)
        elif self._state == STARTING or (self._reason == RESUMED and self.attached_at is None):
            unattached = _passed(self.healthy_at, limits.attach_grace_seconds, now)
            if unattached or _passed(self._started_at, limits.start_seconds, now):
                self._enter(DEGRADED, "not_attached", now)

    def _enter(self, state: str, reason: str, now: float) -> None:
        self._state, self._reason, self._resumed = state, reason, False
        if self.ready_at is None:
            self.ready_at = now


def _passed(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now - since >= seconds
