"""What agents, controller and webhook export: what alerts and dashboard may ask for."""

import re
from pathlib import Path

from agent_status import agent
from prometheus_client import CollectorRegistry

from kvpool_agent.observe.metrics import registry
from kvpool_contract import status
from kvpool_contract.status import Disk, Quantiles, Tls
from kvpool_operator.controller.metrics import REGISTRY
from kvpool_operator.webhook.metrics import Metrics
from kvpool_operator.webhook.signer import OUTCOMES

ONCE = Quantiles(1.0, 1.0, 1.0, 1)
MEASURED = status.Costs(lookup=ONCE, install=ONCE, paths={"a": status.Path(ONCE, ONCE, 1)})
MOVED = {"demand_in": status.Transfer(1, 1)}
SERVED = {"": dict.fromkeys(("cold", "local", "remote", "fallback"), ONCE)}
# gauges of the webhook that its server adds
OF_THE_SERVER = re.findall(
    r'metrics\.watch\(\s*"(\w+)"',
    (Path(__file__).resolve().parents[2] / "operator" / "kvpool_operator" / "webhook" / "server.py").read_text(),
)


def exported() -> dict[str, set[tuple[str, str]]]:
    """Samples by name, with the labels and the values that each label has."""
    found: dict[str, set[tuple[str, str]]] = {f"kvpool_webhook_{name}": set() for name in OF_THE_SERVER}
    of_agent = agent(
        disk=Disk(state="failed", reason="disk_slow"),
        misses={"deadline": 1},
        tls=Tls("Managed", "ok"),
        costs=MEASURED,
        first_token=SERVED,
        transfers=MOVED,
    )
    registries: list[CollectorRegistry] = [
        registry(lambda: of_agent),
        REGISTRY,
        Metrics(OUTCOMES).registry,
    ]
    for one in registries:
        for family in one.collect():
            found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels.items())
    return found
