"""The engine's container: which one it is, and what it gets besides its own image and command.

The plug-in reaches the engine through the environment alone. Values that stand in a ConfigMap or a Secret
can't be added to, so they are a reason to leave the pod alone rather than to replace what the user wrote.
"""

import json
from itertools import pairwise
from typing import Any

from kvpool_contract.names import ENGINE_SOCKET
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.desired.quantity import format_quantity, parse_quantity

RUN_DIR = "/run/kvpool"
CLIENT_DIR = "/kvpool/client"
RUN_VOLUME = "kvpool-run"
CLIENT_VOLUME = "kvpool-client"
CLIENT_CONFIG_VARIABLE = "KVPOOL_CLIENT_CONFIG"
CLIENT_CONFIG_VERSION = 1
PLUGIN = "kvpool"


class Refused(Exception):  # noqa: N818 (no error: an answer, turned into a Skip)
    """The pod can't join; `reason` is a word of the contract's table."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def find_engine(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The container called `name`; without a name the only one, or the only one that mentions vLLM."""
    if name:
        found = [c for c in containers if c.get("name") == name]
    elif len(containers) == 1:
        found = containers
    else:
        found = [c for c in containers if _mentions_vllm(c)]
    if len(found) != 1:
        raise Refused("no_engine_container")
    return found[0]


def _mentions_vllm(container: dict[str, Any]) -> bool:
    words = [container.get("image") or "", *(container.get("command") or []), *(container.get("args") or [])]
    return any("vllm" in str(word).lower() for word in words)


def client_config(pool: KVCachePool) -> str:
    """The plug-in's configuration, one JSON document in one variable."""
    engine = pool.spec.engine
    return json.dumps(
        {
            "version": CLIENT_CONFIG_VERSION,
            "socket": f"{RUN_DIR}/{ENGINE_SOCKET}",
            "hostPoolBytes": int(engine.host_pool.size),
            "blockTokens": engine.block_tokens,
            "allowUntested": engine.allow_untested,
        },
        separators=(",", ":"),
    )


def port_of(container: dict[str, Any]) -> int | None:
    """The value of --port where it stands plainly in command or args; the last one counts."""
    words = [str(word) for word in (*(container.get("command") or []), *(container.get("args") or []))]
    found = None
    for word, following in pairwise([*words, ""]):
        value = following if word == "--port" else word.removeprefix("--port=") if word.startswith("--port=") else ""
        found = int(value) if value.isdigit() else found
    return found


def join_engine(container: dict[str, Any], pool: KVCachePool) -> None:
    """Adds the environment, the mounts and the host pool's memory to the engine's container, in place."""
    if port_of(container) not in (None, pool.spec.engine.port):
        raise Refused("engine_port_differs")
    environment = container["env"] = list(container.get("env") or [])
    _prefix_pythonpath(environment)
    _allow_plugin(environment)
    environment.append({"name": CLIENT_CONFIG_VARIABLE, "value": client_config(pool)})
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        {"name": RUN_VOLUME, "mountPath": RUN_DIR},
        {"name": CLIENT_VOLUME, "mountPath": CLIENT_DIR, "readOnly": True},
    ]
    _raise_memory(container, int(pool.spec.engine.host_pool.size))


def _variable(environment: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The entry that counts: of several with one name, the last."""
    return next((entry for entry in reversed(environment) if entry.get("name") == name), None)


def _prefix_pythonpath(environment: list[dict[str, Any]]) -> None:
    entry = _variable(environment, "PYTHONPATH")
    if entry is None:
        environment.append({"name": "PYTHONPATH", "value": CLIENT_DIR})
    elif "valueFrom" in entry:
        raise Refused("pythonpath_from_source")
    else:
        entry["value"] = f"{CLIENT_DIR}:{entry['value']}" if entry.get("value") else CLIENT_DIR


def _allow_plugin(environment: list[dict[str, Any]]) -> None:
    """VLLM_PLUGINS is an allow-list: where the user sets one, our name has to stand in it."""
    entry = _variable(environment, "VLLM_PLUGINS")
    if entry is not None and "valueFrom" in entry:
        raise Refused("plugins_from_source")
    if entry is not None:
        names = [name for name in (entry.get("value") or "").split(",") if name]
        entry["value"] = ",".join(names if PLUGIN in names else [*names, PLUGIN])


def _raise_memory(container: dict[str, Any], host_pool: int) -> None:
    """The host pool's pages are charged to the engine, which touches them first."""
    for kind in ("requests", "limits"):
        amounts = (container.get("resources") or {}).get(kind) or {}
        if "memory" in amounts:
            amounts["memory"] = format_quantity(parse_quantity(amounts["memory"]) + host_pool)
