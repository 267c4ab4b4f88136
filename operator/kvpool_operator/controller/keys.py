"""Keys of cache namespaces that no Secret of the user's holds: one Secret in each Kubernetes namespace, an entry each.

An entry that is there is never read for its value, changed or taken back: whoever rotates a key writes the Secret
himself. A key is made here, sent, and forgotten; no log tells of it. Entries of pools that are gone stay, so that a
pool that is deleted by mistake and made again finds its blocks.
"""

import asyncio
import base64
import logging
import secrets

from kubernetes.client.exceptions import ApiException

from kvpool_contract.tenants import MIN_KEY_BYTES
from kvpool_operator.controller import metrics
from kvpool_operator.controller.cluster import CONFLICT, Cluster, RefusedError
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.spaces import KEYS_SECRET, managed_entries

log = logging.getLogger("kvpool.controller")


async def see_to_keys(cluster: Cluster, pool: KVCachePool) -> tuple[str, str]:
    """Makes the keys that are missing; why they could not be made, as a reason and a sentence, else two empty texts."""
    namespace = pool.metadata.namespace
    wanted = managed_entries(pool.metadata.name, pool.spec.cache_namespaces)
    if not wanted:
        return "", ""
    found = await asyncio.to_thread(cluster.secret_entries, namespace, KEYS_SECRET)
    if found is not None and not found.ours:
        return "NameTaken", (
            f"Secret {KEYS_SECRET} is not the controller's and is left alone; rename it, or name a keySecretRef for "
            f"each cache namespace"
        )
    missing = [entry for entry in wanted if found is None or entry not in found.names]
    if not missing:
        return "", ""
    # base64 of the file that agents read, which holds base64 of the key
    made = {entry: _file_of(secrets.token_bytes(MIN_KEY_BYTES)) for entry in missing}
    try:
        await asyncio.to_thread(cluster.add_entries, namespace, KEYS_SECRET, made, found)
    except RefusedError as error:
        return "ObjectsRefused", f"Secret {KEYS_SECRET} can't be made: {error}"
    except ApiException as error:
        if error.status != CONFLICT:  # somebody else has written it; the next pass sees what is missing then
            raise
        return "", ""
    metrics.WRITES.labels("Secret").inc()
    log.info("%s/%s: keys made for %s", namespace, KEYS_SECRET, ", ".join(missing))
    return "", ""


def _file_of(key: bytes) -> str:
    return base64.b64encode(base64.b64encode(key) + b"\n").decode()
