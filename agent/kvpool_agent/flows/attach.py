"""Attaching an engine: geometry checked, format named, the arena handed over.

The engine port's handler. The host pool's descriptor is mapped read-only for the session's life; the arena's goes to
the engine as a descriptor that can't be mapped writable.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import Busy, Port, Refusal
from kvpool_agent.flows.canary import CanaryFlow
from kvpool_agent.flows.engine_session import EngineSession, Flows
from kvpool_agent.flows.lookup import LookupFlow
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.flows.store import HostPool, StoreFlow
from kvpool_agent.policy.difference import differences
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import LEASE_SECONDS, NoRoom, OtherFormat, Slab, Slabs
from kvpool_client import wire
from kvpool_client.groups import FULL, from_header, obstacle
from kvpool_client.memory import ReadOnlyMapping
from kvpool_contract.names import format_fingerprint
from kvpool_contract.reasons import REASONS

log = logging.getLogger("kvpool.attach")

MAX_ROW_BYTES = 1 << 30


@dataclass(frozen=True)
class Hooks:
    """What the application wants to know: an attach with its slab, the reason of a refusal or bare start, that an
    engine of another format has come, from when to when a client can be told of heads, and that somebody asks."""

    attached: Callable[[Slab], None]
    bare: Callable[[str], None]
    other_format: Callable[[], None]
    began: Callable[[Port], None] = lambda _port: None
    ended: Callable[[Port], None] = lambda _port: None
    requested: Callable[[], None] = lambda: None


class EngineHandler:
    """Grants attaches and makes their sessions (engine_port.server.Handler)."""

    def __init__(
        self,
        slabs: Slabs,
        memory: ArenaMemory,
        lookup: LookupFlow,
        store: StoreFlow,
        account: Account,
        probe: ProbeFlow,
        canary: CanaryFlow,
        hooks: Hooks,
    ) -> None:
        self.slabs, self._memory = slabs, memory
        self.lookup, self.probe = lookup, probe
        self.account, self.hooks = account, hooks
        self._flows = Flows(slabs, lookup, store, account, probe, canary, hooks.requested, self._session_ended)
        self._lock = threading.Lock()
        self._ports: set[Port] = set()
        self.sessions = 0
        self.attaches = 0
        self.in_groups = True  # whether blocks of the engine's model belong to directory groups: windows' don't

    def load_within(self, seconds: float) -> None:
        """Another load deadline from now on, for engines that are attached, too."""
        self.lookup.load_seconds = seconds
        with self._lock:
            ports = list(self._ports)

        def tell() -> None:
            for port in ports:
                port.send({"verb": "limits", "load_seconds": seconds})

        # an engine that stands still takes seconds, which the worker's own loop hasn't got
        with contextlib.suppress(RuntimeError):  # the container has no thread left; the old deadline is a bound, too
            threading.Thread(target=tell, name="kvpool-limits", daemon=True).start()

    def bare(self, reason: str, detail: str) -> None:
        word = reason if reason in REASONS else "unknown"
        log.warning("the engine starts without the pool: %s: %s", word, detail)
        self.account.event("bare", reason=word)
        self.hooks.bare(word)

    def attach(self, frame: wire.Frame, port: Port) -> EngineSession:
        try:
            return self._attach(frame, port)
        except Refusal as refusal:
            log.warning("attach refused: %s %s", refusal.reason, refusal.detail)
            detail = {"detail": refusal.detail} if refusal.detail else {}
            self.account.event("attach_refused", reason=refusal.reason, **detail)
            self.hooks.bare(refusal.reason)
            raise

    def _attach(self, frame: wire.Frame, port: Port) -> EngineSession:
        header = frame.header
        version = max(set(header["versions"]) & set(wire.VERSIONS), default=None)
        if version is None:
            raise Refusal("engine_port_version")
        fields, rows, row_bytes, hash_bytes = (header[name] for name in ("format", "rows", "row_bytes", "hash_bytes"))
        try:
            groups = from_header(header["groups"])
        except ValueError as error:
            log.warning("attach: %s", error)
            raise Refusal("geometry_refused") from None
        engine = str(header.get("engine", ""))
        if not (
            isinstance(fields, dict)
            and all(isinstance(n, int) and n > 0 for n in (rows, row_bytes, hash_bytes))
            and row_bytes <= MAX_ROW_BYTES
            and hash_bytes <= 256
            and len(frame.descriptors) == 1
        ):
            raise Refusal("geometry_refused")
        if self.probe.refuses(engine):
            raise Refusal("probe_mismatch")
        fingerprint = format_fingerprint(fields)  # all that can fail on what a client says comes before the mapping
        try:
            mapping = ReadOnlyMapping(frame.descriptors[0], rows * row_bytes)
        except OSError as error:
            log.warning("host pool: %s", error)
            raise Refusal("geometry_refused") from None
        try:
            slab = self.slabs.open(fingerprint, fields, row_bytes)
        except NoRoom:
            mapping.close()
            raise Refusal("arena_too_small") from None
        except OtherFormat:
            mapping.close()
            if self.sessions:
                held = self.slabs.current
                differing = differences(fields, held.fields if held is not None else {})
                raise Refusal("other_format", "; ".join(differing)) from None
            self._make_way()
        if slab.slot_bytes != row_bytes:
            mapping.close()
            if self.attaches:
                raise Refusal("geometry_refused")
            self._make_way()  # only a predecessor's engine had this format with other blocks
        reason, reader = obstacle(groups), None
        try:
            reader = self._memory.reader()
            if not reason:
                self.probe.attached(engine, slab, port.end, sum(group.whole for group in groups))
        except (OSError, RuntimeError) as error:  # no descriptor or no thread left: the client comes again
            log.error("attach: %s", error)
            mapping.close()
            if reader is not None:
                os.close(reader)
            raise Busy from None
        with self._lock:
            self.attaches += 1
            self.sessions += 1
            self.in_groups = all(group.kind == FULL for group in groups)
            self._ports.add(port)
        try:
            port.send(
                {
                    "verb": "attached",
                    "version": version,
                    "arena_bytes": self._memory.size,
                    "slot_bytes": slab.slot_bytes,
                    "lease_seconds": LEASE_SECONDS,
                    "load_seconds": self.lookup.load_seconds,
                },
                descriptors=(reader,),
            )
        finally:
            os.close(reader)
        if version >= wire.HEADS_VERSION:
            self.hooks.began(port)
        log.info("engine attached: format %s, %d rows of %d bytes", slab.fingerprint.hex(), rows, row_bytes)
        self.account.event("attached", format=slab.fingerprint.hex(), rows=rows, row_bytes=row_bytes)
        if self.slabs.asked_by_requests and not header.get("cache_namespaces"):
            self.account.event("one_cache_namespace")
        if reason:
            self.hooks.bare(reason)
        else:
            self.hooks.attached(slab)
        pool = HostPool(mapping, rows, row_bytes)
        return EngineSession(self._flows, slab, pool, hash_bytes, groups, port)

    def _make_way(self) -> NoReturn:
        """Starts the worker anew for this engine; the next one must not recover what this one holds."""
        self.slabs.wipe()
        self.hooks.other_format()
        raise Busy

    def _session_ended(self, port: Port) -> None:
        self.hooks.ended(port)
        with self._lock:
            self._ports.discard(port)
            self.sessions -= 1
        self.account.event("detached")
