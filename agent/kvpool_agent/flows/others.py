"""Who else holds a slab's blocks, and who of the other members may be given some: asked now, not remembered."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kvpool_agent.directory.members import MemberView
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import MAX_KEYS
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.policy.readiness import DEGRADED, WARM
from kvpool_agent.store.slab import Slab

log = logging.getLogger("kvpool.others")

ASK_SECONDS = 1.0
MAX_RECEIVERS = 64


class Others:
    """Any thread may call. `until`: on the monotonic clock; a member is waited for a second at most."""

    def __init__(self, members: MemberView, dialer: Dialer) -> None:
        self._members, self._dialer = members, dialer

    def staying(self, fingerprint: bytes, version: int, until: float) -> list[str]:
        """Members of this format that are ready, as they say now, and speak this version or a later one."""
        able = [m.address for m in self._members.live(fingerprint) if m.version >= version]

        def stays(address: str) -> bool:
            try:
                welcome = self._dialer.welcome(address, min(ASK_SECONDS, until - time.monotonic()))
            except PeerError as error:
                log.info("%s does not say how it is: %s", address, error)
                return False
            return welcome.state in (WARM, DEGRADED) and welcome.format == fingerprint.hex()

        with ThreadPoolExecutor(MAX_RECEIVERS, "kvpool-others") as threads:
            return [a for a, here in zip(able, threads.map(stays, able), strict=True) if here][:MAX_RECEIVERS]

    def alone(
        self, slab: Slab, blocks: Sequence[HotBlock], members: Sequence[str], until: float, enough: int
    ) -> tuple[list[HotBlock], dict[str, set[bytes]]]:
        """Which blocks none of the members holds, in their order, `enough` of them or some more; and which of all each
        of those members holds that may have them."""
        held: dict[str, set[bytes]] = {address: set() for address in members if self._entitled(address, slab, until)}
        alone: list[HotBlock] = []
        for start in range(0, len(blocks), MAX_KEYS):
            part = blocks[start : start + MAX_KEYS]
            keys = [block.key for block in part]
            for address in list(held):
                try:
                    found = self._dialer.locate(address, slab.id, keys, min(ASK_SECONDS, until - time.monotonic()))
                except PeerError as error:
                    log.info("%s does not say what it holds: %s", address, error)
                    del held[address]
                    continue
                held[address].update(key for key, here in zip(keys, found, strict=True) if here)
            alone += [block for block in part if not any(block.key in one for one in held.values())]
            if len(alone) >= enough:
                break
        return alone, held

    def _entitled(self, address: str, slab: Slab, until: float) -> bool:
        try:
            return self._dialer.shares(address, slab.id, min(ASK_SECONDS, until - time.monotonic()))
        except PeerError as error:
            log.info("%s does not say what it may hold: %s", address, error)
            return False
