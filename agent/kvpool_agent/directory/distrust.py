"""Members whose blocks have made this engine answer otherwise than computing does: nothing is taken from them.

A member is known by its pod: a worker that starts anew there finds the same bytes in its arena. So it is taken back
when that pod has been made anew, or when this agent's worker starts anew, as it does for another format.
"""

import threading
from collections.abc import Iterable

from kvpool_agent.directory.members import MemberView


class Distrust:
    """Any thread may call."""

    def __init__(self, members: MemberView) -> None:
        self._view = members
        self._lock = threading.Lock()
        self._members: set[str] = set()

    def add(self, members: Iterable[str]) -> None:
        """members: by pod UID."""
        with self._lock:
            self._members.update(members)

    @property
    def members(self) -> list[str]:
        with self._lock:
            return sorted(self._members)

    def refuses(self, address: str) -> bool:
        """Whether the member that answers at this address is one of them."""
        return bool(self._members) and self.member_at(address) in self._members

    def member_at(self, address: str) -> str:
        """Empty where nobody has answered."""
        found = (one.welcome for one in self._view.all() if one.address == address)
        return next((welcome.member for welcome in found if welcome is not None), "")
