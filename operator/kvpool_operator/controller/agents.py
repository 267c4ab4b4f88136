"""Agents asked for their status, directly at their pods' addresses, over mutual TLS where they have certificates.

Bounded in time, each and together, in number at once, by pool and in all, and in bytes of an answer: a status is
written in time, however many are silent. Those that answer are asked first, the others in a new order each time. An
agent that has answered before may miss once: a worker that is being restarted is no news. Errors are told in few words,
equal for equal causes, since they stand in a status that is written only when it changes.
"""

import asyncio
import random
import ssl
from collections.abc import Sequence

from kvpool_contract.status import AgentStatus, StatusError, decode_status
from kvpool_operator.controller.asking import ask_status
from kvpool_operator.controller.identity import Identity
from kvpool_operator.desired.pods import Pod
from kvpool_operator.desired.status import Member
from kvpool_operator.desired.trust import DISABLED

TIMEOUT_SECONDS = 3.0  # for one
ASK_SECONDS = 8.0  # for all of a pool
PARALLEL, PARALLEL_OF_POOL = 256, 32
PARALLEL_SILENT = 128  # of those that gave no answer the last time: they keep no place of the others
FORGIVEN = 1
UNCERTIFIED = ("no_certificate", "expired")  # an agent that says so of itself can't prove who it is


class Agents:
    """To be made and used in one event loop."""

    def __init__(self, identity: Identity | None = None) -> None:
        """identity: None where nobody keeps certificates; agents with certificates are not asked then."""
        self._identity = identity
        self._places, self._places_of_silent = asyncio.Semaphore(PARALLEL), asyncio.Semaphore(PARALLEL_SILENT)
        self._silent: set[str] = set()  # pods
        self._last: dict[str, tuple[AgentStatus, int]] = {}  # by pod: the last answer, and misses since

    async def ask(self, pods: Sequence[Pod]) -> list[Member]:
        """A member for each pod, with its answer where there is one, within ASK_SECONDS."""
        places, until = asyncio.Semaphore(PARALLEL_OF_POOL), asyncio.get_running_loop().time() + ASK_SECONDS
        order = sorted(pods, key=lambda pod: (self._last.get(pod.uid, (None, 1))[1], random.random()))
        found = dict(
            zip(order, await asyncio.gather(*(self._member(pod, places, until) for pod in order)), strict=True)
        )
        return [found[pod] for pod in pods]

    def forget(self, uids: set[str]) -> None:
        """Drops what is known of pods that are no more."""
        for uid in uids:
            self._last.pop(uid, None)
        self._silent -= uids

    async def _member(self, pod: Pod, places: asyncio.Semaphore, until: float) -> Member:
        status, error = None, "no address"
        if pod.injected and pod.address:
            try:
                async with asyncio.timeout_at(until), places, self._place_of(pod), asyncio.timeout(TIMEOUT_SECONDS):
                    status, error = await self._get(pod), ""
                self._last[pod.uid] = (status, 0)
            except TimeoutError:
                error = f"no answer within {TIMEOUT_SECONDS:.0f} s"
            except ssl.SSLError as problem:
                error = f"TLS: {(problem.reason or 'it failed').lower().replace('_', ' ')}"
            except OSError:
                error = "no connection"
            except EOFError:
                error = "it ended the connection"
            except StatusError as problem:
                error = str(problem)
            (self._silent.add if status is None else self._silent.discard)(pod.uid)
            last, misses = self._last.get(pod.uid, (None, 0))
            if status is None and last is not None and misses < FORGIVEN:
                self._last[pod.uid] = (last, misses + 1)
                status, error = last, ""
        return Member(pod.name, pod.uid, pod.injected, pod.expected, status, error, pod.skipped, pod.stuck, pod.tls)

    def _place_of(self, pod: Pod) -> asyncio.Semaphore:
        return self._places_of_silent if pod.uid in self._silent else self._places

    async def _get(self, pod: Pod) -> AgentStatus:
        context = self._identity.context if self._identity and pod.tls != DISABLED else None
        if context is None and pod.tls != DISABLED:
            raise StatusError("the controller has no certificate to ask with")
        answered = await ask_status(pod.address, pod.pool, context)
        status = decode_status(answered.document)
        if status.member != pod.uid:
            raise StatusError("another pod answers at its address")
        if self._identity is None or context is None or status.tls.state in UNCERTIFIED:
            return status
        if fault := self._identity.fault(pod, answered.certificate):
            raise StatusError(fault)
        return status
