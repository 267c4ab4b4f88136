"""The tiers below the arena: the agent's own disk and the external store, as the configuration has them.

Both are told of what is used and of what is evicted; the slot of a block that goes is given to one of them.
"""

from collections.abc import Callable, Sequence

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs
from kvpool_agent.flows.disk import DiskSource
from kvpool_agent.flows.external import ExternalSource
from kvpool_agent.flows.fetch import InFlight
from kvpool_agent.keyring import Keyring
from kvpool_agent.store.arena import Held
from kvpool_agent.store.disk.tier import DiskTier
from kvpool_agent.store.external.objects import Objects
from kvpool_agent.store.external.tier import ExternalTier
from kvpool_agent.store.slab import LowerTier, Slab
from kvpool_contract import status as contract
from kvpool_contract.config import AgentConfig
from kvpool_contract.external import S3, Store


class Beyond:
    """`start`, `close` once. `below`: what the arena tells of its blocks; None where there is no such tier."""

    def __init__(
        self,
        config: AgentConfig,
        account: Account,
        slabs: Callable[[], Sequence[Slab]],
        keyring: Keyring,
        member: str,
    ) -> None:
        self._config, self._account = config.store, account
        self.disk = DiskTier(config.disk, account, slabs, keyring)
        self._store: ExternalTier | None = None
        if config.store.type:
            objects = _objects(config.store)
            self._store = ExternalTier(config.store, objects, account, slabs, config.pool, member)
        tiers: list[LowerTier] = [self.disk] if config.disk.path else []
        tiers += [self._store] if self._store is not None else []
        self.below: LowerTier | None = tiers[0] if len(tiers) == 1 else _Several(tiers) if tiers else None
        self.external = ExternalSource(self._store)
        self._reads_disk = bool(config.disk.path)

    def disk_source(self, in_flight: InFlight, costs: Costs) -> DiskSource:
        """in_flight: the blocks that are brought in now, from whomever; costs: where reading tells what it has cost."""
        return DiskSource(self.disk if self._reads_disk else None, self._account, in_flight, costs)

    def start(self) -> None:
        self.disk.start()
        if self._store is not None:
            self._store.start()

    def close(self) -> None:
        self.disk.close()
        if self._store is not None and not self._store.ended.is_set():
            self._store.close()

    def leave(self, seconds: float) -> None:
        """What waits for the store is written, for so long at most."""
        if self._store is not None:
            self._store.close(seconds)

    def pause(self, paused: bool) -> None:
        self.disk.paused = paused
        if self._store is not None:
            self._store.paused = paused

    @property
    def unknown(self) -> bool:
        """Whether blocks may lie in one of them that nobody here knows of."""
        return self.disk.looking or self._store is not None

    def store_status(self) -> contract.Store:
        if self._store is None:
            return contract.Store()
        return contract.Store(self._config.type, *self._store.access.told(), self._store.waiting)


class _Several:
    """Tiers as one."""

    def __init__(self, tiers: Sequence[LowerTier]) -> None:
        self._tiers = tiers

    def used(self, slab: Slab, chain: Sequence[bytes], again: Sequence[bytes]) -> None:
        for tier in self._tiers:
            tier.used(slab, chain, again)

    def evicting(self, slab: Slab, block: Held) -> bool:
        return any(tier.evicting(slab, block) for tier in self._tiers)


def _objects(store: Store) -> Objects:
    # imported here: of the stores' clients a process loads the one that it has a use for
    if store.type == S3:
        from kvpool_agent.store.external import s3

        return s3.S3(store)
    from kvpool_agent.store.external.valkey import Valkey

    return Valkey(store)
