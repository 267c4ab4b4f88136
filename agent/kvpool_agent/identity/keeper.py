"""Keeps this member's credentials in force: looks once a second whether others have come, and tells how it stands.

What can't be renewed stays in force until it ends; what names another member or pool never comes into force.
"""

import collections
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvpool_agent.identity.credentials import Credentials, Problem, wall_clock
from kvpool_agent.identity.sources import Source
from kvpool_agent.policy.validity import EXPIRED, NONE, SOON, state_of
from kvpool_contract.identity import CertificateName
from kvpool_contract.status import Tls

log = logging.getLogger("kvpool.identity")

LOOK_SECONDS = 1.0
CLOCK_SECONDS = 1.0  # a certificate that begins so much later than now shows that a clock is wrong


@dataclass(frozen=True)
class _Told:
    reason: str = ""
    detail: str = ""


class Keeper:
    """`credentials` is what is in force, None while there is none. Any thread may read. The first ones are no event
    where they come without trouble."""

    def __init__(
        self,
        mode: str,
        source: Source,
        own: CertificateName,
        event: Callable[..., None] = lambda _word, **_detail: None,
    ) -> None:
        """own: whom the certificate must name; one without a pod serves for every member. event: tells that
        something has changed, as kvpool_agent.account does."""
        self._mode, self._source, self._own, self._event = mode, source, own, event
        self._problem = _Told()
        self._failures: collections.Counter[str] = collections.Counter()
        self._renewals = 0
        self._ended = threading.Event()
        self._there = threading.Event()
        self.credentials: Credentials | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kvpool-identity", daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._there.set()  # nobody waits for what will not come

    def wait(self, seconds: float | None = None) -> bool:
        """Whether there are credentials, within so many seconds; without a bound until there are, or until the end."""
        self._there.wait(seconds)
        return self.credentials is not None

    def look(self) -> None:
        """One step; called by the thread."""
        try:
            found = self._source.step(self.credentials)
            if found is not None:
                self._take(found)
        except Problem as problem:
            if str(problem) != self._problem.detail:
                log.error("certificate: %s", problem)
                self._event("certificate_problem", reason=problem.reason, detail=str(problem))
            self._problem = _Told(problem.reason, str(problem))
            self._failures[problem.reason] += 1

    def snapshot(self) -> Tls:
        failures = dict(self._failures)  # first: whoever reads a count here finds its reason
        credentials, told = self.credentials, self._problem
        if credentials is None:
            return Tls(self._mode, NONE, told.reason or NONE, told.detail, failures=failures)
        now, own = wall_clock(), credentials.own
        state = state_of(own.not_before, own.not_after, now)
        if not told.reason and now < own.not_before - CLOCK_SECONDS:
            told = _Told("clock_behind", "this member's certificate begins later than its clock says")
        if not told.reason and state == SOON:
            told = _Told("certificate_expires_soon")
        if not told.reason and state == EXPIRED:
            told = _Told("certificate_expired")
        return Tls(
            self._mode,
            state,
            told.reason,
            told.detail,
            own.name.encode(),
            own.not_after,
            credentials.bundle,
            credentials.authority,
            self._renewals,
            failures,
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except Exception:
                log.exception("looking for a certificate failed")
            self._ended.wait(LOOK_SECONDS)

    def _take(self, found: Credentials) -> None:
        name, own, before = found.own.name, self._own, self.credentials
        same_pool = (name.cluster, name.k8s_namespace, name.pool) == (own.cluster, own.k8s_namespace, own.pool)
        if not same_pool or name.pod not in ("", own.pod):
            raise Problem("certificate_name", f"the certificate is {name.encode()}, and must be {own.encode()}")
        told, self._problem = self._problem, _Told()
        leaf_is_new = before is None or before.certificate != found.certificate
        self._renewals += before is not None and leaf_is_new
        self.credentials = found
        self._there.set()
        word = "certificate_in_force" if leaf_is_new else "authorities_in_force"
        log.info("%s: %s, bundle %s, authority %s", word, name.encode(), found.bundle, found.authority or "unknown")
        if before is not None or told.reason:
            self._event(word, bundle=found.bundle, authority=found.authority, not_after=found.own.not_after)
