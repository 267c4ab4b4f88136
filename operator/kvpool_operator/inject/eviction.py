"""What the cluster autoscaler is told of kvpool's volumes.

It empties no node on which a pod has volumes of the node's own, but those that the pod names as ones that may go with
it. Ours may: they hold copies, a socket and a cache. Without that word a node whose pods could all move before they
joined a pool would be kept for ever. Volumes of the user's own stay what they were to it.
"""

from kvpool_operator.inject.edits import Edits
from kvpool_operator.inject.obstacles import OWN_PREFIX

EVICTABLE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"


def let_volumes_go(edits: Edits) -> None:
    """Names those that have been added."""
    volumes = edits.template["spec"]["volumes"]
    edits.add_words(EVICTABLE, (v["name"] for v in volumes if v["name"].startswith(OWN_PREFIX) and "emptyDir" in v))
