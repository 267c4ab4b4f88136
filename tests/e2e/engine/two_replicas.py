"""The pool that most engine tests ask: replicas A and B, both ready."""

from collections.abc import Iterator
from contextlib import contextmanager

from replica import Pool, wait_for


@contextmanager
def two_replicas(pool: Pool) -> Iterator[Pool]:
    """With A and B."""
    try:
        replicas = [pool.replica(name) for name in "AB"]
        for replica in replicas:
            replica.start_agent()
            replica.start_engine()
        for replica in replicas:
            replica.wait_engine()
            replica.wait_ready()
            # the agent's own request is over, and in nobody's counts
            wait_for("the probe", lambda one=replica: one.status()["probe"]["state"] not in ("", "pending"), 60)
        yield pool
    finally:
        pool.stop()
