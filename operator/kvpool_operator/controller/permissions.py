"""What the controller may do, and nothing beyond: the rules of its ClusterRole, or of a Role in each namespace that it
is told to look in.

The tests run it under exactly these. It reads no Secret, changes no pod, deletes nothing: what a pool made goes with
the pool by ownerReferences.
"""

from typing import Any


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


RULES = [
    _rule("kvpool.io", ["kvcachepools"], ["get", "list", "watch"]),
    _rule("kvpool.io", ["kvcachepools/status"], ["update"]),
    # only those with the pool label are asked for
    _rule("", ["pods"], ["list", "watch"]),
    # a pool's configuration and its headless Service, by name
    _rule("", ["configmaps", "services"], ["get", "create", "patch"]),
    _rule("", ["events"], ["create"]),
]
