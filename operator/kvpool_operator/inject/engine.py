"""The engine's container: which one it is, how it is started, and what it gets besides its own image."""

import json
import posixpath
import shlex
from itertools import pairwise
from typing import Any

from kvpool_contract.names import ENGINE_SOCKET, PEER_PORT, SUPERVISOR_PORT, WORKER_PORT
from kvpool_operator.desired.pool import KVCachePool
from kvpool_operator.inject.edits import Edits
from kvpool_operator.inject.refusal import Refused
from kvpool_operator.inject.start import CLIENT_DIR

AGENT_PORTS = {PEER_PORT, SUPERVISOR_PORT, WORKER_PORT}
RUN_DIR = "/run/kvpool"
RUN_VOLUME = "kvpool-run"
CLIENT_VOLUME = "kvpool-client"
CLIENT_CONFIG_VARIABLE = "KVPOOL_CLIENT_CONFIG"
CLIENT_CONFIG_VERSION = 1
QUOTED = 16 * 2**10
# A mesh's proxy is put beside an engine that was alone before.
_PROXIES = ("istio-proxy", "linkerd-proxy")


def find_engine(containers: list[dict[str, Any]], name: str, before: str = "") -> dict[str, Any]:
    """The container called `name`; without a name the only one, or the only one that mentions vLLM, or the one that
    was found `before` others were put beside it. Raises Refused."""
    users = [c for c in containers if c.get("name") not in _PROXIES]
    if name:
        found = [c for c in users if c.get("name") == name]
    elif len(users) == 1:
        found = users
    else:
        found = [c for c in users if _mentions_vllm(c)]
        found = found if len(found) == 1 else [c for c in users if before and c.get("name") == before]
    if len(found) != 1 or not found[0].get("name"):
        raise Refused("no_engine_container")
    return found[0]


def _mentions_vllm(container: dict[str, Any]) -> bool:
    words = [container.get("image") or "", *(container.get("command") or []), *(container.get("args") or [])]
    return any("vllm" in str(word).lower() for word in words)


def words_of(container: dict[str, Any]) -> list[str]:
    """The words of command and args; those of a shell's command line one by one, as far as they stand plainly. Quotes
    are looked at in the first QUOTED characters of such lines alone: that is slow, and others wait meanwhile."""
    found, left = [], QUOTED
    for word in (*(container.get("command") or []), *(container.get("args") or [])):
        text = str(word).replace("\\\n", " ")
        plain = text.split()
        if len(plain) < 2:
            found.append(text)
            continue
        left -= len(text)
        try:
            found += shlex.split(text) if left >= 0 else plain
        except ValueError:
            found += plain
    return found


def option(words: list[str], name: str) -> str | None:
    """The value of an option, `--name value` or `--name=value`, with `-` or `_` in the name; the last one counts."""
    found = None
    for word, following in pairwise([*words, ""]):
        given, equals, value = word.partition("=")
        if given.startswith("--") and given.replace("_", "-") == name:
            found = value if equals else following
    return found


def port_of(container: dict[str, Any]) -> int | None:
    """The value of --port where it stands plainly in command or args."""
    value = option(words_of(container), "--port")
    return int(value) if value and value.isdecimal() else None


def refuse_engine(engine: dict[str, Any], pool: KVCachePool) -> None:
    """Raises Refused for an engine that could not use the pool, as far as its command line tells."""
    words = words_of(engine)
    if any(w.replace("_", "-").startswith("--kv-transfer-config") for w in words):
        raise Refused("foreign_connector")
    nodes = option(words, "--nnodes")
    if (
        (nodes and nodes.isdecimal() and int(nodes) > 1)
        or option(words, "--distributed-executor-backend") == "ray"
        or ("ray", "start") in pairwise(words)
    ):
        raise Refused("multi_host")
    if port_of(engine) not in (None, pool.spec.engine.port):
        raise Refused("engine_port_differs")
    if pool.spec.engine.port in AGENT_PORTS:
        raise Refused("port_taken")


def refuse_mounts(engine: dict[str, Any]) -> None:
    """Raises Refused where a volume of the user's lies at the place of one of ours, or, read-only, above it: the pod
    would be refused, or its container could not be made."""
    for mount in engine.get("volumeMounts") or []:
        path = posixpath.normpath(mount.get("mountPath") or "/")
        above = mount.get("readOnly") and any(own.startswith(f"{path}/") for own in (RUN_DIR, CLIENT_DIR))
        if path in (RUN_DIR, CLIENT_DIR) or above:
            raise Refused("path_taken")


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
            "cacheNamespaces": pool.spec.request_namespace != "Ignore",
            "decodeOutput": pool.spec.publication.decode_output,
        },
        separators=(",", ":"),
    )


def join_engine(edits: Edits, engine: dict[str, Any], pool: KVCachePool) -> None:
    """Adds the plug-in's configuration and the two mounts."""
    path = ("spec", "containers", engine["name"])
    edits.add((*path, "env"), {"name": CLIENT_CONFIG_VARIABLE, "value": client_config(pool)})
    edits.add((*path, "volumeMounts"), {"name": RUN_VOLUME, "mountPath": RUN_DIR})
    edits.add((*path, "volumeMounts"), {"name": CLIENT_VOLUME, "mountPath": CLIENT_DIR, "readOnly": True})
