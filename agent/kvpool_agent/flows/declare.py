"""Declared prefixes: which blocks others may be told of, where publication.policy is Declared.

A block's name follows from all tokens up to its end, and from the format. So the names of a declared prefix's whole
blocks are made here, once, and whatever is told to others is compared with that set: exactly, and without a look at any
prompt. Text becomes token ids by the engine's own /tokenize. Until all of that is done, and where it can't be, nothing
is told.

The engine hashes for itself, so its hashes are made once more here. Its probe has the names that the engine gave to a
known prompt: where these are others, none is made.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpool_agent.flows.engine_http import post
from kvpool_agent.flows.probe import CACHE_SALT, prompt
from kvpool_agent.flows.watch import SlabWatch
from kvpool_agent.policy.hashes import HASH_BYTES, UnknownHashError, engine_keys
from kvpool_agent.store.slab import Slab, Slabs
from kvpool_client.front import Verdict, fold
from kvpool_contract.config import AgentConfig
from kvpool_contract.prefixes import DECLARED, MAX_TOKENS, Prefix
from kvpool_contract.status import Declared

log = logging.getLogger("kvpool.declare")

LOOK_SECONDS = 0.25
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 5.0
MAX_ANSWER = 4 << 20
NO_TOKENIZER, NAMES_UNKNOWN, TOO_SHORT = "no_tokenizer", "names_unknown", "prefix_too_short"
NO_IDS: tuple[int, ...] = ()


class TokenizeError(Exception):
    """The engine's server has not said what the text's token ids are; one sentence, without any of the text."""


def tokenize(port: int, text: str) -> tuple[int, ...]:
    """The token ids of a text, as the engine's server on this port of the loopback address makes them for a prompt.
    Raises TokenizeError."""
    try:
        status, body = post(port, "/tokenize", {"prompt": text}, ANSWER_SECONDS, MAX_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise TokenizeError(f"no answer on the engine's port: {error}") from None
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        raise TokenizeError(f"the engine's port answered {status}: it wants a key")
    if status != http.client.OK:
        raise TokenizeError(f"the engine's port answered {status}")
    try:
        tokens = json.loads(body)["tokens"]
    except (ValueError, KeyError, TypeError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise TokenizeError("the engine's port answered with no token ids")
    return tuple(tokens)


@dataclass(frozen=True)
class _Made:
    """Names of declared blocks in a slab: by prefix how many blocks it has, and how many there are in all."""

    by_prefix: Sequence[int] = ()
    blocks: int = 0
    obstacle: str = ""


class Declarations(SlabWatch):
    """One thread, where there is something to declare. Any thread may ask for the `snapshot`."""

    every = True

    def __init__(
        self,
        slabs: Slabs,
        config: Callable[[], AgentConfig],
        healthy: Callable[[], bool],
        probed: Callable[[], Sequence[str]],
    ) -> None:
        """config: as it holds now. healthy: whether the engine's server answers. probed: the names of the probe's
        blocks, in hex, where it has run."""
        super().__init__(slabs, "declare", LOOK_SECONDS)
        self._config, self._healthy, self._probed = config, healthy, probed
        self._lock = threading.Lock()
        self._prefixes: tuple[Prefix, ...] = ()
        self._ids: dict[int, tuple[int, ...]] = {}  # by the prefix's place
        self._refused = ""  # why the engine's server gives no ids
        self._ask_at = 0.0
        self._inputs: dict[bytes, tuple[object, ...]] = {}  # by slab: what its names were made of
        self._made = _Made()  # of the default cache namespace
        self._proved = False

    def start(self) -> None:
        if self._config().publication.policy == DECLARED:
            super().start()

    def look(self, slab: Slab) -> None:
        prefixes = self._config().declaredPrefixes
        if prefixes != self._prefixes:
            with self._lock:
                self._prefixes, self._ids, self._made = prefixes, {}, _Made()
                self._refused, self._ask_at = "", 0.0
        self._find_ids()
        probed = tuple(self._probed())
        inputs = (prefixes, len(self._ids), slab.space.names, probed)
        if self._inputs.get(slab.id) == inputs:
            return
        made, names = self._names(slab, probed)
        slab.arena.declare(names)
        self._inputs[slab.id] = inputs
        if not slab.number:
            log.info("declared prefixes: %d of %d are %d blocks", len(self._ids), len(prefixes), made.blocks)
            with self._lock:
                self._made = made

    def _find_ids(self) -> None:
        """Those of prefixes that have none yet; what the engine's server does not say is asked for again later."""
        missing = [place for place in range(len(self._prefixes)) if place not in self._ids]
        for place in missing:
            if tokens := self._prefixes[place].tokenIds:
                with self._lock:
                    self._ids[place] = tokens
        if not self._healthy() or time.monotonic() < self._ask_at:
            return
        refused = ""
        for place in missing:
            if place in self._ids:
                continue
            try:
                tokens = tokenize(self._config().engine.port, self._prefixes[place].text)
            except TokenizeError as error:
                refused, self._ask_at = str(error), time.monotonic() + RETRY_SECONDS
                break
            with self._lock:
                self._ids[place] = tokens[:MAX_TOKENS]
        with self._lock:
            self._refused = refused

    def _names(self, slab: Slab, probed: Sequence[str]) -> tuple[_Made, frozenset[bytes]]:
        """The names of all declared blocks of this slab, for each epoch of its cache namespace's key."""
        salt = fold(Verdict(slab.space.name), "", None) or "" if slab.number else ""
        try:
            self._prove(probed)
            of_prefixes = [engine_keys(slab.fields, self._ids.get(i, NO_IDS), salt) for i in range(len(self._prefixes))]
        except UnknownHashError as error:
            return _Made(obstacle=str(error)), frozenset()
        keys = {key for keys in of_prefixes for key in keys}
        names = frozenset(slab.key(key, HASH_BYTES, name) for key in keys for name in slab.space.names)
        return _Made([len(keys) for keys in of_prefixes], len(keys)), names

    def _prove(self, probed: Sequence[str]) -> None:
        """Compares with what the engine itself calls the probe's blocks; once, since a key of names may change later.
        Raises UnknownHashError."""
        slab = self._slabs.current
        if self._proved or not probed or slab is None:
            return
        keys = engine_keys(slab.fields, prompt(slab.fields["block_tokens"]), CACHE_SALT)
        if not {slab.key(key, HASH_BYTES, name).hex() for key in keys for name in slab.space.names} & set(probed):
            raise UnknownHashError("the engine calls the probe's block otherwise")
        self._proved = True

    def snapshot(self) -> Declared:
        if self._config().publication.policy != DECLARED:
            return Declared()
        with self._lock:
            made, given = self._made, len(self._prefixes)
            short = [place for place, blocks in enumerate(made.by_prefix) if place in self._ids and not blocks]
            sizes = [len(self._ids[place]) for place in short]
            refused = self._refused if len(self._ids) < given else ""
        told = Declared(len(self._config().declaredPrefixes), sum(map(bool, made.by_prefix)), made.blocks)
        if made.obstacle:
            return _because(told, NAMES_UNKNOWN, made.obstacle)
        if refused:
            return _because(told, NO_TOKENIZER, refused)
        if short:
            return _because(told, TOO_SHORT, f"entry {short[0] + 1} has {sizes[0]} tokens")
        return told


def _because(told: Declared, reason: str, detail: str) -> Declared:
    return Declared(told.prefixes, told.resolved, told.blocks, reason, detail)
