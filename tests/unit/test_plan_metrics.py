"""`kvpool plan --from-metrics`: what a running pool has measured, and the three things there are to do about it."""

import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_operator.desired.pool import read_pool

MIB = 1 << 20
Samples = dict[str, Any]
# by metric, or by metric and the value of its label `transfer`: a number, or numbers by label
CALM: Samples = {
    "kvpool_attached": 4,
    "kvpool_prompt_blocks_total": {"computed": 600, "local": 400, "shared": 0},
    "kvpool_missed_blocks_total": {"never_published": 600},
    "kvpool_reuse_distance_blocks": {str(MIB): 100, str(2 * MIB): 380, str(4 * MIB): 400, "+Inf": 1000},
    "demand_in": (0, 0),
    "store_in": (5e6, 2e7),
    "kvpool_benefit_seconds": {"waiting": 0, "saved": 0},
}
SHARING = CALM | {
    "kvpool_prompt_blocks_total": {"computed": 400, "local": 400, "shared": 200},
    "demand_in": (1e6, 9e6),
    "kvpool_benefit_seconds": {"waiting": 12, "saved": 20},
    "prewarm_in": 64 * MIB,
    "kvpool_recompute_cost_seconds": {"start": 0.01, "linear": 0.001, "pairs": 2e-8},
    "kvpool_load_bytes_per_second": 100e6,
    "kvpool_load_seconds": 0.005,
}
SLOW = SHARING | {
    "kvpool_benefit_seconds": {"waiting": -3, "saved": 1},
    "kvpool_missed_blocks_total": {"never_published": 300, "too_slow": 90, "busy": 10},
}
LABELS = {
    "kvpool_prompt_blocks_total": "source",
    "kvpool_missed_blocks_total": "reason",
    "kvpool_reuse_distance_blocks": "le",
    "kvpool_benefit_seconds": "term",
    "kvpool_recompute_cost_seconds": "term",
}


class Metrics:
    """Answers as a Prometheus does that has these samples; keeps what it was asked."""

    def __init__(self, samples: Samples) -> None:
        self.asked: list[str] = []
        self.samples = samples

    def result(self, query: str) -> list[dict[str, Any]]:
        promql_parser.parse(query)
        self.asked.append(query)
        (name,) = re.findall(r"kvpool_\w+", query)
        transfer = re.search(r'transfer="(\w+)"', query)
        found = self.samples.get(transfer[1] if transfer else name, {})
        if isinstance(found, tuple):
            found = found["max_over_time" in query]
        by = found if isinstance(found, dict) else {"": found}
        labelled = {LABELS.get(name, ""): by} if found != {} else {}
        return [
            {"metric": {label: value} if label else {}, "value": [0, str(number)]}
            for label, values in labelled.items()
            for value, number in values.items()
        ]


