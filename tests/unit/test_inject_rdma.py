"""An agent that is to lock its arena in memory by a capability: when it gets that, and what it is told when not."""

import copy
from typing import Any

import pytest
from pod_templates import SETTINGS, joined, own, pool, template, variables

from kvpool_contract.names import IPC_LOCK_VARIABLE
from kvpool_contract.reasons import REASONS
from kvpool_operator.inject import Injected, Settings, inject, restore

PRIVILEGED = Settings(image=SETTINGS.image, privileged=True)


def asking(rdma: dict[str, Any] | None = None, **transport: Any) -> Any:
    return pool(transport={"rdma": {"memlock": "IPCLock", "allowUnencrypted": True, **(rdma or {})}, **transport})


def injected(given: dict[str, Any], wanted: Any, settings: Settings = PRIVILEGED) -> Injected:
    result = inject(given, wanted, settings)
    assert isinstance(result, Injected), result
    return result


@pytest.mark.parametrize("pod", [{}, {"runAsUser": 1000650000, "fsGroup": 1000650000}, {"runAsNonRoot": False}])
def test_in_a_privileged_namespace_the_agent_is_root_with_that_capability_and_nothing_else_of_it_changes(
    pod: dict[str, Any],
) -> None:
    given = template(securityContext=pod)
    result = injected(given, asking())
    agent = own(result.template, "kvpool-agent")
    assert agent["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    plain = joined(given, asking({"memlock": "Node"}))
    agent["securityContext"] = own(plain, "kvpool-agent")["securityContext"]
    assert (result.template, result.withheld) == (plain, "")


@pytest.mark.parametrize(
    "wanted",
    [
        asking({"memlock": "Node"}),
        asking(type="TCP"),
        asking({"allowUnencrypted": False}),  # no RDMA beside TLS
    ],
    ids=["not asked for", "TCP", "encrypted"],
)
def test_where_there_is_no_use_for_it_nobody_is_root(wanted: Any) -> None:
    result = injected(template(), wanted)
    agent, client = (own(result.template, name) for name in ("kvpool-agent", "kvpool-client"))
    assert agent["securityContext"] == client["securityContext"]
    assert (result.withheld, IPC_LOCK_VARIABLE in variables(agent)) == ("", False)


def test_without_tls_it_has_its_use() -> None:
    result = injected(template(), asking({"allowUnencrypted": False}, tls={"mode": "Disabled"}))
    assert own(result.template, "kvpool-agent")["securityContext"]["runAsUser"] == 0


@pytest.mark.parametrize(
    ("spec", "settings", "reason"),
    [
        ({}, SETTINGS, "rdma_ipc_lock_namespace"),
        ({"securityContext": {"runAsNonRoot": True}}, PRIVILEGED, "rdma_ipc_lock_pod"),
        ({"hostUsers": False}, PRIVILEGED, "rdma_ipc_lock_pod"),
        ({"hostUsers": False}, SETTINGS, "rdma_ipc_lock_pod"),
    ],
)
def test_where_it_is_forbidden_the_pod_joins_as_without_and_the_agent_is_told_why(
    spec: dict[str, Any], settings: Settings, reason: str
) -> None:
    given = template(**spec)
    result = injected(given, asking(), settings)
    assert result.withheld == reason and reason in REASONS
    assert injected(result.template, asking(), settings) == result
    assert restore(result.template) == given
    agent = own(result.template, "kvpool-agent")
    assert variables(agent)[IPC_LOCK_VARIABLE] == reason
    agent["env"] = [each for each in agent["env"] if each["name"] != IPC_LOCK_VARIABLE]
    assert result.template == joined(given, asking({"memlock": "Node"}))


def test_what_one_namespace_was_given_another_is_not() -> None:
    """As where the command line wrote a pod for a privileged one, and the webhook sees it elsewhere."""
    given = template()
    there = injected(given, asking())
    assert injected(copy.deepcopy(there.template), asking(), SETTINGS) == injected(given, asking(), SETTINGS)
