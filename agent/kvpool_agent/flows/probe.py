"""The probe: before its first load an engine proves that it computes what the pool's other engines compute.

Equal fields and an equal geometry do not show that bytes lie in the same order, nor that weights of one name are the
same weights. So each engine is asked once for a fixed short prompt, over its own HTTP port, since a plug-in has no
other way to have an unmodified engine compute something. Its client computes that prompt and never loads it, and its
rows stay here, in slots of their own, under the block keys that the same prompt has at every member. They are compared
with those of one member that has them. A mismatch ends the sessions of this engine, which serves bare from then on.

Until the verdict nothing is loaded, and what the engine stores is published only afterwards. An engine that can't be
asked (no HTTP port here, or one behind a key) has nothing more to show than its fields: it loads, and the state says
`not_run`. The first engine of a pool is `alone`; it asks again before its loads until another member has the rows.
"""

import http.client
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvpool_agent.account import Account
from kvpool_agent.directory.members import Member, MemberView
from kvpool_agent.flows.engine_http import complete
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.policy.proof import CLOSE, MISMATCH, SAME, compare
from kvpool_agent.policy.readiness import DEGRADED, WARM
from kvpool_agent.store.slab import Slab
from kvpool_agent.store.tag import tag_of
from kvpool_contract.status import Probe

log = logging.getLogger("kvpool.probe")

PENDING, ALONE, NOT_RUN = "pending", "alone", "not_run"
SETTLED = (SAME, CLOSE, ALONE, NOT_RUN, MISMATCH)
HEALTHY_SECONDS = 600.0  # from an attach to an engine that answers on its port
ANSWER_SECONDS = 30.0
STORED_SECONDS = 2.0  # from the engine's answer to its rows
TRIES = 3  # a client that has not yet taken in its attach lets the rows go
FETCH_SECONDS = 5.0
SETTLE_SECONDS = 3.0
WAIT_SECONDS = 2.0  # that a lookup waits for the verdict
AGAIN_SECONDS = 1.0  # until a member is asked again that had published blocks and not the probe's, or was silent
PAUSE_SECONDS = 0.25
MAX_WAITING = 1024  # commits that wait for the verdict
MAX_SESSIONS = 64  # of one engine, to be ended with a mismatch
NOT_STORED = "the engine did not store what it computed"
NOTHING_WHOLE = "no KV group of the model fills a row of the host pool, and parts of rows can't be compared"
CACHE_SALT = "kvpool-probe"
# above the special tokens of all usual vocabularies, below the size of any
FIRST_TOKEN, TOKENS = 300, 500


def prompt(block_tokens: int) -> list[int]:
    """Token ids of the fixed prompt: one block, and one token that is computed in any case."""
    return [FIRST_TOKEN + i * i * 31 % TOKENS for i in range(block_tokens + 1)]


@dataclass(frozen=True)
class Row:
    """One of the probe's blocks, in a slot of its own that the arena's table does not know."""

    key: bytes
    slot: int
    tag: bytes


@dataclass
class _Attempt:
    """One engine's probe. `expected`: rows that it has; `end`: how its sessions are ended."""

    engine: str
    slab: Slab
    expected: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    rows: dict[bytes, Row] = field(default_factory=dict)
    end: list[Callable[[], None]] = field(default_factory=list)
    computed: bool = False


