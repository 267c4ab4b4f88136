"""The homes of now: the rule of policy.homes over the live view, this member included."""

import threading
import time
from collections.abc import Callable

from kvpool_agent.directory.members import MemberView
from kvpool_agent.peer.frames import DIRECTORY_VERSION
from kvpool_agent.policy.homes import Asked, View, Views
from kvpool_agent.policy.readiness import DEGRADED, WARM


class Homes:
    """Any thread may call."""

    def __init__(
        self,
        members: MemberView,
        own: Callable[[], tuple[str, str] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """own: UID and incarnation of this member while it is ready, else None."""
        self._members = members
        self._own = own
        self._clock = clock
        self._views = Views()
        self._lock = threading.Lock()

    @property
    def own(self) -> str:
        """The UID of this member while it is a home, else empty."""
        own = self._own()
        return own[0] if own is not None else ""

    def look(self, fingerprint: bytes) -> View:
        """The view of now, over the ready members of this format."""
        ready = {
            member.welcome.member: member.welcome.incarnation
            for member in self._members.live(fingerprint)
            if member.welcome is not None
            and member.version >= DIRECTORY_VERSION
            and member.welcome.state in (WARM, DEGRADED)
        }
        own = self._own()
        if own is not None:
            ready[own[0]] = own[1]
        with self._lock:
            self._views.see(ready, self._clock())
            return self._views.now

    def asked(self, head: bytes) -> Asked:
        """Whom to ask about the group that begins with this key, as of the last look."""
        with self._lock:
            return self._views.asked(head)

    @property
    def settled(self) -> bool:
        with self._lock:
            return self._views.settled(self._clock())
