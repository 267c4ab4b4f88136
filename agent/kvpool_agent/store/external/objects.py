"""What an external store has to be able to do, and what can be wrong with one: the one boundary to its client.

Whole objects under names: written at once, so that no reader ever sees a part of one; read in pieces, so that nobody
waits for more than a piece. Every call may take as long as the network does; who calls waits elsewhere (Access).
"""

import ssl
from collections.abc import Sequence
from typing import Protocol

from kvpool_contract.external import STORE_AUTHORITIES_FILE

UNREACHABLE, SLOW, REFUSED, UNTRUSTED = "store_unreachable", "store_slow", "store_refused", "store_untrusted"
FULL, ERROR, BUSY = "store_full", "store_error", "store_busy"


class StoreError(Exception):
    """The store did not do what it was asked; `word` names why."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(f"{word}: {detail}")
        self.word, self.detail = word, detail


def said(error: BaseException) -> str:
    """The first line of what a client has said, cut."""
    return str(error).partition("\n")[0][:200] or type(error).__name__


def unconnected(error: BaseException) -> StoreError:
    """What to raise for a connection that could not be made, or has broken."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StoreError(UNTRUSTED, said(cause))
        if isinstance(cause, ssl.SSLError) and cause.library in ("X509", "PEM"):
            return StoreError(UNTRUSTED, f"{STORE_AUTHORITIES_FILE} holds no certificates: {said(cause)}")
        cause = cause.__cause__ or cause.__context__
    return StoreError(UNREACHABLE, said(error))


class Objects(Protocol):
    """Any thread may call. Every method raises StoreError."""

    def ping(self) -> None:
        """Whether it answers, and lets this agent in."""
        ...

    def held(self, names: Sequence[str]) -> list[bool]:
        """For each name whether there is such an object. A store for which each name is a question of its own asks in
        their order, and takes the rest for missing where many in a row were."""
        ...

    def read(self, name: str, begin: int, length: int) -> bytes:
        """Up to `length` bytes of an object from there on; none where there is no such object."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Puts an object there, for the store's time to live, in place of one that is there."""
        ...

    def renew(self, names: Sequence[str]) -> None:
        """These objects live as long from now on; one that is not there harms nothing."""
        ...

    def remove(self, name: str) -> None:
        """One that is not there harms nothing."""
        ...

    def disconnect(self) -> None:
        """Ends all connections, so that calls which sit on one end, soon where not at once. The next call opens
        another, with the credentials and the authorities that are there by then."""
        ...
