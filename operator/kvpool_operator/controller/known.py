"""What the API server said last, good for a while: a pass in which nothing was seen to change asks agents alone.

Agents are asked every few seconds, since what they say is no object that could be watched. Were the pool, its objects
and its pods read anew each time, calls would grow with all pools though nothing changes, and each list of pods costs
the API server a look at all pods of the namespace. So a watch's word makes the next pass read the pool or its pods, and
so does a write that failed; whatever no watch has told (an object edited by hand, a pod that went while a watch was
broken) is found when what is known has become old.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvpool_contract.names import pool_object_name
from kvpool_operator.controller.cluster import Cluster, Document, Entries, Key
from kvpool_operator.desired.pods import Pod
from kvpool_operator.desired.spaces import KEYS_SECRET
from kvpool_operator.desired.update import Change

POOL, PODS = "pool", "pods"
OBJECTS = ("ConfigMap", "Service")
SPREAD = 0.5  # of that time: pools that were made together are read one after another

Place = tuple[str, Key]  # what lies there, and the namespace and name under which it does
Found = TypeVar("Found")


class Known(Cluster):
    """The API server, asked again only for what may have changed. What is returned is not to be altered."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """seconds: how long at most what was read is good where nobody says that it has changed."""
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._found: dict[Place, tuple[Any, float]] = {}  # and until when it is good
        self._turns: dict[Place, int] = {}  # how often it was doubted: an answer from before does not count

    # -- what watches tell ---------------------------------------------------------------------------

    def pool_seen(self, key: Key, pool: Document, *, gone: bool) -> bool:
        """Whether that is news; what this controller has written to the status itself is none when it comes back."""
        with self._lock:
            before, _ = self._found.get((POOL, key), (None, 0.0))
        if before is not None and not gone and _meaning(before) == _meaning(pool):
            return False
        self._doubt((POOL, key), *_objects(key), _secret(key[0], KEYS_SECRET))
        return True

    def pods_seen(self, key: Key) -> None:
        self._doubt((PODS, key))

    # -- what passes ask -----------------------------------------------------------------------------

    def read_pool(self, key: Key) -> Document | None:
        pool = self._once((POOL, key), lambda: Cluster.read_pool(self, key))
        if pool is None:
            with self._lock:
                for place in ((POOL, key), (PODS, key), *_objects(key)):
                    self._found.pop(place, None)
                    self._turns.pop(place, None)
        return pool

    def write_status(self, pool: Document, status: Document) -> Document:
        place = POOL, (pool["metadata"]["namespace"], pool["metadata"]["name"])
        try:
            written = Cluster.write_status(self, pool, status)
        except Exception:
            self._doubt(place)
            raise
        with self._lock:
            if place in self._found:
                self._found[place] = written, self._found[place][1]
        return written

    def read(self, wanted: Document) -> Document | None:
        return self._once(_place(wanted), lambda: Cluster.read(self, wanted))

    def apply(self, wanted: Document) -> None:
        try:
            Cluster.apply(self, wanted)
        finally:
            self._doubt(_place(wanted))

    def secret_entries(self, k8s_namespace: str, name: str) -> Entries | None:
        return self._once(_secret(k8s_namespace, name), lambda: Cluster.secret_entries(self, k8s_namespace, name))

    def add_entries(self, k8s_namespace: str, name: str, data: Mapping[str, str], found: Entries | None) -> None:
        try:
            Cluster.add_entries(self, k8s_namespace, name, data, found)
        finally:
            self._doubt(_secret(k8s_namespace, name))

    def update_agent(self, key: Key, change: Change, record: str) -> None:
        try:
            Cluster.update_agent(self, key, change, record)
        finally:
            self._doubt((PODS, key))

    def pods(self, key: Key) -> list[Pod]:
        return self._once((PODS, key), lambda: Cluster.pods(self, key))

    def _once(self, place: Place, ask: Callable[[], Found]) -> Found:
        with self._lock:
            value, until = self._found.get(place, (None, 0.0))
            now, turn = self._clock(), self._turns.get(place, 0)
            if now < until:
                found: Found = value
                return found
        answer = ask()
        with self._lock:
            if self._turns.get(place, 0) == turn:
                self._found[place] = answer, now + self._seconds * random.uniform(1 - SPREAD, 1)
        return answer

    def _doubt(self, *places: Place) -> None:
        with self._lock:
            for place in places:
                self._found.pop(place, None)
                self._turns[place] = self._turns.get(place, 0) + 1


def _meaning(pool: Document) -> tuple[Any, ...]:
    """What of a pool is not the controller's own writing."""
    metadata = pool["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp")


def _objects(key: Key) -> list[Place]:
    return [(kind, (key[0], pool_object_name(key[1]))) for kind in OBJECTS]


def _secret(k8s_namespace: str, name: str) -> Place:
    """None of a pool's objects: pools of a Kubernetes namespace share it, and it stays when one of them goes."""
    return "Secret", (k8s_namespace, name)


def _place(wanted: Document) -> Place:
    return wanted["kind"], (wanted["metadata"]["namespace"], wanted["metadata"]["name"])
