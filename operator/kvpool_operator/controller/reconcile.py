"""One pass over one pool: read everything, make what is missing, ask the agents, write what has changed."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvpool_contract.names import CONFIG_FILE, pool_object_name
from kvpool_contract.prefixes import DECLARED
from kvpool_operator.controller import metrics
from kvpool_operator.controller.agents import Agents
from kvpool_operator.controller.board import Board
from kvpool_operator.controller.cluster import CONFLICT, Cluster, Document, Key, RefusedError
from kvpool_operator.controller.identity import Identity
from kvpool_operator.controller.keys import see_to_keys
from kvpool_operator.controller.prefixes import with_config_maps
from kvpool_operator.controller.updates import Updates, rfc3339
from kvpool_operator.desired.events import Event, member_events, pool_events
from kvpool_operator.desired.links import Links
from kvpool_operator.desired.objects import document_hash, keeping_document, pool_objects
from kvpool_operator.desired.ownership import judge, owned
from kvpool_operator.desired.pool import KVCachePool, PoolError, read_stored_pool
from kvpool_operator.desired.status import Observed, pool_status
from kvpool_operator.desired.trust import MANAGED, needs_trust

log = logging.getLogger("kvpool.controller")
NOT_REFUSED = ("", "")
NO_AUTHORITY = (
    "NoAuthority",
    "This controller keeps no authority for members; start it with --peers-authority, as the chart does, or set "
    "transport.tls.mode: Disabled.",
)


class NotYetError(Exception):
    """The next pass will know more."""


class Reconciler:
    """`once` may run for several pools at a time, for one pool never twice at once."""

    def __init__(
        self,
        cluster: Cluster,
        agents: Agents,
        agent_image: str = "",
        identity: Identity | None = None,
        board: Board | None = None,
    ) -> None:
        """agent_image: that of pools that name none; empty where agents may not be updated in place. identity: None
        where nobody keeps certificates. board: where each pass leaves what it saw."""
        self._cluster, self._agents, self._updates = cluster, agents, Updates(cluster, agent_image)
        self._identity = identity
        self._board = board if board is not None else Board()
        self._told: dict[Key, set[str]] = {}  # Events of pods that stand as they are
        self._pods: dict[Key, set[str]] = {}  # uids
        self._links = Links()

    async def once(self, key: Key) -> bool:
        """Whether the pool is still there. Raises what the API server's client raises; the next pass repairs it."""
        pool = await asyncio.to_thread(self._cluster.read_pool, key)
        if pool is None:
            self._forget(key)
            return False
        if pool["metadata"].get("deletionTimestamp"):
            return True  # what it owns goes with it; making anything anew would be in the way
        observed = await self._observe(key, pool)
        metadata, before = pool["metadata"], pool.get("status")
        now = rfc3339()
        after = pool_status(key[1], metadata["generation"], observed, before, now)
        self._board.saw(key, after, observed.members)
        # Events come first: a controller that is killed between the two tells them again under the same names.
        of_pods = member_events(*key, observed.members)
        told = self._told.get(key, set())
        told = told | await self._tell([e for e in of_pods if e.name not in told], now)
        self._told[key] = told & {event.name for event in of_pods}
        if after != before:
            await self._tell(pool_events(metadata, before, after, observed.members), now)
            await self._write_status(pool, after)
        return True

    async def _observe(self, key: Key, pool: Document) -> Observed:
        invalid, refused, paused, tls, asked, store = "", NOT_REFUSED, False, "", "", False
        prefixes: str | None = None
        try:
            wanted = read_stored_pool(pool)
        except PoolError as error:
            invalid = str(error)
        else:
            wanted, problem = await with_config_maps(self._cluster, wanted)
            prefixes = problem if wanted.spec.publication.policy == DECLARED else None
            refused, paused = await self._make_objects(wanted, pool["metadata"]), wanted.spec.paused
            tls, asked = wanted.spec.transport.tls.mode, wanted.spec.transport.type
            store = wanted.spec.store.wanted
        document = await self._document(key)
        pods = await asyncio.to_thread(self._cluster.pods, key)
        self._seen(key, {pod.uid for pod in pods})
        members = await self._agents.ask(pods)
        for member in members:
            if member.injected and member.expected:
                metrics.ANSWERS.labels("silent" if member.status is None else "answered").inc()
        if self._identity:
            self._identity.adoption.heard(key, members)
        update, events = (None, []) if invalid else await self._updates.step(wanted, pods, members)
        await self._tell(events, rfc3339())
        apart = self._links.apart(key, [m.status for m in members if m.status is not None], time.time())
        rotating = self._identity is not None and self._identity.pending and tls == MANAGED
        return Observed(
            members, invalid, refused, document, paused, update, apart, tls, rotating, asked, store, prefixes
        )

    async def _document(self, key: Key) -> str:
        """The hash of what agents mount: also where it is a former one, or another's. Empty without any."""
        place = {"kind": "ConfigMap", "metadata": {"namespace": key[0], "name": pool_object_name(key[1])}}
        found = await asyncio.to_thread(self._cluster.read, place)
        return document_hash(found) if found and CONFIG_FILE in (found.get("data") or {}) else ""

    async def _make_objects(self, pool: KVCachePool, metadata: dict[str, Any]) -> tuple[str, str]:
        """Why an object could not be made, as a reason and a sentence; nothing where all are there."""
        trust = self._identity.trust if self._identity else None
        if needs_trust(pool) and trust is None and self._identity:
            raise NotYetError("the authorities of the members have not been read yet")
        if (refused := await see_to_keys(self._cluster, pool)) != NOT_REFUSED:
            return refused
        for plain in pool_objects(pool, metadata["generation"], trust):
            wanted = owned(plain, metadata)
            title = f"{wanted['kind']} {wanted['metadata']['name']}"
            found = await asyncio.to_thread(self._cluster.read, wanted)
            wanted = keeping_document(wanted, found)
            verdict = judge(found, wanted)
            if verdict == "another's":
                return "NameTaken", (
                    f"{title} is not this pool's and is left alone; delete or rename it, or give the pool another name"
                )
            if verdict == "make":
                try:
                    await asyncio.to_thread(self._cluster.apply, wanted)
                except RefusedError as error:
                    return "ObjectsRefused", f"{title} can't be made: {error}"
                metrics.WRITES.labels(wanted["kind"]).inc()
                log.info("%s/%s: applied", metadata["namespace"], title)
        return NO_AUTHORITY if needs_trust(pool) and trust is None else NOT_REFUSED

    async def _tell(self, events: list[Event], now: str) -> set[str]:
        """The names of those that are not to be told again. An Event that can't be written is logged: it must not keep
        a status from being written. Where nobody answers, the others wait for the next pass: Events are many, and each
        would be waited for."""
        done = set()
        for event in events:
            log.info("%s: %s: %s", dict(event.regarding)["name"], event.reason, event.message)
            create: Callable[[Document], bool] = self._cluster.create_event
            try:
                if await asyncio.to_thread(create, event.document(now)):
                    metrics.WRITES.labels("Event").inc()
            except ApiException as error:
                log.warning("the Event can't be written: %s %s", error.status, error.reason)
            except HTTPError as error:
                log.warning("the Event can't be written: %s", error)
                break
            done.add(event.name)
        return done

    async def _write_status(self, pool: Document, status: Document) -> None:
        try:
            await asyncio.to_thread(self._cluster.write_status, pool, status)
        except ApiException as error:
            if error.status not in (CONFLICT, 404):  # it has changed or gone since; the next pass sees it
                raise
        else:
            metrics.WRITES.labels("status").inc()

    def _forget(self, key: Key) -> None:
        if self._identity:
            self._identity.adoption.forget(key)
        self._told.pop(key, None)
        self._seen(key, set())
        self._links.forget(key)
        self._board.forget(key)

    def _seen(self, key: Key, uids: set[str]) -> None:
        """What is known of this pool's former pods is dropped, but not of one that is another pool's by now."""
        gone = self._pods.pop(key, set()) - uids
        if uids:
            self._pods[key] = uids
        self._agents.forget({uid for uid in gone if not any(uid in others for others in self._pods.values())})
