"""Carries out what is decided about agents that are updated in place: at most one change in a pass."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from kubernetes.client.exceptions import ApiException

from kvpool_operator.controller import metrics
from kvpool_operator.controller.cluster import CONFLICT, NOT_FOUND, Cluster, RefusedError
from kvpool_operator.desired.events import Event
from kvpool_operator.desired.pods import Pod
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.status import Member
from kvpool_operator.desired.update import Patience, annotation, change_event, next_step

log = logging.getLogger("kvpool.controller")

NOT_ALLOWED = (
    "The controller may not change pods. Set agent.inPlaceUpdates in the chart's values, or updateStrategy.type to "
    "OnDelete and make the pods anew."
)

Verdict = tuple[bool, str, str]


class Updates:
    """agent_image: that of pools that name none; empty where agents may not be updated in place."""

    def __init__(self, cluster: Cluster, agent_image: str) -> None:
        self._cluster, self._image = cluster, agent_image

    async def step(
        self, pool: KVCachePool, pods: Sequence[Pod], members: Sequence[Member]
    ) -> tuple[Verdict | None, list[Event]]:
        """How far the update has come, None where it is not asked for, and the Events of what was done. pods: those of
        `members`."""
        agent, readiness = pool.spec.agent, pool.spec.readiness
        key = (pool.metadata.namespace, pool.metadata.name)
        if agent.update_strategy.type != "InPlace":
            return None, []
        if not self._image:
            return (False, "UpdateNotAllowed", NOT_ALLOWED), []
        now = datetime.now(UTC)
        seconds = readiness.deadline_seconds + readiness.attach_grace_seconds
        patience = Patience(seconds, blocks=readiness.on_deadline == "Block")
        step = next_step(pods, members, agent.image or self._image, patience, now.timestamp())
        if (change := step.change) is None:
            return step.verdict, []
        try:
            await asyncio.to_thread(self._cluster.update_agent, key, change, annotation(change, rfc3339(now)))
        except RefusedError as error:
            sentence = f"The API server does not take the agent's image of {change.pod}: {error}"
            return (False, "UpdateStopped", sentence), []
        except ApiException as error:
            if error.status not in (CONFLICT, NOT_FOUND):  # it has changed or gone since; the next pass sees it
                raise
            return step.verdict, []
        metrics.WRITES.labels("Pod").inc()
        log.info("%s/%s: the agent gets %s", key[0], change.pod, change.image)
        return step.verdict, [change_event(key[0], change)]


def rfc3339(now: datetime | None = None) -> str:
    """A time, by default that of now, as the API server writes it."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