class ProbeFlow:
    """Any thread may call. `refused` is told of a mismatch."""

    def __init__(
        self,
        port: int,
        members: MemberView,
        dialer: Dialer,
        account: Account,
        refused: Callable[[], None],
        before: tuple[str, str] = ("", ""),
    ) -> None:
        """port: of the engine's HTTP server on the loopback address. before: the engine that an earlier worker of this
        container had, and what it found: such an engine is not held up by another probe."""
        self._port = port
        self._members = members
        self._dialer = dialer
        self._account = account
        self._refused = refused
        self._changed = threading.Condition()
        self._comparing = threading.Lock()
        self._attempt: _Attempt | None = None
        self._engine, self._state = before if before[1] in SETTLED else ("", "")
        self._detail = self._member = ""
        self._asked_for = False  # the engine works for others, so it answers somewhere
        self._waiting: list[Callable[[bool], None]] = []
        # members that had not the probe's blocks, or did not answer: not to be asked before, and whether they answered
        self._asked: dict[tuple[str, str], tuple[float, bool]] = {}

    # -- the engine's session ------------------------------------------------------------------------

    def refuses(self, engine: str) -> bool:
        """Whether this engine has been found to compute something else."""
        with self._changed:
            return self._state == MISMATCH and self._engine == engine

    def attached(self, engine: str, slab: Slab, end: Callable[[], None], expected: int = 1) -> None:
        """An engine has attached; one that is not known yet is probed. `end` ends its session. expected: rows of the
        prompt's block that can be compared, one of each KV group that fills its rows. Raises RuntimeError where the
        container has no thread left: the engine is to attach again."""
        with self._changed:
            now = self._attempt
            if now is not None and (now.engine, now.slab) == (engine, slab):
                now.end[:] = [*now.end[-MAX_SESSIONS:], end]
                return
            attempt = _Attempt(engine, slab, expected, end=[end])
            self._attempt = attempt
            if self._engine != engine or self._state not in SETTLED:
                self._engine, self._state, self._detail, self._member = engine, PENDING, "", ""
            self._asked_for = False
            self._changed.notify_all()
        if now is not None:
            now.slab.arena.give_back([row.slot for row in now.rows.values()])
        try:
            threading.Thread(target=self._run, args=(attempt,), name="kvpool-probe", daemon=True).start()
        except RuntimeError:
            with self._changed:
                if self._attempt is attempt:  # else nobody would ever come to its verdict
                    self._attempt = None
            raise

    def expects(self, token: str) -> bool:
        """Whether a store that bears this mark is of the probe that runs now."""
        attempt = self._attempt
        return attempt is not None and bool(token) and attempt.token == token

    def take(self, slab: Slab, blocks: Sequence[tuple[bytes, Callable[[int], None]]]) -> list[Row] | None:
        """Copies the probe's blocks, each by its function of an address; None without room for them. They count when
        they are `keep`t."""
        slots = slab.arena.reserve(len(blocks), time.monotonic())
        if len(slots) < len(blocks):
            slab.arena.give_back(slots)
            return None
        rows = []
        for (key, copy_to), slot in zip(blocks, slots, strict=True):
            copy_to(slab.address(slot))
            rows.append(Row(key, slot, tag_of(key, slab.view(slot))))
        return rows

    def keep(self, slab: Slab, rows: Iterable[Row]) -> None:
        """The engine's job was open when its rows had been copied: they are what their keys say."""
        with self._changed:
            attempt = self._attempt
            known = attempt.rows if attempt is not None and attempt.slab is slab else None
            for row in rows:
                if known is None or row.key in known:
                    slab.arena.give_back([row.slot])
                else:
                    known[row.key] = row
            self._changed.notify_all()

    def when_settled(self, act: Callable[[bool], None]) -> None:
        """Calls `act`, at once or with the verdict: with whether the engine may share."""
        with self._changed:
            if self._state == PENDING:
                self._asked_for = True
                self._changed.notify_all()
            if self._state == PENDING and len(self._waiting) < MAX_WAITING:
                self._waiting.append(act)
                return
            shares = self._state not in (PENDING, MISMATCH)
        act(shares)

    # -- what others ask -----------------------------------------------------------------------------

    @property
    def withdrawn(self) -> bool:
        """Whether nothing that this engine has stored may leave."""
        return self._state == MISMATCH

    def awaited(self, others: bool) -> bool:
        """Whether a lookup may wait for the verdict, or be refused by it; others: whether there is another member."""
        return self._state in (PENDING, MISMATCH) or (self._state == ALONE and others)

    @property
    def settled(self) -> bool:
        """Whether it is known what became of it; also of one that could not be run."""
        return self._state in SETTLED

    def verdict(self) -> tuple[str, str]:
        """The engine and its state, for a worker after this one."""
        with self._changed:
            return (self._engine, self._state) if self._state in SETTLED else ("", "")

    def snapshot(self) -> Probe:
        with self._changed:
            attempt = self._attempt
            keys = sorted(attempt.rows) if attempt is not None and attempt.computed else []
            return Probe(self._state, self._detail, self._member, [key.hex() for key in keys])

    def rows(self, slab: Slab, keys: Sequence[bytes]) -> list[tuple[int, bytes, memoryview]]:
        """Those of the probe's blocks, as a member is answered: (index, tag, bytes)."""
        with self._changed:
            attempt = self._attempt
            if attempt is None or attempt.slab is not slab or self._state == MISMATCH:
                return []
            found = [(i, attempt.rows.get(key)) for i, key in enumerate(keys)]
        return [(i, row.tag, slab.view(row.slot)) for i, row in found if row is not None]

    def before_load(self, deadline: float) -> str:
        """Waits for the verdict, some seconds and until the deadline at most; why nothing may be loaded, or empty."""
        with self._changed:
            if self._state == PENDING:
                self._asked_for = True
                self._changed.notify_all()
                seconds = min(WAIT_SECONDS, deadline - time.monotonic())
                self._changed.wait_for(lambda: self._state != PENDING, timeout=max(0.0, seconds))
            state, attempt = self._state, self._attempt
        if state == ALONE and attempt is not None:
            state = PENDING if not self._compare(attempt, deadline) else self._state
        return {PENDING: "probe_pending", MISMATCH: "probe_mismatch"}.get(state, "")

    # -- one probe -----------------------------------------------------------------------------------

    def _run(self, attempt: _Attempt) -> None:
        try:
            for _ in range(TRIES):
                obstacle = self._ask(attempt) or self._stored(attempt)
                if obstacle != NOT_STORED:
                    break
            attempt.computed = not obstacle
        except Exception:
            log.exception("the probe failed")
            obstacle = "it failed, see the agent's log"
        if self._attempt is not attempt:
            return
        if not obstacle:
            self._members.settle(SETTLE_SECONDS)
            try:
                self._compare(attempt, time.monotonic() + FETCH_SECONDS)
            except Exception:
                log.exception("the probe's rows were not compared")
                if self._state == PENDING:  # every lookup would wait for it, for ever
                    self._settle(attempt, ALONE, "the comparison failed, see the agent's log")
        elif self._state == PENDING:
            log.warning("no probe: %s; the engine shares by its format's fields alone", obstacle)
            self._settle(attempt, NOT_RUN, obstacle)

    def _ask(self, attempt: _Attempt) -> str:
        """Has the engine compute the prompt; why that can't be, or empty."""
        block_tokens = attempt.slab.fields.get("block_tokens")
        if not isinstance(block_tokens, int) or not 0 < block_tokens <= 1 << 16:
            return "the format does not tell how long a block is"
        if not attempt.expected:
            return NOTHING_WHOLE
        until = time.monotonic() + HEALTHY_SECONDS
        while self._attempt is attempt:
            waits = self._state == PENDING and self._asked_for
            try:
                # after a restart nothing can be stored yet, which is no reason to hold an unknown engine up
                if self._state == PENDING or attempt.slab.arena.writable(time.monotonic()):
                    status = self._complete(attempt.token, block_tokens)
                    if status != http.client.SERVICE_UNAVAILABLE:
                        return "" if status == http.client.OK else f"the engine's port answered {status}"
                    if waits:
                        return f"requests come, and the engine's port answered {status}"
            except ConnectionRefusedError:
                if waits:
                    return "requests come, and nobody listens on the engine's port"
            except (OSError, http.client.HTTPException) as error:
                return f"no answer on the engine's port: {error}"
            if time.monotonic() >= until:
                return "nobody listens on the engine's port"
            with self._changed:
                self._changed.wait(PAUSE_SECONDS)
        return "another engine has come"

    def _complete(self, token: str, block_tokens: int) -> int:
        body = {
            "prompt": prompt(block_tokens),
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": CACHE_SALT,
            "kv_transfer_params": {"kvpool_probe": token},
        }
        return complete(self._port, body, ANSWER_SECONDS)[0]

    def _stored(self, attempt: _Attempt) -> str:
        """Waits for the rows; why there are none, or empty."""

        def ended() -> bool:
            return len(attempt.rows) >= attempt.expected or self._attempt is not attempt

        with self._changed:
            self._changed.wait_for(ended, timeout=STORED_SECONDS)
            return "" if attempt.rows else NOT_STORED

    def _compare(self, attempt: _Attempt, deadline: float) -> bool:
        """Compares with the first member that has the rows, members that are ready before others; False when one that
        may have them could not be asked."""
        if not self._comparing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            with self._changed:
                rows = [attempt.rows[key] for key in sorted(attempt.rows)]
            if not rows or self._state not in (PENDING, ALONE, NOT_RUN):
                return True
            all_asked = True
            for member in sorted(self._members.live(attempt.slab.fingerprint), key=_readiest):
                who, found = _life(member), ""
                if time.monotonic() >= self._asked.get(who, (0.0, True))[0]:
                    try:
                        found = self._compare_with(attempt.slab, rows, member, deadline)
                        answered = True
                    except PeerError as error:
                        log.info("no probe's block from %s: %s", member.address, error)
                        answered = False
                    # a member that is probed has these blocks before it publishes any
                    if not answered or (member.welcome is not None and member.welcome.blocks):
                        self._asked[who] = time.monotonic() + AGAIN_SECONDS, answered
                if found:
                    self._settle(attempt, found, "", who[0])
                    return True
                all_asked &= self._asked.get(who, (0.0, True))[1]
            if self._state == PENDING:
                self._settle(attempt, ALONE, "no other member has computed the probe's prompt")
            return all_asked
        finally:
            self._comparing.release()

    def _compare_with(self, slab: Slab, rows: Sequence[Row], member: Member, deadline: float) -> str:
        """What the comparison says; empty when the member has no such rows. Raises PeerError."""
        now, keys = time.monotonic(), [row.key for row in rows]
        slots = slab.arena.reserve(len(rows), now)
        landed: dict[int, memoryview] = {}

        def land(index: int, tag: bytes, length: int, read_into: Callable[[memoryview], None]) -> None:
            if length != slab.slot_bytes or index >= len(slots):
                raise PeerError(f"a probe's block of {length} bytes, slots have {slab.slot_bytes}")
            view = slab.view(slots[index])
            read_into(view)
            if tag_of(keys[index], view) != tag:
                self._account.count("tag_failures")
                raise PeerError("a probe's bytes don't match their tag")
            landed[index] = view

        try:
            if len(slots) < len(rows):
                return ""
            until = min(deadline, now + FETCH_SECONDS)
            self._dialer.fetch(member.address, slab.fingerprint, keys, "probe", until, land)
            if not landed:
                return ""
            ours = [slab.view(rows[index].slot) for index in landed]
            return compare(ours, list(landed.values()), str(slab.fields.get("kv_dtype", "")))
        finally:
            slab.arena.give_back(slots)

    def _settle(self, attempt: _Attempt, state: str, detail: str, member: str = "") -> None:
        with self._changed:
            if self._attempt is not attempt:
                return
            self._state, self._detail, self._member = state, detail, member
            waiting, self._waiting = self._waiting, []
            self._asked.clear()
            ends, attempt.end = (attempt.end, []) if state == MISMATCH else ([], attempt.end)
            self._changed.notify_all()
        log.info("probe: %s %s", state, member or detail)
        self._account.count(f"probe_{state}")
        for act in waiting:
            act(state != MISMATCH)
        if state == MISMATCH:
            log.error("this engine computes other bytes than %s for the same prompt; it is not served any more", member)
            self._refused()
            for end in ends:
                end()


def _life(member: Member) -> tuple[str, str]:
    """Which member this is, and which life of its worker."""
    return (member.welcome.member, member.welcome.incarnation) if member.welcome else (member.address, "")


def _readiest(member: Member) -> tuple[bool, str]:
    return member.welcome is None or member.welcome.state not in (WARM, DEGRADED), member.address
