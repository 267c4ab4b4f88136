"""Who holds a chain: every live member of the format is asked at once, each with the same short deadline.

A member whose breaker is open is not asked: it would cost the lookup its wait, or promise what it does not serve.

The answer is a hint: a FETCH says the truth block by block, and the hit is cut at the first gap.
"""

import logging
import time
from collections.abc import Mapping, Sequence
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
class Segment:
    """Blocks [start, end) of the chain that was asked for lie at `address`."""

    address: str
    start: int
    end: int


@dataclass(frozen=True)
class Located:
    """Segments that together are the longest run from the chain's beginning; `reason` says why it ends there (empty
    where it doesn't)."""

    segments: tuple[Segment, ...]
    reason: str

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


@dataclass(frozen=True)
class Holders:
    """For each chain that was asked for, by address, which of its blocks a member holds; `reason` says why nobody may
    hold the others."""

    held: list[dict[str, Sequence[bool]]]
    reason: str


def join_segments(held: Mapping[str, Sequence[bool]], length: int) -> tuple[Segment, ...]:
    """The longest run from 0, in the fewest pieces: at each gap the member whose run from there is the longest."""
    segments: list[Segment] = []
    start = 0
    while start < length:
        best, end = "", start
        for address in sorted(held):
            stop = start
            while stop < length and held[address][stop]:
                stop += 1
            if stop > end:
                best, end = address, stop
        if end == start:
            break
        segments.append(Segment(best, start, end))
        start = end
    return tuple(segments)


def _by_chain(held: Mapping[str, Sequence[bool]], chains: Sequence[Sequence[bytes]]) -> list[dict[str, Sequence[bool]]]:
    """Answers about the keys of all chains, one after the other, cut into those about each; what was not asked, since
    it were too many, is not held."""
    cut: list[dict[str, Sequence[bool]]] = []
    start = 0
    for chain in chains:
        end = start + len(chain)
        cut.append(
            {
                address: [*row[start:end], *[False] * (len(chain) - len(row[start:end]))]
                for address, row in held.items()
                if any(row[start:end])
            }
        )
        start = end
    return cut


class Locator:
    """`locate(chain)` over the live members."""

    def __init__(self, members: MemberView, dialer: Dialer, breakers: Breakers) -> None:
        self._members = members
        self._dialer = dialer
        self._breakers = breakers
        self._pool = ThreadPoolExecutor(MAX_ASKED, "kvpool-locate")

    def locate(self, fingerprint: bytes, chain: Sequence[bytes], deadline: float) -> Located:
        """deadline: on the monotonic clock; an answer is waited for a second at most."""
        found = self.holders(fingerprint, [chain], deadline)
        segments = join_segments(found.held[0], len(chain))
        complete = bool(segments) and segments[-1].end == len(chain)
        return Located(segments, "" if complete else found.reason)

    def holders(self, fingerprint: bytes, chains: Sequence[Sequence[bytes]], deadline: float) -> Holders:
        """Who holds what of each chain. deadline: as of `locate`."""
        keys = [key for chain in chains for key in chain][:MAX_KEYS]
        live = self._members.live(fingerprint)
        asked = [member for member in live if self._breakers.usable(member.address)][:MAX_ASKED]
        seconds = min(LOCATE_SECONDS, deadline - time.monotonic())
        if not asked or seconds <= 0:
            return Holders([{} for _ in chains], "breaker_open" if live and not asked else self._nobody())
        futures: dict[Future[list[bool]], Member] = {
            self._pool.submit(self._dialer.locate, member.address, fingerprint, keys, seconds): member
            for member in asked
        }
        done, late = wait(futures, timeout=seconds)
        held: dict[str, list[bool]] = {}
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
        return Holders(_by_chain(held, chains), "directory_unreachable" if silent else rest_reason)

    def _nobody(self) -> str:
        """Why there is no member to ask: others hold blocks, but none that this engine could use."""
        holding = any(m.live and m.welcome is not None and m.welcome.blocks for m in self._members.all())
        return "incompatible" if holding else "never_published"

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
