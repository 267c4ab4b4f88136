"""The chart's alerts can be read by Prometheus, look at what is exported, and say what to do."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from exported import exported

from kvpool_operator.certificates.peers import PeerSettings, plan_peers
from kvpool_operator.webhook.authority import LiveAuthority

REPOSITORY = Path(__file__).resolve().parents[2]
ALERTS: list[dict[str, Any]] = [
    alert
    for group in yaml.safe_load((REPOSITORY / "helm" / "kvpool" / "alerts.yaml").read_text())["groups"]
    for alert in group["rules"]
]
RUNBOOK = (REPOSITORY / "docs" / "operations.md").read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_promql_over_metrics_that_exist_and_has_its_row(alert: dict[str, Any]) -> None:
    promql_parser.parse(alert["expr"])
    samples, selectors = exported(), re.findall(r"(kvpool_\w+)(?:\{(\w+)=(~?)\"([^\"]+)\"\})?", alert["expr"])
    assert selectors
    for name, label, regular, value in selectors:
        assert name in samples, name
        # counters of the controller and of misses begin with their first count
        if label and samples[name] and name not in ("kvpool_controller_passes_total", "kvpool_missed_blocks_total"):
            values = {found for key, found in samples[name] if key == label}
            for word in value.split("|") if regular else [value]:
                assert any(re.fullmatch(word, found) for found in values), f"{name} has no {label} {word}"
    assert f"| `{alert['alert']}` | " in RUNBOOK
    assert set(alert["annotations"]) == {"summary", "description"}
    assert alert["labels"]["severity"] in ("warning", "critical")


def test_every_row_of_the_page_is_an_alert_and_no_name_comes_twice() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert sorted(names) == sorted(set(names)) == sorted(re.findall(r"^\| `(\w+)` \|", RUNBOOK, re.MULTILINE))


@pytest.mark.parametrize("wrong", ["sum by (pool (kvpool_state) > 0", "kvpool_state > > 1", "rate(kvpool_state)"])
def test_what_is_no_promql_is_found(wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        promql_parser.parse(wrong)


def test_the_alert_of_the_members_authority_looks_at_the_one_that_signs(tmp_path: Path) -> None:
    """The one that is to follow is years from its end while an agent that is silent holds it up."""
    settings, start = PeerSettings("kvpool-system"), datetime(2026, 1, 1, tzinfo=UTC)
    first = plan_peers(start, {}, "c", settings, lambda _: False)
    now = start + settings.life - timedelta(days=20)
    late = plan_peers(now, first.secret, "c", settings, lambda _: False)
    assert (late.pending, late.signer) == (True, first.signer)
    for name, content in late.secret.items():
        (tmp_path / name).write_bytes(content)
    webhook = LiveAuthority(tmp_path)
    webhook.refresh()
    exported_now = {
        "kvpool_controller_authority_expires_seconds": late.expires.timestamp(),
        "kvpool_webhook_authority_expires_seconds": webhook.expires,
    }
    (expression,) = [alert["expr"] for alert in ALERTS if alert["alert"] == "KvpoolAuthorityEnds"]
    (metric,) = re.findall(r"kvpool_\w+", expression)
    assert expression.endswith(" - time() < 30 * 86400")
    assert exported_now[metric] - now.timestamp() == 20 * 86400
