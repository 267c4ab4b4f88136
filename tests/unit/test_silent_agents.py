"""Agents that are silent, however many, keep no place of those that answer."""

import asyncio

import pytest

from kvpool_contract.status import AgentStatus, StatusError
from kvpool_operator.controller import agents as agents_module
from kvpool_operator.controller.agents import Agents
from kvpool_operator.desired.pods import Pod

SECONDS = 20.0


def pod(name: str) -> Pod:
    return Pod(name, f"{name}-uid", "10.0.0.1", injected=True, expected=True)


@pytest.mark.parametrize("known", [True, False])
def test_pools_of_silent_agents_do_not_hold_up_one_whose_agents_answer(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """known: they were silent before; the first time they take places like everybody."""
    monkeypatch.setattr(agents_module, "PARALLEL", 4)
    silent, good = [pod(f"silent{n}") for n in range(8)], pod("good")

    async def get(self: Agents, asked_pod: Pod) -> AgentStatus:
        if asked_pod is good:
            raise StatusError("it has answered, in its way")
        await asyncio.sleep(SECONDS)
        raise AssertionError("nobody waits so long")

    async def scenario() -> tuple[str, bool]:
        monkeypatch.setattr(Agents, "_get", get)
        asking = Agents()
        if known:
            monkeypatch.setattr(agents_module, "ASK_SECONDS", 0.2)
            await asyncio.gather(*(asking.ask([one]) for one in silent))
        monkeypatch.setattr(agents_module, "ASK_SECONDS", 1.0)
        others = [asyncio.ensure_future(asking.ask([one])) for one in silent]
        await asyncio.sleep(0.05)
        (member,) = await asking.ask([good])
        over = all(one.done() for one in others)
        await asyncio.gather(*others)
        return member.error, over

    error, over = asyncio.run(scenario())
    assert over == (not known)  # else it had to wait for them
    if known:
        assert error == "it has answered, in its way"
