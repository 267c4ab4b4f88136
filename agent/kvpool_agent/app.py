"""The worker's composition root: every part made once, wired, started and ended here."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from kvpool_agent.account import Account
from kvpool_agent.configuration import Configuration
from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.distrust import Distrust
from kvpool_agent.directory.entries import Entries
from kvpool_agent.directory.homes import Homes
from kvpool_agent.directory.locate import Locator
from kvpool_agent.directory.members import MemberView
from kvpool_agent.engine_port.server import EnginePort
from kvpool_agent.flows.announce import Announcer
from kvpool_agent.flows.answer import OwnBlocks, OwnDirectory
from kvpool_agent.flows.attach import EngineHandler, Hooks
from kvpool_agent.flows.beyond import Beyond
from kvpool_agent.flows.calibrate import Calibration
from kvpool_agent.flows.canary import CanaryFlow
from kvpool_agent.flows.certify import Certification
from kvpool_agent.flows.custody import Custody
from kvpool_agent.flows.declare import Declarations
from kvpool_agent.flows.early import EarlyWarmup
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.heads import HeadFilter
from kvpool_agent.flows.lookup import LookupFlow
from kvpool_agent.flows.orphans import OrphanCheck
from kvpool_agent.flows.probe import ProbeFlow
from kvpool_agent.flows.reading import Reading
from kvpool_agent.flows.ready import ReadyFlow
from kvpool_agent.flows.recover import RecoveryFlow
from kvpool_agent.flows.requests import RequestNames
from kvpool_agent.flows.store import StoreFlow
from kvpool_agent.flows.warmup import WarmupFlow
from kvpool_agent.heartbeat import Beat
from kvpool_agent.keyring import Keyring
from kvpool_agent.observe import spaces
from kvpool_agent.observe.engine import EngineWatch
from kvpool_agent.observe.http import application
from kvpool_agent.observe.members import peer_statuses
from kvpool_agent.peer.dial import Dialer, Identity
from kvpool_agent.peer.entitlement import Entitlement
from kvpool_agent.peer.rdma.reader import Reader
from kvpool_agent.peer.rdma.transport import Rdma
from kvpool_agent.peer.serve import PeerServer
from kvpool_agent.place import Place
from kvpool_agent.policy.purposes import Purposes, purposes
from kvpool_agent.policy.readiness import Readiness, limits
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import LEASE_SECONDS, Slab, Slabs, slab_options
from kvpool_contract import status as contract
from kvpool_contract.config import AgentConfig
from kvpool_contract.names import ENGINE_SOCKET

log = logging.getLogger("kvpool.agent")

TICK_SECONDS = 0.1
# why an engine that is attached goes on without the pool; all other reasons are of one that is not
OF_THE_ATTACHED = ("probe_mismatch", "groups_unsupported", "draft_missing")


class Agent:
    """One worker. `run` ends when `stop` is called or the format has changed."""

    def __init__(
        self, configuration: Configuration, place: Place, memory: ArenaMemory, beat: Callable[[Beat], None]
    ) -> None:
        """beat: tells the supervisor that the worker lives, and how it is."""
        config = configuration.config
        self._configuration, self._place, self._beat = configuration, place, beat
        self._identity = Identity(config.pool, place.member, secrets.token_hex(8), place.template)
        self._account = Account()
        last = (place.last_beat.state, place.last_beat.reason)
        readiness = Readiness(limits(config.readiness), time.monotonic(), latched=place.latched, last=last)
        self._ready = ReadyFlow(readiness, self._account)
        # a predecessor's leases, given before it died, are over two seconds from now at the latest
        writable_at = time.monotonic() + LEASE_SECONDS if place.restarted else 0.0
        self._keyring = Keyring(config, place.cache_namespaces)
        self._beyond = Beyond(config, self._account, lambda: self._slabs.all, self._keyring, place.member)
        self._slabs = Slabs(memory, writable_at, self._keyring, self._beyond.below, **slab_options(config))
        self._recovery = RecoveryFlow(self._slabs, self._account) if place.restarted else None
        self._certification = Certification(config, place.member, place.identity, self._account)
        transport = self._certification.transport
        entitlement = Entitlement(self._keyring, (self._identity.member, self._identity.incarnation))
        self._dialer = Dialer(self._identity, transport, entitlement)
        # announcements and requests never wait for each other's connections
        self._teller = Dialer(self._identity, transport, entitlement)
        self._breakers = Breakers(self._account, distrusts=lambda address: self._distrust.refuses(address))
        seeds, gone = config.members, self._gone
        self._members = MemberView(seeds, self._dialer, place.member, gone, self._other, self._own_format)
        self._distrust = Distrust(self._members)
        self._canary = CanaryFlow(self._live, lambda: self._slabs.all, self._distrust, self._account)
        self._entries = Entries(self._account)
        self._homes = Homes(self._members, self._as_home)
        self._locator = Locator(self._members, self._dialer, self._breakers, self._account, self._homes, self._entries)
        self._announcer = Announcer(
            self._slabs, place.member, self._members, self._homes, self._entries, self._teller, self._account,
            lambda: self._source.hidden or not self._handler.in_groups,  # of models with windows nobody asks a home
        )  # fmt: skip
        self._orphans = OrphanCheck(self._slabs, self._members, self._teller, self._breakers)
        self._rdma = Rdma(config, memory, self._readable, self._account)
        direct = Reader(self._rdma, self._dialer, self._account)
        self._fetcher = Fetcher(
            self._dialer, self._breakers, self._account, self._purposes, direct, self._beyond.external
        )
        self._probe = ProbeFlow(
            config.engine.port,
            self._members,
            self._dialer,
            self._account,
            lambda: self._bare("probe_mismatch"),
            (place.last_beat.engine, place.last_beat.probe),
        )
        disk = self._beyond.disk_source(self._fetcher.in_flight, self._fetcher.costs)
        seconds = config.loading.deadlineSeconds
        self._lookup = LookupFlow(self._locator, self._fetcher, self._account, seconds, self._probe.before_load, disk)
        self._store = StoreFlow(self._account, lambda: self._probe.awaited(others=False))
        self._warmup = WarmupFlow(
            self._live, self._members, self._dialer, self._fetcher, self._breakers, self._account,
            lambda: self._slabs.all[1:],
        )  # fmt: skip
        self._warming = threading.Lock()  # kept by the first attach
        self._early: EarlyWarmup | None = None
        # in a pod that was ready the engine is there and attaches again by itself
        if place.template and not place.latched and not place.last_beat.disproved:
            self._early = EarlyWarmup(
                place.template, self._slabs, self._members, self._dialer, self._breakers, self._warmup, self._account
            )
        self._disproved, self._discarded = place.last_beat.disproved, 0
        if place.last_beat.discarded:
            self._account.count("warm_discarded_bytes", place.last_beat.discarded)
            self._account.event("warm_discarded", format=self._disproved, bytes=place.last_beat.discarded)
        reading, policy = Reading(self._account, self._purposes), config.publication.policy
        state, proved = (lambda: self._ready.state), self._format_is_proved
        self._source = OwnBlocks(self._identity, self._slabs, reading, state, self._probe, proved, self._rdma, policy)
        directory = OwnDirectory(self._identity, self._slabs, self._source, self._entries, self._members)
        parts = (self._slabs, self._members, self._dialer, self._fetcher, self._account)
        self._custody = Custody(*parts, self._live, lambda: not self._source.hidden)
        self._peers = PeerServer(
            place.bind,
            place.peer_port,
            self._source,
            directory,
            self._custody.taker,
            purposes=self._purposes,
            count=self._account.count,
            transport=transport,
            status=lambda: contract.encode_status(self.status()),
            entitlement=entitlement,
        )
        self._engine = EngineWatch(config.engine.port, self._engine_healthy)
        healthy, probed = (lambda: self._engine.healthy), (lambda: self._probe.snapshot().blocks)
        self._declarations = Declarations(self._slabs, self._live, healthy, probed)
        self._heads = HeadFilter(self._slabs, self._members, self._misses_differ, {"disk": self._beyond.disk.heads})
        costs = self._fetcher.costs
        self._calibration = Calibration(config.engine.port, healthy, self._probe, costs, self._ready, self._account)
        hooks = Hooks(
            self._attached, self._bare, self._other_format, self._heads.join, self._heads.leave,
            self._calibration.requested,
        )  # fmt: skip
        self._handler = EngineHandler(
            self._slabs, memory, self._lookup, self._store, self._account, self._probe, self._canary, hooks
        )
        requests = RequestNames(self._keyring, self._account)
        self._engine_port = EnginePort(
            place.run_dir / ENGINE_SOCKET, self._handler, requests.session, self._account.count
        )
        self._config_hash = configuration.in_force.hash
        self._started_at = contract.now()
        self._stopping = asyncio.Event()
        self._leaving = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        runner = web.AppRunner(application(self.status), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._place.bind or None, self._place.worker_port).start()
        starts = (
            self._certification.start, self._keyring.start, self._members.start, self._announcer.start,
            self._orphans.start, self._custody.start, self._heads.start, self._store.start, self._beyond.start,
            self._rdma.start, self._peers.start, self._engine_port.start, self._declarations.start,
        )  # fmt: skip
        for begin in starts:
            begin()
        if self._place.restarted:
            self._account.event("restarted")
            threading.Thread(target=self._recover, name="kvpool-recover", daemon=True).start()
        if self._early is not None:
            self._early.start()
        self._reconfigured()
        tasks = [
            asyncio.create_task(self._engine.run()),
            asyncio.create_task(self._configuration.follow(self._reconfigured)),
        ]
        try:
            while not self._stopping.is_set():
                self._ready.tick(self._warmup.progress.block_at)
                self._beat(self._state_now())
                try:
                    await asyncio.wait_for(self._stopping.wait(), TICK_SECONDS)
                except TimeoutError:
                    continue
            if self._leaving:
                await self._leave()
        finally:
            for task in tasks:
                task.cancel()
            closes = (
                self._keyring.close, self._engine_port.close, self._peers.close, self._certification.close,
                self._announcer.close, self._orphans.close, self._custody.close, self._heads.close, self._members.close,
                self._beyond.close, self._rdma.close, self._lookup.close, self._locator.close, self._dialer.close,
                self._teller.close, self._declarations.close,
            )  # fmt: skip
            for close in closes:
                close()
            await runner.cleanup()

    async def _leave(self) -> None:
        if self._custody.leaves():
            self._ready.change(lambda readiness: readiness.leave())
            await asyncio.to_thread(self._custody.hand_over)
        await asyncio.to_thread(self._beyond.leave, self._configuration.config.drain.maxSeconds)

    def stop(self) -> None:
        """Ends `run`; any thread may call."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def leave(self) -> None:
        """As `stop`, for good: what this member alone holds of the hot blocks is handed to others before."""
        self._leaving = True
        self.stop()

    def _reconfigured(self) -> None:
        """Takes over what is live in the configuration; what was said before is not told again."""
        config, told = self._configuration.config, self._configuration.in_force
        if told.problem:
            self._account.event("config_invalid", problem=told.problem)
        elif told.hash != self._config_hash:
            self._account.event("config_in_force", hash=told.hash, generation=told.generation)
        self._config_hash = told.hash
        if config.loading.deadlineSeconds != self._lookup.load_seconds:
            self._handler.load_within(config.loading.deadlineSeconds)
        self._lookup.admission.loading = config.loading
        if config.paused != self._lookup.paused:
            self._account.event("paused" if config.paused else "unpaused")
        self._lookup.paused = self._store.paused = config.paused
        self._beyond.pause(config.paused)
        self._ready.change(lambda readiness: readiness.limit(limits(config.readiness)))
        self._ready.change(lambda readiness: readiness.pause(config.paused, time.monotonic()))

    def _live(self) -> AgentConfig:
        return self._configuration.config

    def _purposes(self) -> Purposes:
        config = self._live()
        return purposes(config.prewarm, config.loading, config.drain, config.replication)

    # -- what happens to the state -------------------------------------------------------------------

    def _state_now(self) -> Beat:
        slab = self._slabs.current
        blocks = len(slab.arena) if slab is not None else 0
        found = (*self._ready.lasting(), blocks, *self._probe.verdict(), self._disproved, self._discarded)
        return Beat(*found, self._configuration.config.drain.maxSeconds)

    def _recover(self) -> None:
        blocks = self._recovery.run() if self._recovery is not None else 0
        if self._place.last_beat.blocks and not blocks:
            self._ready.change(lambda readiness: readiness.arena_lost())

    def _engine_healthy(self) -> None:
        self._ready.change(lambda readiness: readiness.engine_healthy(time.monotonic()))

    def _attached(self, slab: Slab) -> None:
        self._ready.change(lambda readiness: readiness.attached(time.monotonic()))
        first = self._warming.acquire(blocking=False)
        if first:
            self._calibration.begin(self._live())
        if first and not (self._early is not None and self._early.attached(slab, self._warmed)):
            self._certification.when_certified(
                lambda since: self._warmup.start(slab, self._warmed, lambda: since),
                lambda: self._warmed("no_certificate"),
            )

    def _warmed(self, reason: str) -> None:
        if self._probe.withdrawn:
            return  # the hot set is of no use to an engine that is refused
        self._ready.change(lambda readiness: readiness.warmed(reason, time.monotonic()))

    def _bare(self, reason: str) -> None:
        # where another engine is served, its warm-up goes on
        if self._early is not None and (reason in OF_THE_ATTACHED or not self._handler.sessions):
            self._early.stop()
        self._ready.change(lambda readiness: readiness.bare(reason, time.monotonic()))

    def _other_format(self) -> None:
        log.info("an engine of another format has come; the worker starts anew for it")
        if self._early is not None and not self._handler.attaches:
            self._disproved, self._discarded = self._early.unproved()
            self._beat(self._state_now())  # the next worker tells it
        self.stop()

    def _gone(self, address: str) -> None:
        self._dialer.forget(address)
        self._other(address)

    def _other(self, address: str) -> None:
        for known in (self._teller, self._breakers, self._fetcher.costs, self._rdma.peers, self._account):
            known.forget(address)

    def _as_home(self) -> tuple[str, str] | None:
        ready = self._ready.ready
        return (self._identity.member, self._identity.incarnation) if ready else None

    def _misses_differ(self, others: bool) -> bool:
        """Whether a lookup may miss, or hit, for another reason than who holds the first block."""
        # what a client could make of a name without a key is no name here
        differ = self._keyring.keyed or self._lookup.paused or self._beyond.unknown or self._probe.awaited(others)
        return differ or self._calibration.running

    def _format_is_proved(self) -> bool:
        """Whether an engine has shown that it has this format, to this worker or to one before it."""
        return self._handler.attaches > 0 or self._place.latched

    def _readable(self) -> Sequence[Slab]:
        return () if self._source.hidden else self._slabs.all

    def _own_format(self) -> str:
        slab = self._slabs.current
        return slab.fingerprint.hex() if slab is not None else ""

    # -- what people see -----------------------------------------------------------------------------

    def status(self) -> contract.AgentStatus:
        events = self._account.events  # first: whoever reads an event here finds what was counted before it
        slab = self._slabs.current
        return contract.AgentStatus(
            version=contract.VERSION,
            pool=self._identity.pool,
            member=self._identity.member,
            incarnation=self._identity.incarnation,
            state=self._ready.state,
            reason=self._ready.reason,
            attached=self._handler.sessions > 0,
            attaches=self._handler.attaches,
            engine_healthy=self._engine.healthy,
            format=self._own_format(),
            format_fields=slab.fields if slab is not None else {},
            arena=spaces.arena(self._slabs),
            warm=self._warmup.progress.snapshot(self._ready.added_seconds),
            hits=self._account.hits,
            engine_tokens=self._engine.tokens,
            transfers=self._account.transfers,
            misses=self._account.misses,
            counters=self._account.counters,
            directory=contract.Directory(
                len(self._entries), self._entries.holders, self._members.learnt, *self._heads.known
            ),
            peers=peer_statuses(self._members.all(), slab, self._breakers, self._rdma),
            unknown_config_fields=list(self._configuration.unknown_fields),
            started_at=self._started_at,
            events=events,
            probe=self._probe.snapshot(),
            config=self._configuration.in_force,
            tls=self._certification.snapshot(),
            cache_namespaces=spaces.cache_namespaces(self._keyring, self._slabs),
            disk=self._beyond.disk.status(),
            store=self._beyond.store_status(),
            costs=self._fetcher.costs.snapshot(),
            transport=self._rdma.snapshot(),
            benefit=self._fetcher.costs.benefit(),
            first_token=self._fetcher.costs.outcomes(),
            reuse=spaces.reuse(self._slabs),
            declared=self._declarations.snapshot(),
            canary=self._canary.snapshot(),
            calibrated=self._calibration.snapshot(),
        )
