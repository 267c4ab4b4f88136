"""What the probe says before and between its steps; how it runs is in tests/e2e/agent/test_probe.py."""

import time
from typing import Any

import pytest

from kvpool_agent.account import Account
from kvpool_agent.flows.probe import FIRST_TOKEN, SETTLED, TOKENS, ProbeFlow, prompt
from kvpool_contract.reasons import REASONS


def flow(*before: str) -> ProbeFlow:
    nobody: Any = None
    return ProbeFlow(1, nobody, nobody, Account(), lambda: None, before or ("", ""))  # type: ignore[arg-type]


def test_an_engine_that_an_earlier_worker_refused_is_refused_and_another_one_is_not() -> None:
    probe = flow("engine", "mismatch")
    assert (probe.refuses("engine"), probe.refuses("another")) == (True, False)
    assert probe.before_load(time.monotonic()) == "probe_mismatch"
    assert probe.withdrawn
    assert probe.verdict() == ("engine", "mismatch")


@pytest.mark.parametrize("state", ["", "pending", "nonsense"])
def test_what_is_no_verdict_is_not_taken_over(state: str) -> None:
    probe = flow("engine", state)
    assert probe.verdict() == ("", "")
    assert probe.before_load(time.monotonic()) == ""
    assert not probe.refuses("engine")


@pytest.mark.parametrize("state", sorted(set(SETTLED) - {"mismatch"}))
def test_with_any_other_verdict_blocks_are_loaded_and_published_at_once(state: str) -> None:
    probe = flow("engine", state)
    published: list[bool] = []
    probe.when_settled(published.append)
    assert (probe.before_load(time.monotonic()), published) == ("", [True])


def test_the_prompt_is_the_same_for_everybody_and_ends_beyond_its_block() -> None:
    assert prompt(4) == [300, 331, 424, 579, 796]
    long = prompt(256)
    assert len(long) == 257
    assert all(FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS for token in long)


def test_its_reasons_are_in_the_table() -> None:
    assert {"probe_mismatch", "probe_pending", "probe_not_run"} <= REASONS.keys()
