"""What the controller may do, and nothing beyond: the rules of its ClusterRole, or of a Role in each namespace that it
is told to look in.

The tests run it under exactly these; the webhook's certificates, where it keeps them, need two Secrets and one
configuration more, by name. For pools it reads one Secret, that of the keys that it makes, changes no pod, deletes
nothing: what a pool made goes with the pool by ownerReferences. To create can't be allowed by name.
"""

from typing import Any

from kvpool_operator.desired.spaces import KEYS_SECRET


def _rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict[str, Any]:
    named = {"resourceNames": names} if names else {}
    return {"apiGroups": [group], "resources": resources, **named, "verbs": verbs}


RULES = [
    _rule("kvpool.io", ["kvcachepools"], ["get", "list", "watch"]),
    _rule("kvpool.io", ["kvcachepools/status"], ["update"]),
    # only those with the pool label are asked for
    _rule("", ["pods"], ["list", "watch"]),
    # a pool's configuration, its headless Service, and the ConfigMaps that its declared prefixes lie in, by name
    _rule("", ["configmaps", "services"], ["get", "create", "patch"]),
    _rule("", ["events"], ["create"]),
    # keys of cache namespaces that no Secret of the user's holds
    _rule("", ["secrets"], ["create"]),
    _rule("", ["secrets"], ["get", "patch"], [KEYS_SECRET]),
]
# Besides, where agents may be updated in place; an admission policy holds it to the agent's image.
IN_PLACE = _rule("", ["pods"], ["patch"])
