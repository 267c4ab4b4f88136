"""The states of an agent and the way between them.

Starting → Warming → Ready(warm) | Ready(degraded, reason). Ready is a latch: the supervisor keeps it for the life of
the agent's container, so no later outage empties a Service. A worker that follows another one in a container that
was ready goes on with its state, unless the arena did not survive. Pure: events go in with their time, the state
comes out.
"""

from dataclasses import dataclass

# how a warm-up may end
_WARM_UP_REASONS = ("", "nothing_to_warm", "warm_deadline", "warm_incomplete", "arena_lost")
STARTING, WARMING, WARM, DEGRADED = "Starting", "Warming", "Ready(warm)", "Ready(degraded)"


@dataclass(frozen=True)
class Limits:
    """Seconds from the first attach to giving up on the hot set, from a healthy engine to giving up on attach, and
    from the worker's start to giving up on an engine that is never seen healthy: it may listen elsewhere."""

    deadline_seconds: float
    attach_grace_seconds: float
    start_seconds: float = 1800.0


class Readiness:
    """`state`, `reason` (of Ready(degraded), else empty) and `ready_at`. Times in seconds of one clock."""

    def __init__(self, limits: Limits, now: float, *, latched: bool = False, last: tuple[str, str] = ("", "")) -> None:
        """latched: an earlier worker of this container was ready already; last: its state and reason, where it told
        them."""
        self._limits = limits
        self._started_at = now
        self.state, self.reason = STARTING, ""
        if latched:
            self.state, self.reason = last if last[0] in (WARM, DEGRADED) else (DEGRADED, "arena_lost")
        self.latched = latched
        self._resumed = latched
        self.healthy_at: float | None = None
        self.attached_at: float | None = None
        self.ready_at: float | None = None

    @property
    def ready(self) -> bool:
        return self.state in (WARM, DEGRADED)

    @property
    def added_seconds(self) -> float:
        """What the pool cost this start: ready − max(engine healthy, attached), 0 until all are known."""
        known = [t for t in (self.healthy_at, self.attached_at) if t is not None]
        if self.ready_at is None or not known or self.latched:
            return 0.0
        return max(0.0, self.ready_at - max(known))

    def engine_healthy(self, now: float) -> None:
        if self.healthy_at is None:
            self.healthy_at = now

    def attached(self, now: float) -> None:
        """An engine session has begun; warming starts with the first one."""
        if self.attached_at is None:
            self.attached_at = now
        if self.state == STARTING:
            self.state = WARMING
        elif self.reason in ("not_attached", "probe_mismatch"):  # of the engine before this one
            self.reason, self._resumed = "nothing_to_warm", False

    def bare(self, reason: str, now: float) -> None:
        """The engine starts, or goes on, without the pool."""
        self._enter(DEGRADED, reason, now)

    def warmed(self, reason: str, now: float) -> None:
        """The warm-up has ended: with an empty reason the hot set is in, else what kept it from that."""
        if self._resumed and self.reason in _WARM_UP_REASONS:
            # the warm-up of the earlier worker has been judged; this one only brings in what is missing
            complete = not reason and self.reason not in ("", "nothing_to_warm")
            if not complete:
                return
        self._enter(DEGRADED if reason else WARM, reason, now)

    def arena_lost(self) -> None:
        """A latched worker has recovered nothing although its predecessor held blocks."""
        if self._resumed and self.reason in _WARM_UP_REASONS:
            self.state, self.reason = DEGRADED, "arena_lost"

    def tick(self, now: float) -> None:
        """Lets deadlines pass."""
        limits = self._limits
        if self.state == WARMING and _passed(self.attached_at, limits.deadline_seconds, now):
            self._enter(DEGRADED, "warm_deadline", now)
        elif self.state == STARTING:
            unattached = _passed(self.healthy_at, limits.attach_grace_seconds, now)
            if unattached or _passed(self._started_at, limits.start_seconds, now):
                self._enter(DEGRADED, "not_attached", now)

    def _enter(self, state: str, reason: str, now: float) -> None:
        self.state, self.reason, self._resumed = state, reason, False
        if self.ready_at is None:
            self.ready_at = now


def _passed(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now - since >= seconds
