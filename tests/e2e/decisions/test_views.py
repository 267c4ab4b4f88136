"""What people look at shows what agents measure: the dashboard by a real Prometheus, the page in a real browser."""

import asyncio
import itertools
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_pool import AgentPool, Node
from click.testing import CliRunner
from html_tables import Elements
from onlookers import Prometheus, page_in_browser, prometheus
from prometheus_client import start_http_server
from replica import REPOSITORY, free_port
from standin_engine import Served, prompt

from kvpool_cli.main import main
from kvpool_lab.verdict import NOTABLE
from kvpool_operator.controller import metrics, page
from kvpool_operator.controller.board import Board
from kvpool_operator.desired.pool import read_pool
from kvpool_operator.desired.status import Member, Observed, pool_status
from kvpool_operator.webhook.metrics import Metrics
from kvpool_operator.webhook.signer import OUTCOMES

CHART = REPOSITORY / "helm" / "kvpool"
DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboard.json").read_text())
BLOCKS, TOKEN_SECONDS = 16, 0.005  # a third of a second for a prompt
NAMES, OWN = ("p", "q", "r"), ("x", "y")
LOADED = len(NAMES) * BLOCKS


@dataclass
class Lively:
    """A pool of three: a has computed three prompts and b two, b has loaded those of a, c was warmed by both, or by the
    one that it knew of when it began."""

    a: Node
    b: Node
    c: Node

    @property
    def hot(self) -> int:
        """Blocks that c was warmed with."""
        warm = self.c.status().warm
        assert warm.planned_blocks == warm.loaded_blocks >= LOADED
        return warm.loaded_blocks

    @property
    def nodes(self) -> tuple[Node, Node, Node]:
        return self.a, self.b, self.c


@pytest.fixture
def lively(pool: AgentPool) -> Lively:
    a = pool.node("a").start().attach(token_seconds=TOKEN_SECONDS)
    b = pool.node("b", prewarm={"maxBytes": 0}).start().attach(token_seconds=TOKEN_SECONDS)
    for name in OWN:  # by which it knows what computing costs
        assert b.engine.serve(prompt(name, BLOCKS)) == Served(computed=BLOCKS)
    for name in NAMES:
        assert a.engine.serve(prompt(name, BLOCKS)) == Served(computed=BLOCKS)
    b.until_sees(a).until_knows(*(prompt(name, BLOCKS) for name in NAMES))
    for name in NAMES:
        assert b.engine.serve(prompt(name, BLOCKS)) == Served(pool=BLOCKS)
    c = pool.joined("c", readiness={"targetPercent": 100})
    c.until_state("Ready(warm)")
    for node in (a, b):  # which had nobody to be warmed by, or no wish to be
        node.until("ready", lambda status: status.state == "Ready(degraded)")
    return Lively(a, b, c)


def queries() -> list[tuple[str, str]]:
    """(panel, query) with the variables filled in."""
    filled = {"$__rate_interval": "30s", "$namespace": "team-a", "$pool": "chat"}
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in filled.items():
                query = query.replace(name, value)
            assert "$" not in query
            found.append((panel["title"], query))
    return found


def shows(server: Prometheus, query: str) -> bool:
    """Whether there is a figure, which is not what comes of dividing nothing by nothing."""
    return any(not math.isnan(float(sample["value"][1])) for sample in server.ask(query))


