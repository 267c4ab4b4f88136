"""Which cache namespace a request is of, as the engine's front end asks: what the request claims, checked here.

Here, because the gateway's key must not lie in the engine's container: whoever holds it can claim anything. Nothing
that a request says is an error. What it claims and can't show is `apart`: computed, and found by no other request; a
slip in a gateway's clock must not put a tenant's prompts where others look.
"""

import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.engine_port.server import Port
from kvpool_agent.keyring import Keyring
from kvpool_client import wire
from kvpool_contract.tenants import ClaimError, check_claim, is_name

DEFAULT = ""


class RequestNames:
    """Any thread may call. Counts `request_namespaces` and, of them, `claim_malformed`, `claim_forged`,
    `claim_expired`, `claim_too_long`, `namespace_unknown`, `namespace_without_key`."""

    def __init__(self, keyring: Keyring, account: Account, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970."""
        self._keyring, self._account, self._clock = keyring, account, clock

    def resolve(self, claim: str) -> str | None:
        """The cache namespace's name, empty for the default one; None for apart."""
        self._account.count("request_namespaces")
        try:
            name = self._proved(claim)
        except ClaimError as error:
            self._account.count(error.word)
            return None
        found = self._keyring.requested.get(name)
        if found is None:
            self._account.count("namespace_unknown")
            return DEFAULT
        space = next((one for one in self._keyring.spaces if one.name == found), None)
        if space is None or not space.open:
            self._account.count(
                "namespace_without_key"
            )  # the engine's own caches keep it apart from others all the same
        return DEFAULT if space is self._keyring.default else found

    def _proved(self, claim: str) -> str:
        keyring = self._keyring
        if keyring.mode == "Signed":
            return check_claim(keyring.gateway_keys, keyring.pool, claim, self._clock())
        if keyring.mode == "Ignore":
            return keyring.default.name
        if not is_name(claim):
            raise ClaimError("claim_malformed")
        return claim

    def session(self, port: Port) -> "RequestSession":
        return RequestSession(self, port)


class RequestSession:
    """One front end's connection (engine_port.server.Session)."""

    def __init__(self, names: RequestNames, port: Port) -> None:
        self._names, self._port = names, port

    def frame(self, frame: wire.Frame) -> None:
        if frame.verb != "request":
            raise wire.WireError(f"unknown verb {frame.verb!r}")
        name = self._names.resolve(str(frame.header["claim"]))
        answer = {"apart": True} if name is None else {"name": name}
        self._port.send({"verb": "request", "call": int(frame.header["call"]), **answer})

    def ended(self) -> None:
        pass
