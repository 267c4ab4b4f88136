"""What the agents of a pool have measured, as a Prometheus that scrapes them knows it.

Rates and parts are of a window that ends now; what agents tell as of lately (benefit, costs) or since their start (how
far apart uses lie) is taken as they tell it.
"""

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvpool_cli.break_even import LENGTHS
from kvpool_lab.costs import Path, PrefillCurve

ASK_SECONDS = 30.0
WORST = "15m"
# beside blocks that were loaded: others held them, and they were not
LEFT = ("too_slow", "deadline", "busy", "transfer_failed", "breaker_open", "no_room", "just_restarted")
NOT_MEMBERS = "disk|store"  # paths of a load that lead to no other replica
_WINDOW, _NAME = re.compile(r"[1-9][0-9]{0,4}[smhdw]"), re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class MetricsError(Exception):
    """The metrics can't be read, or say too little; the message names what is missing and the fix."""


@dataclass(frozen=True)
class Observed:
    """`members`: agents that are scraped. Of the prompt blocks in the window: computed, and found by who had computed
    them; and of those looked up and not loaded, by reason. `read`, `written`: bytes a second for requests from other
    members and by engines into arenas, mean and in the worst quarter of an hour, of all together. `within`: prompt
    blocks since the agents' starts that came again within so many bytes of others, of `asked`. `waiting` and `saved`:
    seconds lately, see kvpool_contract.status.Benefit. `curve`, `way`: None where nothing was measured. `hot_bytes`:
    the most that a member was warmed with."""

    members: int
    computed: float
    local: float
    shared: float
    missed: Mapping[str, float]
    read: tuple[float, float]
    written: tuple[float, float]
    within: Sequence[tuple[int, float]]
    asked: float
    waiting: float
    saved: float
    curve: PrefillCurve | None
    way: Path | None
    hot_bytes: int

    @property
    def blocks(self) -> float:
        return self.computed + self.local + self.shared

    @property
    def left(self) -> Mapping[str, float]:
        """Blocks that others held and that were computed all the same, by reason."""
        return {reason: self.missed[reason] for reason in LEFT if self.missed.get(reason)}

    def part(self, blocks: float) -> float:
        return blocks / self.blocks if self.blocks else 0.0


def read(url: str, k8s_namespace: str, pool: str, window: str) -> Observed:
    """url: of a Prometheus that scrapes the pool's agents with the labels `namespace` and `pool`, as the chart's
    PodMonitor gives them. window: as Prometheus writes a duration, such as 6h. Raises MetricsError."""
    if not _WINDOW.fullmatch(window):
        raise MetricsError(f"--window {window}: write a number and s, m, h, d or w, such as 6h")
    for option, name in (("--namespace", k8s_namespace), ("--pool", pool)):
        if not _NAME.fullmatch(name):
            raise MetricsError(f"{option} {name}: it is no name in Kubernetes")
    asked = _Prometheus(url, f'namespace="{k8s_namespace}",pool="{pool}"', window)
    members = round(asked.number("count(kvpool_attached{%s})"))
    if not members:
        raise MetricsError(
            f"--from-metrics {url}: it knows no agent of the pool {pool} in {k8s_namespace}; name both as its targets' "
            "labels `namespace` and `pool` do"
        )
    found = asked.by("source", "sum by (source) (increase(kvpool_prompt_blocks_total{%s}[WINDOW]))")
    if not sum(found.values()):
        raise MetricsError(f"--window {window}: no request has ended in it; make it longer")
    within = asked.by("le", "sum by (le) (kvpool_reuse_distance_blocks{%s})")
    sizes = sorted((int(size), blocks) for size, blocks in within.items() if size != "+Inf")
    benefit = asked.by("term", "sum by (term) (kvpool_benefit_seconds{%s})")
    return Observed(
        members,
        found.get("computed", 0.0),
        found.get("local", 0.0),
        found.get("shared", 0.0),
        asked.by("reason", "sum by (reason) (increase(kvpool_missed_blocks_total{%s}[WINDOW]))"),
        asked.rate("demand_in"),
        asked.rate("store_in"),
        sizes,
        within.get("+Inf", 0.0),
        benefit.get("waiting", 0.0),
        benefit.get("saved", 0.0),
        _curve(asked),
        _way(asked),
        round(asked.number('max(kvpool_transfer_bytes_total{%s,transfer="prewarm_in"})')),
    )


def _curve(asked: "_Prometheus") -> PrefillCurve | None:
    """Of the slowest engine; None where no request was measured."""
    terms = asked.by("term", "max by (term) (kvpool_recompute_cost_seconds{%s})")
    start, linear, pairs = (terms.get(term, 0.0) for term in ("start", "linear", "pairs"))
    if not linear and not pairs:
        return None
    return PrefillCurve([(float(n), start + linear * n + pairs * n * n / 2) for n in (1, *LENGTHS)])


def _way(asked: "_Prometheus") -> Path | None:
    """Between members, by their medians; None where nothing was loaded."""
    median = f'quantile="0.5",path!~"{NOT_MEMBERS}"'
    rate = asked.number("min(kvpool_load_bytes_per_second{%s," + median + "})")
    queue = asked.number('max(kvpool_load_seconds{%s,stage="queue",' + median + "})")
    return Path("members", rate, queue) if rate > 0 else None


class _Prometheus:
    """Asks with the pool's labels for %s and the window for WINDOW. What has no sample is 0."""

    def __init__(self, url: str, selector: str, window: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise MetricsError(f"--from-metrics {url}: give the address of a Prometheus as http://HOST:PORT")
        self._url, self._selector, self._window = url.rstrip("/"), selector, window

    def rate(self, transfer: str) -> tuple[float, float]:
        """Bytes a second of this transfer: mean, and in the worst quarter of an hour."""
        counter = f'kvpool_transfer_bytes_total{{%s,transfer="{transfer}"}}'
        mean = self.number(f"sum(rate({counter}[WINDOW]))")
        return mean, max(mean, self.number(f"max_over_time(sum(rate({counter}[{WORST}]))[WINDOW:1m])"))

    def number(self, query: str) -> float:
        return next((value for _, value in self._samples(query)), 0.0)

    def by(self, label: str, query: str) -> dict[str, float]:
        return {labels.get(label, ""): value for labels, value in self._samples(query)}

    def _samples(self, query: str) -> list[tuple[dict[str, str], float]]:
        filled = query.replace("%s", self._selector).replace("WINDOW", self._window)
        address = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': filled})}"
        try:
            with urllib.request.urlopen(address, timeout=ASK_SECONDS) as answer:  # noqa: S310 - http(s), see above
                document = json.loads(answer.read())
            return [(sample["metric"], float(sample["value"][1])) for sample in document["data"]["result"]]
        except (OSError, ssl.SSLError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise MetricsError(f"--from-metrics {self._url}: it can't be asked: {reason}") from None
        except (ValueError, KeyError, TypeError, IndexError):
            raise MetricsError(f"--from-metrics {self._url}: it answers no queries as Prometheus does") from None