@pytest.fixture
def server() -> Iterator[Callable[[Samples], tuple[str, Metrics]]]:
    """Starts one with samples; its URL, and itself."""
    running: list[ThreadingHTTPServer] = []

    def start(samples: Samples) -> tuple[str, Metrics]:
        metrics = Metrics(samples)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                assert path == "/api/v1/query"
                (asked,) = urllib.parse.parse_qs(query)["query"]
                body = json.dumps({"status": "success", "data": {"result": metrics.result(asked)}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_address[1]}", metrics

    yield start
    for each in running:
        each.shutdown()
        each.server_close()


def run(*options: str) -> Any:
    return CliRunner().invoke(main, ["plan", "--pool", "chat", "-n", "team-a", *options])


def told(url: str, *options: str) -> dict[str, Any]:
    done = run("--from-metrics", url, *options, "-o", "json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_where_loading_spares_requests_time_the_word_is_share_with_the_pool_to_apply(
    server: Callable[[Samples], tuple[str, Metrics]],
) -> None:
    url, metrics = server(SHARING)
    found = told(url, "--window", "2h", "--join-seconds", "32", "--newcomers", "2", "--bytes-per-token", "1000")
    (verdict,) = found["verdicts"]
    assert (verdict["verdict"], verdict["saved"]) == ("share", 0.6)
    assert verdict["reason"].startswith("20.0 % of the prompt blocks were loaded from other replicas, ")
    assert "spared requests 12.0 s of the 20.0 s" in verdict["reason"]
    assert (found["members"], found["nearHitRate"], found["farHitRate"]) == (4, 0.4, 0.2)
    assert found["readBytesPerSecond"] == {"mean": 1e6, "worst": 9e6}
    assert found["totalBytesPerSecond"] == {"mean": 6e6, "worst": 2.9e7}
    assert [each["blockHitRate"] for each in found["capacities"]] == [0.1, 0.38, 0.4]
    assert found["effectiveCapacityBytes"] == 2 * MIB
    assert found["newcomers"] == {"hotSetBytes": 64 * MIB, "scaleOutBytesPerSecond": 4 * MIB}
    assert found["breakEven"][0]["cold_prefill_ms"] == pytest.approx(10 + 512 + 2e-5 * 512 * 256, abs=0.01)
    assert found["breakEven"][0]["load_ms"] == pytest.approx(5 + 5.12)
    assert [path["break_even_tokens"] for path in found["paths"]] == [1]
    spec = read_pool(found["pool"]).spec
    assert (spec.tiers.memory.size, spec.prewarm.max_bytes, spec.prewarm.max_bytes_per_second) == (
        2 * MIB, 64 * MIB, 2 * MIB,
    )  # fmt: skip
    assert all('namespace="team-a",pool="chat"' in query for query in metrics.asked)
    assert sum("[2h" in query for query in metrics.asked) == 6


def test_where_loading_costs_more_than_it_spares_the_word_is_to_route_instead(
    server: Callable[[Samples], tuple[str, Metrics]],
) -> None:
    found = told(server(SLOW)[0])
    (verdict,) = found["verdicts"]
    assert (verdict["verdict"], found["pool"]) == ("route instead", None)
    assert verdict["reason"].startswith(
        "others hold 30.0 % of the prompt blocks, and loading has cost requests 3.0 s more than it spared lately; "
        "10.0 % of the prompt blocks lie there and were computed (too_slow)."
    )
    refusing = SLOW | {"kvpool_prompt_blocks_total": {"computed": 900, "local": 100, "shared": 0}}
    (verdict,) = told(server(refusing)[0])["verdicts"]
    assert (verdict["verdict"], "loading has cost" in verdict["reason"]) == ("route instead", False)


def test_where_others_hold_hardly_anything_local_is_enough(server: Callable[[Samples], tuple[str, Metrics]]) -> None:
    found = told(server(CALM)[0])
    (verdict,) = found["verdicts"]
    assert (verdict["verdict"], found["pool"], found["breakEven"]) == ("local is enough", None, None)
    assert verdict["reason"] == "replicas have 40.0 % of the prompt blocks themselves, and others add 0.0 %"
    barely = CALM | {"kvpool_missed_blocks_total": {"never_published": 581, "busy": 19}}
    assert told(server(barely)[0])["verdicts"][0]["verdict"] == "local is enough"
    enough = CALM | {"kvpool_missed_blocks_total": {"never_published": 580, "busy": 20}}
    assert told(server(enough)[0])["verdicts"][0]["verdict"] == "route instead"


def test_the_text_has_the_same_and_the_pool_can_be_applied(
    server: Callable[[Samples], tuple[str, Metrics]], tmp_path: Path
) -> None:
    done = run("--from-metrics", server(SHARING)[0])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "4 agents, 1000 prompt blocks within 6h: 40.0% found at the replica, 20.0% loaded from others"
    rows = [line.split() for line in lines]
    assert ["R_READ", "0.001", "GB/s", "0.009", "GB/s"] in rows and ["0.002", "GB", "38.0%"] in rows
    assert "all requests: share. 20.0 % of the prompt blocks" in done.stdout
    (tmp_path / "pool.yaml").write_text(done.stdout.partition("The pool to apply:\n\n")[2])
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "pool.yaml")])
    assert checked.stdout.startswith("pool chat in namespace team-a: the spec is accepted")


def test_what_metrics_do_not_say_is_refused_in_a_sentence(server: Callable[[Samples], tuple[str, Metrics]]) -> None:
    unknown, idle = server({})[0], server(CALM | {"kvpool_prompt_blocks_total": {"computed": 0}})[0]
    for options, sentence in (
        (("--from-metrics", unknown), "it knows no agent of the pool chat in team-a; name both as its targets' labels"),
        (("--from-metrics", idle), "--window 6h: no request has ended in it; make it longer"),
        (("--from-metrics", idle, "--window", "6 h"), "--window 6 h: write a number and s, m, h, d or w"),
        (("--from-metrics", idle, "--pool", 'a",b="'), "it is no name in Kubernetes"),
        (("--from-metrics", "prometheus:9090"), "give the address of a Prometheus as http://HOST:PORT"),
        (("--from-metrics", "file:///etc/passwd"), "give the address of a Prometheus as http://HOST:PORT"),
        (("--from-metrics", "http://127.0.0.1:9"), "it can't be asked: "),
        (("--from-metrics", idle, "--trace", "t"), "--from-metrics and --trace are two ways to know the traffic"),
    ):
        done = run(*options)
        assert done.exit_code == 2 and sentence in done.stderr, (options, done.stderr)
