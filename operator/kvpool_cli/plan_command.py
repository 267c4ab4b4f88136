"""The options of `kvpool plan`, turned into what kvpool_cli.plan takes."""

from collections.abc import Mapping
from pathlib import Path

import click

from kvpool_cli import break_even, observed, observed_report, plan, plan_report
from kvpool_cli.break_even import Prices
from kvpool_cli.engine_costs import EngineError, curve, measure, over_http
from kvpool_cli.errors import InputError
from kvpool_cli.observed import MetricsError
from kvpool_cli.plan import PlanError
from kvpool_lab.costs import Path as Way
from kvpool_lab.costs import PrefillCurve, steady
from kvpool_lab.routing import ROUTINGS
from kvpool_lab.sample import FOLLOWED_BLOCKS
from kvpool_operator.desired.quantity import QuantityError, parse_quantity


@click.command("plan")
@click.option("--trace", type=click.Path(path_type=Path), help="Recorded requests (see above).")
@click.option(
    "--from-metrics",
    "metrics",
    default="",
    help="Instead: URL of a Prometheus that scrapes the agents of a pool that runs, the one of --pool and --namespace.",
)
@click.option("--window", default="6h", show_default=True, help="With --from-metrics: up to now.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(plan.CHOICES),
    help="Eviction policy (default: each that a pool can have). S3FIFO-blockwise is the published algorithm, block by "
    "block, as no arena can run it.",
)
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    help="Of all arenas together: bytes such as 64Gi, or percent of the trace's blocks such as 5%. Repeatable; "
    f"default: {', '.join(plan.CAPACITIES)}.",
)
@click.option("--bytes-per-token", default=131072, show_default=True, type=click.IntRange(1), help="Of the model's KV.")
@click.option(
    "--block-tokens", default=512, show_default=True, type=click.IntRange(1), help="Where the trace does not say."
)
@click.option(
    "--warm-up-percent",
    default=0,
    show_default=True,
    type=click.IntRange(0, 99),
    help="Requests that fill the caches and are not counted.",
)
@click.option("--replicas", default=4, show_default=True, type=click.IntRange(1, 256))
@click.option(
    "--routing",
    "routings",
    multiple=True,
    type=click.Choice(ROUTINGS),
    help="How requests reach replicas: the first one is in use, others are compared. Default: all, in this order.",
)
@click.option("--engine-cache", default="0", help="The engine's own prefix cache, bytes of each replica such as 48Gi.")
@click.option("--arena", default="", help="Of each replica; default: what has most hits, divided by the replicas.")
@click.option("--prefill-rate", default=0.0, type=click.FloatRange(0), help="Prompt tokens a second of one replica.")
@click.option(
    "--prefill", "points", multiple=True, help="TOKENS=SECONDS for a prompt of that length, instead. Repeatable."
)
@click.option(
    "--engine",
    default="",
    help="Measure what computing takes, instead: http://HOST:PORT of an engine, which is asked to compute prompts.",
)
@click.option("--longest", default=8192, show_default=True, type=click.IntRange(128), help="Tokens, with --engine.")
@click.option(
    "--path",
    "paths",
    multiple=True,
    help="Between replicas: NAME=BYTES, a second, and after a comma seconds before the first byte: tcp=1250M,0.002. "
    "Repeatable: the first one is in use.",
)
@click.option("--newcomers", default=1, show_default=True, type=click.IntRange(1), help="Replicas that join at a time.")
@click.option("--join-seconds", default=60.0, show_default=True, type=click.FloatRange(0.1), help="For their warm-up.")
@click.option(
    "--follow",
    default=FOLLOWED_BLOCKS,
    show_default=True,
    type=click.IntRange(1000),
    help="Distinct blocks that are followed; a longer trace is sampled. More: slower, nearer, more memory.",
)
@click.option("--pool", "pool_name", default="planned", show_default=True, help="Name of the pool that is printed.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Its Kubernetes namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def plan_command(
    trace: Path | None,
    metrics: str,
    window: str,
    policies: tuple[str, ...],
    capacities: tuple[str, ...],
    bytes_per_token: int,
    block_tokens: int,
    warm_up_percent: int,
    replicas: int,
    routings: tuple[str, ...],
    engine_cache: str,
    arena: str,
    prefill_rate: float,
    points: tuple[str, ...],
    engine: str,
    longest: int,
    paths: tuple[str, ...],
    newcomers: int,
    join_seconds: float,
    follow: int,
    pool_name: str,
    namespace: str,
    output: str,
) -> None:
    """Say what sharing would do for recorded traffic: hits by capacity and policy, bytes a second between replicas
    under each routing, what a replica that joins needs, whether to share at all, and the pool to apply. Or, with
    --engine and no trace, what computing and loading cost by the length of a prefix; with --from-metrics, what a pool
    that runs has measured.

    The trace is a file of Mooncake's format, a request a line with `timestamp` (ms), `input_length`, `hash_ids` and
    where you have them `session` and `class`; or of WEKA's Claude Code sessions, RAGPulse or Azure's of 2023; plain,
    .gz or .xz. It goes through the code by which agents evict.
    """
    try:
        if metrics:
            _refuse_together("--from-metrics", {"--trace": trace})
            seen = observed.read(metrics, namespace, pool_name, window)
            judged = observed_report.judge(seen, pool_name, namespace, bytes_per_token, newcomers, join_seconds)
            shown = observed_report.as_json if output == "json" else observed_report.as_text
            click.echo(shown(judged, window), nl=False)
            return
        prices = _prices(prefill_rate, points, engine, longest, paths, bytes_per_token, replays=trace is not None)
        if trace is None:
            _say_costs(prices, output)
            return
        wanted = plan.Wanted(
            trace,
            policies or plan.POLICIES,
            capacities or plan.CAPACITIES,
            bytes_per_token,
            block_tokens,
            warm_up_percent,
            replicas,
            routings or ROUTINGS,
            engine_cache,
            arena,
            prices,
            newcomers,
            join_seconds,
            follow,
        )
        planned = plan.plan(wanted)
    except (PlanError, EngineError, MetricsError) as error:
        raise InputError(str(error)) from None
    said = plan_report.as_json if output == "json" else plan_report.as_text
    click.echo(said(planned, pool_name, namespace), nl=False)


