"""The pools' page: what agents say, escaped, with the figures added up; it answers at this machine alone."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from agent_status import agent
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from html_tables import Elements

from kvpool_contract.status import Arena, Benefit, Hits, Quantiles, Warm
from kvpool_operator.controller import page
from kvpool_operator.controller.board import MOMENTS, Board
from kvpool_operator.desired.status import Member, Observed, pool_status
from kvpool_operator.view.pool import Moment, Seen, pool_list, pool_page

HOSTILE = "<script src=//x></script>\" onload='x' &"
MIB = 1 << 20


def two_members() -> list[Member]:
    first = agent(
        hits=Hits(10, 20, 30, {"device": 5, "host": 15}, {"peer": 30}),
        warm=Warm(8, 6, 3 * MIB, 1.5),
        arena=Arena(limit_bytes=8 * MIB, used_bytes=3 * MIB),
        misses={"never_published": 9, "busy": 1},
        first_token={"": {"cold": Quantiles(0.2, 0.4, 0.8, 12), "remote": Quantiles(0.01, 0.02, 0.05, 30)}},
        benefit=Benefit(waiting=4.0, gpu=3.0, loads=25, saved=6.0, loading=1.5, written=0.5),
    )
    second = agent(
        state="Warming",
        hits=Hits(computed_blocks=4),
        misses={"never_published": 4},
        first_token={"": {"cold": Quantiles(0.1, 0.5, 0.9, 3), "fallback": Quantiles(1.0, 2.0, 3.0, 1)}},
        benefit=Benefit(waiting=-6.0, gpu=-1.0, waited=6.0),
    )
    return [Member("b", "2", status=second), Member("a", "1", status=first), Member("c", "3", error="no connection")]


def seen(members: list[Member], *moments: Moment) -> Seen:
    status = pool_status("chat", 1, Observed(members), None, "2026-01-01T00:00:00Z")
    return Seen(100.0, status, members, moments)


def test_the_figures_are_those_of_the_agents_each_and_added_up() -> None:
    found = Elements(pool_page("team-a", "chat", seen(two_members()), 107.0))
    conditions, members, first_token, places, misses, benefit = found.tables
    assert [row[:3] for row in conditions if row[0] == "AgentsReady"] == [["AgentsReady", "False", "AgentsUnreachable"]]
    assert [row[:8] for row in members[1:]] == [
        ["a", "Ready(warm)", " 75% of 8 blocks, 3.0 MiB in 1.5 s", "33%", "50%", "17%", "3.0 MiB/8.0 MiB", "ffffffff"],
        ["b", "Warming", "-", "0%", "0%", "100%", "0 B/0 B", "ffffffff"],
        ["c", *["-"] * 7],
    ]
    assert members[3][8].startswith("agent_unreachable: ") and members[3][8].endswith(" (no connection)")
    assert [[row[0], *row[2:]] for row in first_token[1:]] == [
        ["cold", "15", "100 ms", "400 ms to 500 ms", "900 ms"],
        ["local", "0", "-", "-", "-"],
        ["remote", "30", "10 ms", "20 ms", "50 ms"],
        ["fallback", "1", "1 s", "2 s", "3 s"],
    ]
    assert places[1:] == [["device", "5", "0"], ["host", "15", "0"], ["peer", "0", "30"]]
    assert [row[:3] for row in misses[1:]] == [["never_published", "13", "93%"], ["busy", "1", "7%"]]
    assert {row[0]: row[1] for row in benefit[1:]} == {
        "saved": "+6.0 s", "loading": "+1.5 s", "waited": "+6.0 s", "stalled": "+0.0 s", "written": "+0.5 s",
        "displaced": "+0.0 s", "waiting": "-2.0 s", "gpu": "+2.0 s",
    }  # fmt: skip


def test_charts_show_what_was_measured_on_one_scale_and_the_benefit_over_time() -> None:
    moments = [Moment(60.0 * n, waiting, gpu) for n, (waiting, gpu) in enumerate([(0.0, 0.0), (10.0, 5.0), (-10.0, 0)])]
    text = pool_page("team-a", "chat", seen(two_members(), *moments), 107.0)
    # from 10 ms to 10 s over 610 units from 90 on: 0.1 s at a third, 0.9 s shortly before two thirds
    assert '<rect x="293.3" y="5" width="194.1" height="16" class="span"></rect>' in text
    assert [text.count(f'x1="{x}" x2="{x}" y1="3"') for x in ("415.8", "435.5")] == [1, 1]  # medians of 0.4 and 0.5 s
    assert 'points="90.0,80.0 405.0,10.0 720.0,150.0"' in text
    assert 'points="90.0,80.0 405.0,45.0 720.0,80.0"' in text
    assert "00:00 UTC" in text and "00:02 UTC" in text
    assert "polyline" not in pool_page("team-a", "chat", seen(two_members(), moments[0]), 107.0).partition("<body>")[2]


def test_nothing_that_an_agent_or_a_pool_says_is_more_than_text() -> None:
    said = agent(
        state=HOSTILE,
        reason=HOSTILE,
        format=HOSTILE,
        hits=Hits(1, 1, 0, {HOSTILE: 1}),
        misses={HOSTILE: 1},
        first_token={HOSTILE: {"cold": Quantiles(1e-9, -1.0, 1e300, 1), HOSTILE: Quantiles(1, 1, 1, 1)}},
        benefit=Benefit(waiting=1e308, gpu=-1e308, loads=1),
    )
    members = [Member(HOSTILE, "1", status=said), Member("c", "3", error=HOSTILE), Member("d", "4", injected=False)]
    status = {"phase": HOSTILE, "conditions": [{"type": HOSTILE, "status": HOSTILE, "message": HOSTILE}]}
    whole = Seen(0.0, status, members, (Moment(0.0, 1e308, -1e308), Moment(60.0, -1e308, 1e308)))
    clean = Elements(pool_page("team-a", "chat", seen(two_members(), Moment(0, 0, 0), Moment(60, 1, 1)), 1.0))
    text = pool_page(HOSTILE, HOSTILE, whole, 1.0)
    found = Elements(text)
    assert found.tags <= clean.tags | {"h3"} and "script" not in found.tags
    assert found.attributes <= clean.attributes
    assert HOSTILE in [cell for row in found.tables[1] for cell in row]
    assert "<script" not in text + pool_list({(HOSTILE, HOSTILE): whole}, 1.0)


def test_a_pool_of_which_nothing_is_known_yet_has_a_page_that_says_so() -> None:
    found = pool_page("team-a", "chat", seen([]), 100.0)
    for sentence in (
        "No pod has the pool's label.", "No request's first token was measured yet.", "0 blocks were computed.",
        "No block was looked up in vain.", "No request has loaded from another replica yet.",
    ):  # fmt: skip
        assert sentence.replace("'", "&#x27;") in found
    assert "No pool was seen yet." in pool_list({}, 0.0)
    assert Elements(pool_list({("team-a", "chat"): seen([])}, 130.0)).tables[0][1] == [
        "team-a/chat", "Pending", "0/0", "0/0", "-", "30 s ago",
    ]  # fmt: skip


def test_of_the_benefit_a_point_a_minute_is_kept_for_six_hours_and_nothing_of_a_pool_that_is_gone() -> None:
    now = 0.0
    board, key = Board(lambda: now), ("team-a", "chat")
    for now in (0.0, 10.0, 59.0, 60.0, 70.0):  # noqa: B007 - the board's clock reads it
        board.saw(key, {}, two_members())
    assert board.pools[key].at == 70.0
    assert board.pools[key].moments == (Moment(0.0, -2.0, 2.0), Moment(60.0, -2.0, 2.0))
    for minute in range(2, 3 + MOMENTS):
        now = 60.0 * minute
        board.saw(key, {}, two_members())
    assert [m.at for m in board.pools[key].moments] == [60.0 * n for n in range(3, 3 + MOMENTS)]
    board.forget(key)
    assert not board.pools
    board.saw(key, {}, [])
    assert len(board.pools[key].moments) == 1


@pytest.fixture
def board() -> Board:
    made = Board(lambda: 100.0)
    made.saw(("team-a", "chat"), seen([]).status, [])
    return made


Asked = tuple[str, str, dict[str, str]]  # method, path, headers


def answers(board: Board, *asked: Asked) -> list[tuple[int, str, Any]]:
    async def ask() -> list[tuple[int, str, Any]]:
        found = []
        async with TestClient(TestServer(page.application(board, lambda: 101.0))) as client:
            for method, path, headers in asked:
                async with client.request(method, path, headers=headers) as answer:
                    found.append((answer.status, await answer.text(), answer.headers))
        return found

    return asyncio.run(ask())


def test_it_is_read_only_and_has_neither_scripts_nor_anything_from_elsewhere(board: Board) -> None:
    asked = [("GET", "/", {}), ("GET", "/team-a/chat", {}), ("GET", "/team-a/other", {}), ("POST", "/team-a/chat", {})]
    found = answers(board, *asked)
    assert [status for status, _, _ in found] == [200, 200, 404, 405]
    assert 'href="/team-a/chat"' in found[0][1] and "<h1>team-a/chat</h1>" in found[1][1]
    policy = found[1][2]["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';") and "script" not in policy
    assert found[1][2]["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8082", 200), ("127.0.0.1", 200), ("[::1]:8082", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("10.0.0.7:8082", 403), ("", 403),
    ],
)  # fmt: skip
def test_it_answers_to_no_name_but_this_machines(board: Board, host: str, status: int) -> None:
    ((found, text, _),) = answers(board, ("GET", "/team-a/chat", {"Host": host}))
    assert (found, "team-a" in text) == (status, status == 200)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((page.ADDRESS, 0)) as other:
        yield int(other.getsockname()[1])


def test_it_is_served_at_the_loopback_address_and_a_port_that_is_taken_costs_the_page_alone(
    board: Board, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def look() -> list[str]:
        nowhere = await page.serve(board, taken)
        runner = await page.serve(board, 0)
        try:
            addresses = [str(address[0]) for address in runner.addresses]
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as answer:
                assert answer.status == 200
            return addresses
        finally:
            await runner.cleanup()
            await nowhere.cleanup()

    assert asyncio.run(look()) == ["127.0.0.1"]
    assert "there is no page: " in caplog.text
