"""How the engine's process is made to find the plug-in, and keeps what its environment had before."""

import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
from pod_templates import engine, first, joined, template, variables


def started(**given: Any) -> dict[str, Any]:
    """The engine's container as it comes out."""
    return first(joined(template(engine(**given))))


PRINT = "import os, sys; print([os.environ.get(n) for n in ('PYTHONPATH', 'VLLM_PLUGINS')], sys.argv[1:])"


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, ["/kvpool/client", None]),
        ({"PYTHONPATH": "/a:/b c"}, ["/kvpool/client:/a:/b c", None]),
        ({"PYTHONPATH": "", "VLLM_PLUGINS": ""}, ["/kvpool/client", "kvpool"]),
        ({"VLLM_PLUGINS": "x,y"}, ["/kvpool/client", "x,y,kvpool"]),
    ],
)
@pytest.mark.parametrize("shell", ["", "bash"])
def test_a_command_is_started_with_the_plugin_in_front_of_what_is_there(
    shell: str, there: dict[str, str], expected: list[str | None]
) -> None:
    """Run as the container would be: the command, then the arguments as they are written."""
    command = [sys.executable, "-c", PRINT]
    if shell:
        line = f'exec {shlex.quote(sys.executable)} -c "$0" "$@"'
        command = ["bash", "-c", line, PRINT]
    given = {"command": command, "args": ["a b", "$HOME", '"']}
    after = started(**given)
    assert after["args"] == given["args"]
    assert after["command"][0] == (shell or "/bin/sh")
    assert after["command"][-len(command) :] == command
    done = subprocess.run([*after["command"], *after["args"]], env={"PATH": os.environ["PATH"], **there},
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout.strip() == f"{expected} ['a b', '$HOME', '\"']", done.stderr


def test_a_pythonpath_that_may_come_through_env_from_is_referred_to() -> None:
    """The kubelet resolves the reference: what came through envFrom is known before env is looked at."""
    source = [{"configMapRef": {"name": "settings"}}]
    there = started(envFrom=source)
    assert variables(there)["PYTHONPATH"] == "/kvpool/client:$(PYTHONPATH)"
    assert there["envFrom"] == source and "VLLM_PLUGINS" not in variables(there)
    own_value = started(envFrom=source, env=[{"name": "PYTHONPATH", "value": "/a"}])
    assert variables(own_value)["PYTHONPATH"] == "/kvpool/client:/a"
    assert variables(started())["PYTHONPATH"] == "/kvpool/client"
