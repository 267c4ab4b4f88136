"""No deadline hangs on the wall clock, which jumps: all waiting is by the monotonic one."""

import ast
from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "agent"
# what says at what time of the day something happened, for people; whether a certificate is valid; and how long ago an
# agent that is no more left a hot list behind, which a clock that jumps makes hotter or colder and nothing else
BY_THE_WALL = {
    "kvpool_contract/status.py",
    "kvpool_agent/identity/credentials.py",
    "kvpool_agent/store/external/tier.py",
}
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}


def test_the_wall_clock_is_read_for_what_is_compared_across_lives_and_machines_alone() -> None:
    readers = {
        path.relative_to(AGENT).as_posix()
        for path in AGENT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL
    }
    assert readers == BY_THE_WALL
