"""Who keeps what one member alone holds: second copies while it stays, hand-off when it leaves, and taking both."""

from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.directory.members import MemberView
from kvpool_agent.flows.fetch import Fetcher
from kvpool_agent.flows.handoff import HandOff
from kvpool_agent.flows.others import Others
from kvpool_agent.flows.replicate import Replicator
from kvpool_agent.flows.takeover import TakeOver
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.store.slab import Slabs
from kvpool_contract.config import AgentConfig


class Custody:
    """`taker` answers offers; `start`, `close`; `hand_over` once, at the end."""

    def __init__(
        self,
        slabs: Slabs,
        members: MemberView,
        dialer: Dialer,
        fetcher: Fetcher,
        account: Account,
        config: Callable[[], AgentConfig],
        holds: Callable[[], bool],
    ) -> None:
        """config: as it holds now. holds: whether this member holds anything for others."""
        self._config, self._holds = config, holds
        self._leaving = False
        others = Others(members, dialer)
        self.taker = TakeOver(slabs, members, fetcher, account, self._willing)
        self._handoff = HandOff(slabs, others, dialer, account, lambda: config().drain)
        self._replicator = Replicator(slabs, others, dialer, account, self._copy_rate)

    def _willing(self, copy: bool) -> bool:
        config = self._config()
        wanted = config.replication.maxBytesPerSecond if copy else config.drain.maxSeconds
        return wanted > 0 and not (config.paused or self._leaving) and self._holds()

    def _copy_rate(self) -> int:
        return self._config().replication.maxBytesPerSecond if self._willing(True) else 0

    def start(self) -> None:
        self._replicator.start()

    def close(self) -> None:
        self._replicator.close()

    def leaves(self) -> bool:
        """This member leaves: it takes nothing from now on. Whether it has something to hand over."""
        wanted = self._willing(False)
        self._leaving = True
        return wanted

    def hand_over(self) -> None:
        self._handoff.run()
