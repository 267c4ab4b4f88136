"""Addresses that other members have told: they complete the seeds, and cost nothing lasting when they are wrong.

Such an address is a candidate until its own handshake succeeds. It is given up when that does not come soon, or when
nobody has answered there for a while, and is not taken again for some time. Addresses are told as numbers, never names:
nobody can make an agent ask a name server. Where members are pods they all listen at one port, and none at an address
that means another place to each who dials it, or none outside its node, as that of a cloud's metadata: what is told
besides is not dialled.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CANDIDATES = 128
MAX_REFUSED = 512
FIRST_SECONDS = 6.0  # from hearing of an address to its first handshake
GONE_SECONDS = 30.0  # without an answer
REFUSED_SECONDS = 300.0


@dataclass
class _Candidate:
    until: float


class Learnt:
    """Times in seconds of one clock."""

    def __init__(self, port: int | None = None) -> None:
        """port: at which all members listen, where they are pods; None: members are where a file says."""
        self._port = port
        self._candidates: dict[str, _Candidate] = {}
        self._refused: dict[str, float] = {}

    def hear(self, addresses: Iterable[str], now: float) -> None:
        """Somebody says that members are at these addresses."""
        for address in addresses:
            if (
                address not in self._candidates
                and self._refused.get(address, 0.0) <= now
                and len(self._candidates) < MAX_CANDIDATES
                and may_be_a_member(address, self._port)
            ):
                self._candidates[address] = _Candidate(now + FIRST_SECONDS)

    def live(self, address: str, now: float) -> None:
        """The member at this address answers."""
        candidate = self._candidates.get(address)
        if candidate is not None:
            candidate.until = now + GONE_SECONDS

    def refuse(self, address: str, now: float) -> None:
        """Who is at this address is known otherwise, or is this agent itself."""
        if self._candidates.pop(address, None) is not None:
            self._refused.pop(address, None)
            self._refused[address] = now + REFUSED_SECONDS
            while len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]

    def addresses(self, now: float) -> list[str]:
        """Those to keep a connection to."""
        for address in [address for address, one in self._candidates.items() if one.until <= now]:
            self.refuse(address, now)
        return list(self._candidates)


def may_be_a_member(text: str, at: int | None = None) -> bool:
    """Whether this is number:port, of either family. at: the port of pods, for whether it can be a pod's."""
    host, _, port = text.rpartition(":")
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        return False
    if at is None:
        return True
    number = getattr(found, "ipv4_mapped", None) or found
    placeless = number.is_loopback or number.is_link_local or number.is_multicast or number.is_unspecified
    return int(port) == at and not placeless
