"""When vLLM's requests begin and have their first token, seen from its connector.

Its scheduler tells the connector of each new request, of each step that it has put together, and of each step whose
results are in. With asynchronous scheduling the next step is put together before those of the last one are there, so
moments of scheduling say nothing of how long a step took: a first token is one that the request has, when results come.
Only requests between their first step and that are looked at, a few at any time.
"""

import collections
import logging
import time
from typing import Any

from kvpool_client.timing import Timings

log = logging.getLogger("kvpool.client")

STEPS_UNDER_WAY = 4  # at most: an engine puts one or two together before it has the results of the last


class Prefills:
    """Called on the scheduler's thread, where an exception would end the engine: after one it does nothing more."""

    def __init__(self, timings: Timings) -> None:
        self._timings: Timings | None = timings
        self._waiting: dict[str, Any] = {}  # requests, by their names there
        self._computing: dict[str, Any] = {}
        self._steps: collections.deque[tuple[float, int, str]] = collections.deque(maxlen=STEPS_UNDER_WAY)
        self._unsure = 0  # steps whose results can't be told from those of others
        self._last_results = 0.0

    def new(self, request: Any) -> None:
        """A request has come."""
        if self._timings is not None:
            self._waiting[request.request_id] = request

    def looked_at(self, request: Any, device_tokens: int) -> None:
        """The scheduler asks what can be loaded beyond these tokens, which the device holds."""
        if self._timings is not None and request.request_id in self._waiting:
            self._timings.on_device(request.request_id, device_tokens)

    def scheduled(self, step: Any) -> None:
        """A step was put together."""
        timings = self._timings
        if timings is None:
            return
        try:
            now = time.monotonic()
            self._begins(step, now, timings.beside())
            for new in step.scheduled_new_reqs:
                request = self._waiting.pop(new.req_id, None)
                if request is not None:
                    timings.began(new.req_id, new.num_computed_tokens, request.num_prompt_tokens, now)
                    self._computing[new.req_id] = request
            for name in step.finished_req_ids or ():
                self._waiting.pop(name, None)
                self._computing.pop(name, None)
        except Exception:  # noqa: BLE001 - see the class's docstring
            self._give_up()

    def results(self) -> None:
        """The results of a step are in."""
        timings = self._timings
        if timings is None:
            return
        try:
            now = time.monotonic()
            self._ended(timings, now)
            for name, request in list(self._computing.items()):
                if request.num_preemptions:
                    timings.drop(name)
                elif request.num_output_tokens:
                    timings.first_token(name, now)
                else:
                    continue
                del self._computing[name]
        except Exception:  # noqa: BLE001 - see the class's docstring
            self._give_up()

    def _begins(self, step: Any, now: float, beside: str) -> None:
        requests = len(step.num_scheduled_tokens)
        if not requests:  # the engine may or may not tell of its results
            self._steps.clear()
            self._unsure = STEPS_UNDER_WAY
            return
        decodes = step.total_num_scheduled_tokens == requests and not step.scheduled_new_reqs
        self._steps.append((now, requests if decodes else 0, beside))

    def _ended(self, timings: Timings, now: float) -> None:
        """A step is over. One that was put together before the last one was over began when that was."""
        last, self._last_results = self._last_results, now
        if not self._steps:
            return
        began, requests, beside = self._steps.popleft()
        if self._unsure:
            self._unsure -= 1
        elif requests:
            timings.decoded(requests, beside or timings.beside(), now - max(began, last))

    def _give_up(self) -> None:
        log.exception("kvpool: what requests cost can't be seen in this engine")
        self._timings = None
        self._waiting.clear()
        self._computing.clear()
