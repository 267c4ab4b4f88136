"""Which cache namespace a request is of: asked of the agent by the engine's front end, and folded into the salt.

A request says it in its `kv_transfer_params`, under `kvpool_cache_namespace`: a name or a gateway's claim, and the
agent judges it. What is found goes into the engine's `cache_salt`, and so into every hash: the engine's caches keep
requests of two cache namespaces apart as the pool does. No two folded salts are the same unless name and salt are, and
a salt of a client's own that looks like a folded one is folded, too.

A request without a claim is of the default cache namespace, and its salt stays as it is. One whose claim does not hold,
or that nobody could judge in time, is apart: its salt is made of the claim itself, which nobody else can guess.

A front end may run on an event loop, so a question waits for 50 ms at most, twice where the first try was on an old
connection, and after one that was not answered nobody is asked for a second.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NoReturn

from kvpool_client import wire

log = logging.getLogger("kvpool.client")

CLAIM = "kvpool_cache_namespace"
FOLDED = "kvpool:"
ANSWER_SECONDS = 0.05
PAUSE_SECONDS = 1.0
KNOWN_SECONDS, KNOWN = 1.0, 1024
MAX_CLAIM = 512
APART = "apart"  # in the place of a name, which has a prefix


@dataclass(frozen=True)
class Verdict:
    """The cache namespace of a request, empty for the default one; or that it is apart."""

    name: str = ""
    apart: bool = False

    @property
    def marked(self) -> str:
        """What the tier is told; empty where there is nothing to tell."""
        return APART if self.apart else f"in:{self.name}" if self.name else ""


DEFAULT, NOBODYS = Verdict(), Verdict(apart=True)


def namespace_of(mark: str) -> str:
    """The name in what the tier is told."""
    return mark.removeprefix("in:")


def fold(verdict: Verdict, claim: str, salt: str | None) -> str | None:
    """The salt of a request. None: it has none."""
    if verdict == DEFAULT and not (salt or "").startswith(FOLDED):
        return salt
    parts = (b"apart", _bytes(claim)) if verdict.apart else (b"in", verdict.name.encode())
    digest = hashlib.blake2b(digest_size=16, person=b"kvpool salt")
    for part in (*parts, *([] if salt is None else [_bytes(salt)])):
        digest.update(len(part).to_bytes(8, "big") + part)
    return FOLDED + digest.hexdigest()


def _bytes(text: str) -> bytes:
    """Of any text that a request can hold, also of half a character."""
    return text.encode("utf-8", "surrogatepass")


class Front:
    """One process's questions to the agent at `path`. Any thread may ask; they are asked one after the other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._channel: wire.Channel | None = None
        self._call = 0
        self._not_before = 0.0
        self._known: OrderedDict[str, tuple[float, Verdict]] = OrderedDict()

    def judge(self, claim: object) -> Verdict:
        """What a request is whose parameters hold this claim."""
        if claim is None:
            return DEFAULT
        if not isinstance(claim, str) or len(claim) > MAX_CLAIM:
            return NOBODYS
        with self._lock:
            until, known = self._known.get(claim, (0.0, NOBODYS))
            if time.monotonic() < until:
                return known
            verdict = self._asked(claim)
            if verdict is not None:
                self._known[claim] = (time.monotonic() + KNOWN_SECONDS, verdict)
                self._known.move_to_end(claim)
                while len(self._known) > KNOWN:
                    self._known.popitem(last=False)
            return verdict or NOBODYS

    def _asked(self, claim: str) -> Verdict | None:
        if time.monotonic() < self._not_before:
            return None
        kept = self._channel is not None
        verdict = self._exchange(claim)
        if verdict is None and kept:  # the agent may have been started anew since
            verdict = self._exchange(claim)
        if verdict is None:
            self._not_before = time.monotonic() + PAUSE_SECONDS
        return verdict

    def _exchange(self, claim: str) -> Verdict | None:
        try:
            channel = self._channel or self._connected()
            self._call += 1
            channel.send({"verb": "request", "call": self._call, "claim": claim})
            answer = _expected(channel, "request")
            if int(answer.header["call"]) != self._call:
                _refuse(answer)
            return NOBODYS if answer.header.get("apart") else Verdict(str(answer.header["name"]))
        except (OSError, wire.WireError, KeyError, TypeError, ValueError) as error:
            log.debug("kvpool: nobody says what a request is: %s", error)
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            return None

    def _connected(self) -> wire.Channel:
        channel = wire.Channel.dial(self._path, ANSWER_SECONDS)
        try:
            channel.send({"verb": "requests", "versions": list(wire.VERSIONS)})
            _expected(channel, "answering")
        except BaseException:
            channel.close()
            raise
        self._channel = channel
        return channel


def _expected(channel: wire.Channel, verb: str) -> wire.Frame:
    frame = channel.receive()
    if frame.verb != verb:
        _refuse(frame)
    return frame


def _refuse(frame: wire.Frame) -> NoReturn:
    raise wire.WireError(f"another answer than was asked for: {frame.verb!r}")


def parameters(extra: dict[str, Any] | None) -> dict[str, Any]:
    """A request's kv_transfer_params; empty where they are none."""
    found = (extra or {}).get("kv_transfer_params")
    return found if isinstance(found, dict) else {}