def test_every_query_of_the_dashboard_returns_data_of_a_pool_that_serves(lively: Lively, tmp_path: Path) -> None:
    of_controller, of_webhook, webhook = free_port(), free_port(), Metrics(OUTCOMES)
    metrics.serve(of_controller)
    start_http_server(of_webhook, "127.0.0.1", registry=webhook.registry)
    targets = {
        f"127.0.0.1:{node.replica.worker_port}": {"namespace": "team-a", "pool": "chat", "pod": node.replica.name}
        for node in lively.nodes
    }
    targets |= {f"127.0.0.1:{port}": {"namespace": "kvpool-system"} for port in (of_controller, of_webhook)}
    wanted = queries()
    assert len(wanted) == len(set(wanted)) > 20
    with prometheus(tmp_path, targets, CHART / "alerts.yaml") as server:
        fresh = (f"fresh{n}" for n in itertools.count())

        def go_on() -> None:
            """What rates are of."""
            tokens = prompt(next(fresh), BLOCKS)
            lively.a.engine.serve(tokens)
            lively.b.until_knows(tokens).engine.serve(tokens)
            metrics.PASSES.labels("ok").inc()
            metrics.ANSWERS.labels("answered").inc()
            webhook.reviews.labels("injected").inc()

        empty: list[tuple[str, str]] = []

        def all_show(server: Prometheus) -> bool:
            go_on()
            empty[:] = [(panel, query) for panel, query in wanted if not shows(server, query)]
            return not empty

        try:
            server.until("every query returns data", all_show)
        finally:
            assert not empty
        offered = {(s["metric"]["namespace"], s["metric"]["pool"]) for s in server.ask("kvpool_state")}
        assert offered == {("team-a", "chat")}

        def planned(server: Prometheus) -> dict[str, Any] | None:
            """Once what was loaded since the first look at b has been looked at, too, and has spared more than it took:
            a machine that was busy for a while has to make up for that."""
            go_on()
            found = plan(server)
            known = found["farHitRate"] > NOTABLE and found["readBytesPerSecond"]["mean"]
            return found if known and [each["verdict"] for each in found["verdicts"]] == ["share"] else None

        told = server.until("the plan knows of loads and says to share", planned)
        assert told["members"] == 3
        assert told["newcomers"]["hotSetBytes"] == lively.hot * lively.a.engine.row_bytes
        assert read_pool(told["pool"]).metadata.name == "chat"
        server.until("every alert is evaluated", lambda server: set(server.rules().values()) == {"ok"})
        assert len(server.rules()) == 16


def plan(server: Prometheus) -> dict[str, Any]:
    options = ["--from-metrics", server.url, "--pool", "chat", "-n", "team-a", "--window", "1h", "-o", "json"]
    done = CliRunner().invoke(main, ["plan", *options])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def served(board: Board) -> Iterator[str]:
    """Its page, by a loop in a thread of its own; its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        runner = asyncio.run_coroutine_threadsafe(page.serve(board, 0), loop).result(30)
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_in_a_browser_the_page_shows_each_member_and_what_all_have_measured(lively: Lively, tmp_path: Path) -> None:
    board = Board()
    for node in lively.nodes:
        node.until_told()
    members = [Member(node.replica.name, node.replica.member, status=node.status()) for node in lively.nodes]
    status = pool_status("chat", 1, Observed(members), None, "2026-01-01T00:00:00Z")
    board.saw(("team-a", "chat"), status, members)
    with served(board) as address:
        listed = Elements(page_in_browser(f"{address}/", tmp_path))
        found = Elements(page_in_browser(f"{address}/team-a/chat", tmp_path))
    assert listed.tables[0][1][:4] == ["team-a/chat", "Ready", "3/3", "1/3"]
    _, shown, first_token, places, *_, benefit = found.tables
    assert [(row[0], row[1], row[3:6]) for row in shown[1:]] == [
        ("a", "Ready(degraded)", ["0%", "0%", "100%"]),
        ("b", "Ready(degraded)", ["0%", "60%", "40%"]),
        ("c", "Ready(warm)", ["-", "-", "-"]),
    ]
    assert shown[3][2].startswith(f" 100% of {lively.hot} blocks, ")
    assert {row[0]: row[2] for row in first_token[1:]} == {"cold": "5", "local": "0", "remote": "3", "fallback": "0"}
    assert places[1:] == [["peer", "0", str(LOADED)]]
    assert [row[0] for row in benefit[1:3]] == ["saved", "loading"]
    assert float(benefit[1][1].removesuffix(" s")) > 0
    assert "svg" in found.tags and "progress" in found.tags
