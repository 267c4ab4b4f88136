"""When the engine shall offer again what it holds already.

Under the engine's usual policy a block is offered once, when it is computed. A store that was let go uncopied, or
an agent that came back with an empty arena, would lose it for as long as the engine keeps it. So after any such
moment, and after every attach, requests are taken in under the policy that offers all their blocks; it ends when
for a whole minute every offer was one the agent had.
"""

QUIET_SECONDS = 60.0


class Offers:
    """Times are of one monotonic clock, in seconds. Each call replaces one attribute, so any thread may call."""

    def __init__(self) -> None:
        self._again = False
        self._confirmed_since: float | None = None

    def unconfirmed(self, now: float) -> None:  # noqa: ARG002 - the mate of `confirmed`
        """Something was offered that the agent did not have, or may not have taken."""
        self._again = True
        self._confirmed_since = None

    def confirmed(self, now: float) -> None:
        """An offer held nothing new: the agent had every block."""
        if self._confirmed_since is None:
            self._confirmed_since = now

    def offer_again(self, now: float) -> bool:
        """Whether a request taken in now shall offer all its blocks."""
        since = self._confirmed_since
        if self._again and since is not None and now - since >= QUIET_SECONDS:
            self._again = False
        return self._again
