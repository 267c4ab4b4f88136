"""How the engine's process finds the plug-in: a folder on PYTHONPATH, and a name in VLLM_PLUGINS, an allow-list,
where there is one.

Both may be set in the pod, come from a ConfigMap or stand in the engine's image, where nobody can look at admission.
So where the container has a command of its own, a line of shell in front of it adds to what is there when the process
starts, and then becomes the command. Without one the image's entry point starts the engine, and only the environment
is left: a plain value in the pod is added to; one from elsewhere can't be, and is a reason to leave the pod alone; one
in the image is replaced. Where a PYTHONPATH may come through `envFrom`, ours refers to it: the kubelet puts its value
there, or, where there is none, leaves a folder that does not exist.
"""

import posixpath
from typing import Any

from kvpool_operator.inject.edits import Edits
from kvpool_operator.inject.refusal import Refused

CLIENT_DIR = "/kvpool/client"
PLUGIN = "kvpool"
SCRIPT = (
    f'export PYTHONPATH="{CLIENT_DIR}${{PYTHONPATH:+:$PYTHONPATH}}"; '
    f'if [ "${{VLLM_PLUGINS+set}}" ]; then export VLLM_PLUGINS="${{VLLM_PLUGINS:+$VLLM_PLUGINS,}}{PLUGIN}"; fi; '
    'exec "$@"'
)
_SHELLS = ("sh", "bash", "dash", "ash")


def find_plugin(edits: Edits, engine: dict[str, Any]) -> None:
    """Lets the engine's process find the plug-in; raises Refused."""
    path = ("spec", "containers", engine["name"])
    if command := engine.get("command"):
        shell = command[0] if posixpath.basename(command[0]) in _SHELLS else "/bin/sh"
        edits.set((*path, "command"), [shell, "-c", SCRIPT, PLUGIN, *command])
        return
    environment = edits.collection(*path, "env", kind=list)
    hidden = "$(PYTHONPATH)" if engine.get("envFrom") else ""
    _prefix_pythonpath(edits, (*path, "env"), _variable(environment, "PYTHONPATH"), hidden)
    _allow_plugin(edits, (*path, "env"), _variable(environment, "VLLM_PLUGINS"))


def _variable(environment: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The entry that counts: of several with one name, the last."""
    return next((entry for entry in reversed(environment) if entry.get("name") == name), None)


def _prefix_pythonpath(edits: Edits, environment: tuple[str, ...], entry: dict[str, Any] | None, hidden: str) -> None:
    if entry is not None and "valueFrom" in entry:
        raise Refused("pythonpath_from_source")
    present = entry.get("value") if entry else hidden
    value = f"{CLIENT_DIR}:{present}" if present else CLIENT_DIR
    edits.set((*environment, "PYTHONPATH"), {"name": "PYTHONPATH", "value": value})


def _allow_plugin(edits: Edits, environment: tuple[str, ...], entry: dict[str, Any] | None) -> None:
    if entry is not None and "valueFrom" in entry:
        raise Refused("plugins_from_source")
    if entry is not None:
        names = [name for name in (entry.get("value") or "").split(",") if name]
        value = ",".join(names if PLUGIN in names else [*names, PLUGIN])
        edits.set((*environment, "VLLM_PLUGINS"), {"name": "VLLM_PLUGINS", "value": value})
