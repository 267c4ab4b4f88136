"""What loading and computing cost, as metrics: quantiles of what was measured lately."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvpool_contract.status import AgentStatus, Costs, Quantiles

QUANTILES = (("0.05", "p05"), ("0.5", "p50"), ("0.95", "p95"))


def families(costs: Costs) -> Iterator[Metric]:
    computing = GaugeMetricFamily(
        "kvpool_recompute_cost_seconds",
        "What computing costs the engine, as fitted: at the start, for each token, for each pair of a token and one "
        "before it",
        labels=["term"],
    )
    for term in ("start", "linear", "pairs"):
        computing.add_metric([term], getattr(costs.recompute, term))
    yield computing
    ratio = GaugeMetricFamily(
        "kvpool_recompute_ratio", "Measured over fitted seconds of requests lately", labels=["quantile"]
    )
    ratio.add_metric(["0.5"], costs.recompute.p50)
    ratio.add_metric(["0.95"], costs.recompute.p95)
    yield ratio
    yield CounterMetricFamily(
        "kvpool_measured_requests", "Requests whose first token was measured", value=costs.recompute.count
    )
    seconds = GaugeMetricFamily(
        "kvpool_load_seconds",
        "Parts of a load lately: lookup (who holds it), queue (until the first byte, by path), install (from the arena "
        "to the request's first step, for the largest loads)",
        labels=["stage", "path", "quantile"],
    )
    rates = GaugeMetricFamily(
        "kvpool_load_bytes_per_second", "Bytes per second from the first byte on", labels=["path", "quantile"]
    )
    moved = CounterMetricFamily("kvpool_measured_transfers", "Transfers for requests, by path", labels=["path"])
    _add(seconds, ["lookup", ""], costs.lookup)
    _add(seconds, ["install", ""], costs.install)
    for name, path in sorted(costs.paths.items()):
        _add(seconds, ["queue", name], path.queue)
        _add(rates, [name], path.rate)
        moved.add_metric([name], path.moved)
    yield from (seconds, rates, moved)


def of_benefit(status: AgentStatus) -> Iterator[Metric]:
    """What sharing saves and costs, and how long requests waited for their first token by what they were."""
    benefit = status.benefit
    terms = GaugeMetricFamily(
        "kvpool_benefit_seconds",
        "What sharing has saved and cost lately, term by term; waiting (of requests) and gpu (of the engine) are what "
        "is left, below 0 where it cost more than it saved",
        labels=["term"],
    )
    for term in ("waiting", "gpu", "saved", "loading", "waited", "stalled", "written", "displaced"):
        terms.add_metric([term], getattr(benefit, term))
    yield terms
    slows = GaugeMetricFamily(
        "kvpool_decode_slowed_ratio", "Part of their time that decoding steps lose beside it", labels=["beside"]
    )
    slows.add_metric(["load"], benefit.load_slows)
    slows.add_metric(["store"], benefit.store_slows)
    yield slows
    seconds = GaugeMetricFamily(
        "kvpool_first_token_seconds",
        "Seconds from a request's arrival at the engine to its first token lately, by what it was",
        labels=["cache_namespace", "kind", "quantile"],
    )
    served = CounterMetricFamily(
        "kvpool_served_requests", "Requests whose first token was measured", labels=["cache_namespace", "kind"]
    )
    for name, kinds in sorted(status.first_token.items()):
        for kind, quantiles in kinds.items():
            _add(seconds, [name, kind], quantiles)
            served.add_metric([name, kind], quantiles.count)
    yield from (seconds, served)


def _add(family: GaugeMetricFamily, labels: list[str], quantiles: Quantiles) -> None:
    """Nothing where nothing was measured."""
    for label, field in QUANTILES:
        if quantiles.count:
            family.add_metric([*labels, label], getattr(quantiles, field))
