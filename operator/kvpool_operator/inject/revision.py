"""The hash of a pod's template, by which agents know their like: pods of one revision get the same, those of another
one another.

Taken from the pod's spec as it was submitted, before anything of ours is in it. What the API server, a controller or
the scheduler gives each pod of its own is left out: its name, its place, its token's volume, its own claims.

Pods of the webhook have one hash, those of the command line another: the API server fills in its defaults before a
webhook sees the pod. A roll-out from the one to the other warms from the attach on, as without a hash.
"""

import hashlib
import json
import re
from typing import Any

PER_POD = ("hostname", "nodeName", "affinity", "tolerations", "schedulingGates")
TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 (the name of a volume, each pod's ends in letters of its own)
DIGITS = 16
_ORDINAL = re.compile(r"-\d+$")


def template_hash(spec: dict[str, Any], client_config: str) -> str:
    """client_config: the plug-in's, which shapes the format as well."""
    own = {name: value for name, value in spec.items() if name not in PER_POD}
    own["volumes"] = [_volume(v) for v in spec.get("volumes") or [] if not _of_token(v)]
    for kind in ("containers", "initContainers"):
        own[kind] = [_container(c) for c in spec.get(kind) or []]
    text = json.dumps([own, client_config], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _container(container: dict[str, Any]) -> dict[str, Any]:
    return {**container, "volumeMounts": [m for m in container.get("volumeMounts") or [] if not _of_token(m)]}


def _of_token(part: dict[str, Any]) -> bool:
    return str(part.get("name", "")).startswith(TOKEN_VOLUME)


def _volume(volume: dict[str, Any]) -> dict[str, Any]:
    """A StatefulSet's claims are named VOLUME-POD, and its pods end in their ordinal."""
    claim = volume.get("persistentVolumeClaim") or {}
    name = str(claim.get("claimName", ""))
    if not name.startswith(f"{volume.get('name')}-"):
        return volume
    return {**volume, "persistentVolumeClaim": {**claim, "claimName": _ORDINAL.sub("", name)}}
