"""How often the controller looks after the webhook's certificates."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from kvpool_operator.certificates import apply
from kvpool_operator.certificates.apply import Outcome
from kvpool_operator.certificates.plan import Settings
from kvpool_operator.controller.certificates import keep, log

NOW = datetime.now(UTC)


class EndError(Exception):
    """Nothing more is scripted."""


def test_a_webhook_that_is_not_registered_yet_is_trusted_soon_after_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent, there = (Outcome((), registered, NOW, NOW, NOW) for registered in (False, True))
    script: list[Any] = [absent, absent, ApiException(status=500), absent, there, there, RuntimeError("ours"), absent]
    pauses, told = list[float](), list[str]()

    def reconcile(*_: Any) -> Outcome:
        found = script.pop(0)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Outcome)
        return found

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not script:
            raise EndError

    monkeypatch.setattr(apply, "reconcile", reconcile)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(log, "warning", lambda text, *_: told.append(text[:8]))
    with pytest.raises(EndError):
        asyncio.run(keep(None, Settings("n", "s", "w")))  # type: ignore[arg-type]
    assert pauses == [5, 5, 5, 5, 60, 60, 60, 5]
    assert told == ["there is", "the webh", "there is"]