def _refuse_together(one: str, others: Mapping[str, object]) -> None:
    """Raises PlanError where one of the others is given as well."""
    given = [option for option, value in others.items() if value]
    if given:
        raise PlanError(f"{one} and {given[0]} are two ways to know the traffic; give one of them")


def _say_costs(prices: Prices | None, output: str) -> None:
    """Raises PlanError."""
    if prices is None:
        raise PlanError("name recorded requests with --trace, or say what computing costs, such as by --engine")
    told = break_even.as_json if output == "json" else break_even.as_text
    click.echo(told(prices), nl=False)


def _prices(
    rate: float,
    points: tuple[str, ...],
    engine: str,
    longest: int,
    paths: tuple[str, ...],
    bytes_per_token: int,
    *,
    replays: bool,
) -> Prices | None:
    """None where neither computing nor loading is known. replays: for a verdict, which needs both. Raises PlanError
    where what is given does not fit together, and EngineError."""
    ways = [_way(path) for path in paths]
    sources = {"--prefill-rate": rate, "--prefill": points, "--engine": engine}
    given = [option for option, value in sources.items() if value]
    if len(given) > 1:
        raise PlanError(f"{' and '.join(given)} say the same; give one of them")
    if ways and not given:
        raise PlanError("--path is what loading takes; say what computing takes: --prefill-rate, --prefill, --engine")
    if not given:
        return None
    if replays and not ways:
        raise PlanError("computing is known, loading is not; add --path, such as --path tcp=1250M,0.002")
    if not engine:
        return Prices(steady(rate) if rate else PrefillCurve(_points(points)), ways, bytes_per_token)
    measured = measure(over_http(engine), longest)
    return Prices(curve(measured), ways, bytes_per_token, measured)


def _points(points: tuple[str, ...]) -> list[tuple[float, float]]:
    found = []
    for point in points:
        tokens, _, seconds = point.partition("=")
        try:
            found.append((float(int(tokens)), float(seconds)))
        except ValueError:
            raise PlanError(f"--prefill {point}: write TOKENS=SECONDS, such as 4096=0.14") from None
    found.sort()
    if any(tokens <= 0 or seconds <= 0 for tokens, seconds in found) or len({tokens for tokens, _ in found}) < len(
        found
    ):
        raise PlanError("--prefill: lengths and seconds are above 0, and no length comes twice")
    return found


def _way(text: str) -> Way:
    name, _, rest = text.partition("=")
    rate, _, latency = rest.partition(",")
    try:
        found = Way(name, parse_quantity(rate), float(latency or 0))
    except (QuantityError, ValueError) as error:
        fix = error if isinstance(error, QuantityError) else "the seconds behind the comma are no number"
        raise PlanError(f"--path {text}: {fix}; write NAME=BYTES,SECONDS, such as tcp=1250M,0.002") from None
    if found.bytes_per_second <= 0 or found.latency < 0 or not name:
        raise PlanError(f"--path {text}: it needs a name, more than 0 bytes a second, and no negative latency")
    return found
