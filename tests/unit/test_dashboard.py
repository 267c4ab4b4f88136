"""The chart's dashboard asks for what is exported, of the pool that was chosen, and says what each panel shows."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from exported import exported

CHART = Path(__file__).resolve().parents[2] / "helm" / "kvpool"
DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
CHOSEN = 'namespace="$namespace",pool="$pool"'
# counters that begin with their first count
BEGIN_LATE = ("kvpool_controller_passes_total", "kvpool_controller_agent_answers_total")


def parsed(query: str) -> object:
    return promql_parser.parse(query.replace("$__rate_interval", "1m"))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_and_labels_that_exist_and_for_one_pool(panel: dict[str, Any]) -> None:
    samples = exported()
    assert panel["description"].endswith(".") and panel["targets"]
    for target in panel["targets"]:
        query = target["expr"]
        parsed(query)
        selectors = re.findall(r"(kvpool_\w+)(?:\{([^}]*)\})?", query)
        assert selectors
        for name, labels in selectors:
            assert name in samples, name
            of_an_agent = not name.startswith(("kvpool_controller_", "kvpool_webhook_"))
            assert labels.startswith(CHOSEN) is of_an_agent, query
            for label, wrong, value in re.findall(r'(\w+)(!?=~?)"([^"$]+)"', labels):
                values = {found for key, found in samples[name] if key == label}
                for word in value.split("|"):
                    assert word in values, f"{name} has no {label} {word} ({wrong})"
        for label in re.findall(r"by \((\w+)\)", query) + re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            known = {key for name, _ in selectors for key, _ in samples[name]}
            assert label in known | {"pod"} or any(name in BEGIN_LATE for name, _ in selectors), label


def test_panels_have_numbers_of_their_own_and_lie_beside_each_other() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    places = [
        {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        for p in (panel["gridPos"] for panel in DASHBOARD["panels"])
    ]
    assert all(not one & other for one, other in itertools.combinations(places, 2))
    assert {x for place in places for x, _ in place} == set(range(24))


def test_the_pool_is_chosen_by_what_its_agents_export_and_the_source_by_the_reader() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "pool"]
    assert variables["namespace"]["definition"] == "label_values(kvpool_state, namespace)"
    assert variables["pool"]["definition"] == 'label_values(kvpool_state{namespace="$namespace"}, pool)'
    sources = {json.dumps(each["datasource"]) for each in [*PANELS, variables["namespace"], variables["pool"]]}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
