"""Who holds which blocks: every live member of the format is asked at once, each with the same short deadline.

A member whose breaker is open is not asked: it would cost the lookup its wait, or promise what it does not serve.

The answer is a hint: a FETCH says the truth block by block, and the hit is cut at the first gap.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kvpool_agent.directory.breakers import Breakers
from kvpool_agent.directory.members import Member, MemberView
from kvpool_agent.peer.connection import PeerError
from kvpool_agent.peer.dial import Dialer
from kvpool_agent.peer.frames import MAX_KEYS

log = logging.getLogger("kvpool.locate")

LOCATE_SECONDS = 1.0
MAX_ASKED = 64


@dataclass(frozen=True)
class Holders:
    """For each chain that was asked for, which members hold which of its blocks. `reason` says why a block that nobody
    is known to hold is not found."""

    held: list[dict[str, Sequence[bool]]]
    reason: str


class Locator:
    """Asks the live members."""

    def __init__(self, members: MemberView, dialer: Dialer, breakers: Breakers) -> None:
        self._members = members
        self._dialer = dialer
        self._breakers = breakers
        self._pool = ThreadPoolExecutor(MAX_ASKED, "kvpool-locate")

    def holders(self, fingerprint: bytes, chains: Sequence[Sequence[bytes]], deadline: float) -> Holders:
        """Who holds which blocks of the chains, each from its beginning. deadline: on the monotonic clock; an answer is
        waited for a second at most."""
        keys = [key for chain in chains for key in chain][:MAX_KEYS]
        reason, answers = self._ask(fingerprint, keys, deadline)
        held: list[dict[str, Sequence[bool]]] = []
        start = 0
        for chain in chains:
            span = slice(start, start + len(chain))
            beyond = [False] * (len(chain) - len(keys[span]))
            held.append({address: [*flags[span], *beyond] for address, flags in answers.items()})
            start += len(chain)
        return Holders(held, reason)

    def _ask(
        self, fingerprint: bytes, chain: Sequence[bytes], deadline: float
    ) -> tuple[str, dict[str, Sequence[bool]]]:
        """The reason for what no member holds, and what each that answers does."""
        live = self._members.live(fingerprint)
        asked = [member for member in live if self._breakers.usable(member.address)][:MAX_ASKED]
        seconds = min(LOCATE_SECONDS, deadline - time.monotonic())
        if not asked or seconds <= 0:
            return "breaker_open" if live and not asked else self._nobody(), {}
        futures: dict[Future[list[bool]], Member] = {
            self._pool.submit(self._dialer.locate, member.address, fingerprint, chain, seconds): member
            for member in asked
        }
        done, late = wait(futures, timeout=seconds)
        held: dict[str, Sequence[bool]] = {}
        silent = len(late)
        for future in late:
            self._breakers.silent(futures[future].address)
        for future in done:
            address = futures[future].address
            try:
                held[address] = future.result()
                self._breakers.answered(address)
            except PeerError as error:
                silent += 1
                self._breakers.silent(address)
                log.debug("lookup at %s: %s", address, error)
        rest_reason = "breaker_open" if len(asked) < len(live) else "never_published"
        return "directory_unreachable" if silent else rest_reason, held

    def _nobody(self) -> str:
        """Why there is no member to ask: others hold blocks, but none that this engine could use."""
        holding = any(m.live and m.welcome is not None and m.welcome.blocks for m in self._members.all())
        return "incompatible" if holding else "never_published"

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
