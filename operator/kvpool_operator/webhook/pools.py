"""The pools of the cluster as last known.

A review must not wait for the API server, nor fail with it: pools are listed once, then watched, and what was known
last goes on being used while the server is slow or gone. Only a pool that is not known is asked for, within a second:
a pool and its first pods are often applied together. However many of them come at once, it is asked for once.
"""

import asyncio
import logging
import math
import random
import time
from typing import Any

from kvpool_operator.desired.pool import KVCachePool, PoolError, read_stored_pool
from kvpool_operator.webhook.api import ApiError, Client
from kvpool_operator.webhook.review import Unusable

log = logging.getLogger("kvpool.webhook")

QUESTIONS = 16  # of single pools at a time
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STEADY_SECONDS = 30.0  # a watch that lasted so long was no failure


def usable(document: dict[str, Any]) -> KVCachePool | Unusable:
    """The pool that an object of the API server describes, or what is wrong with it."""
    try:
        return read_stored_pool(document)
    except PoolError as error:
        return Unusable("pool_invalid", str(error))


class Pools:
    """`synced`: whether the list has been read once. `kubernetes`: the server's version, as far as it is known.
    `heard`: when the API server last told of pools, on the monotonic clock; a watch that is open says something each
    minute."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], KVCachePool | Unusable] = {}
        self._questions: dict[tuple[str, str], asyncio.Task[KVCachePool | Unusable]] = {}
        self.synced = False
        self.kubernetes: tuple[int, int] | None = None
        self.faults = 0
        self.heard = time.monotonic()

    def __len__(self) -> int:
        return len(self._known)

    async def find(self, k8s_namespace: str, name: str) -> KVCachePool | Unusable:
        """The pool, or why there is none to join."""
        key = (k8s_namespace, name)
        known = self._known.get(key)
        if known is not None:
            return known
        if key not in self._questions:
            if len(self._questions) >= QUESTIONS:
                return Unusable("pool_unread")
            self._questions[key] = asyncio.create_task(self._ask(key))
            self._questions[key].add_done_callback(lambda _: self._questions.pop(key))
        return await asyncio.shield(self._questions[key])  # one that is given up may be another's, too

    async def _ask(self, key: tuple[str, str]) -> KVCachePool | Unusable:
        try:
            document = await self._client.pool(*key)
        except ApiError as error:
            log.warning("pool %s/%s can't be asked for: %s", *key, error)
            self.faults += 1
            return Unusable("pool_unread")
        return usable(document) if document else Unusable("pool_unknown")

    async def follow(self) -> None:
        """Keeps what is known up to date, for ever. A list that is followed by no watch for long counts as a
        failure like any other, so that an API server that refuses watches is not asked without end."""
        pause = FIRST_PAUSE
        while True:
            began = math.inf
            try:
                since = await self._list()
                began = time.monotonic()
                while True:
                    watching = time.monotonic()
                    since = await self._watch(since)
                    if time.monotonic() - watching < FIRST_PAUSE:  # it ended at once: the next one may, too
                        await asyncio.sleep(FIRST_PAUSE)
            except ApiError as error:
                self.faults += 1
                log.warning("pools can't be read, going on with the %d known: %s", len(self._known), error)
            except Exception:
                self.faults += 1
                log.exception("pools can't be read, going on with the %d known", len(self._known))
            if time.monotonic() - began >= STEADY_SECONDS:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _list(self) -> str:
        self.kubernetes = await self._client.version()
        documents, since = await self._client.pools()
        self._known = {_key(document): usable(document) for document in documents}
        self.synced, self.heard = True, time.monotonic()
        return since

    async def _watch(self, since: str) -> str:
        async for kind, document in self._client.watch(since):
            self.heard = time.monotonic()
            since = str((document.get("metadata") or {}).get("resourceVersion") or since)
            if kind == "DELETED":
                self._known.pop(_key(document), None)
            elif kind in ("ADDED", "MODIFIED"):
                self._known[_key(document)] = usable(document)
        return since


def _key(document: dict[str, Any]) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    return str(metadata.get("namespace")), str(metadata.get("name"))
