"""Calibration: what computing costs a new engine is known before its first request.

Costs come from requests (kvpool_agent.costs), so without it the first ones of an engine would be loaded whatever that
costs. Once its probe has settled and before the member turns ready, the engine is asked over its own HTTP port for one
token after prompts of growing length, each under a salt that nobody has, so that none is found in a cache. They bear a
canary's mark: its client loads, stores and counts nothing of them. Measured is the time until the answer; what of it
does not grow with the prompt is no cost of a token (kvpool_agent.policy.recompute). All lengths come twice: by the
second round the fit is there of which single measurements are told how far they are off.

It ends at its deadline, at the first request of anybody else, and where the engine does not answer. The pod is held
back for no longer than that.
"""

import contextlib
import http.client
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable

from kvpool_agent.account import Account
from kvpool_agent.costs import Costs
from kvpool_agent.flows.engine_http import complete, marked
from kvpool_agent.flows.probe import ProbeFlow, prompt
from kvpool_agent.flows.ready import ReadyFlow
from kvpool_agent.policy.admission import MEASURED
from kvpool_contract.calibration import Calibrated
from kvpool_contract.config import AgentConfig

log = logging.getLogger("kvpool.calibrate")

COMPLETE, TRAFFIC, DEADLINE, NO_ANSWER = "complete", "traffic", "deadline", "no_answer"
# tokens; with the one that is generated a power of two, at which models end
LENGTHS: tuple[int, ...] = (127, 511, 2047, 8191)
ROUNDS = 2
TOO_LONG = (400, 413, 422)  # HTTP statuses by which an engine refuses a prompt beyond its length
LOOK_SECONDS = 0.05


class _Ended(Exception):  # noqa: N818 - an answer, not a fault
    """Nothing more is asked, by this word and detail."""

    def __init__(self, word: str, detail: str = "") -> None:
        super().__init__(word)
        self.word, self.detail = word, detail


class Calibration:
    """One for the life of a worker. Any thread may call."""

    def __init__(
        self,
        port: int,
        healthy: Callable[[], bool],
        probe: ProbeFlow,
        costs: Costs,
        ready: ReadyFlow,
        account: Account,
    ) -> None:
        """port: of the engine's HTTP server on the loopback address; healthy: whether it has answered. ready: is held
        back meanwhile."""
        self._port, self._healthy = port, healthy
        self._probe, self._costs, self._ready, self._account = probe, costs, ready, account
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._socket: socket.socket | None = None  # of the prompt that is being computed
        self._told = Calibrated()
        self._running = False

    def begin(self, config: AgentConfig) -> None:
        """The first engine has attached. Nothing is asked where the configuration wants none or has no use for it, nor
        in a pod that is ready."""
        seconds = config.loading.calibrationSeconds
        if seconds <= 0 or config.loading.mode != MEASURED or config.paused or self._ready.ready:
            return
        until = time.monotonic() + seconds
        self._ready.change(lambda readiness: readiness.hold())
        self._running = True
        try:
            threading.Thread(target=self._run, args=(until,), name="kvpool-calibrate", daemon=True).start()
        except RuntimeError:  # the container has no thread left
            self._end(_Ended(NO_ANSWER, "the agent had no thread left"))

    def requested(self) -> None:
        """A request has come that is not the agent's own."""
        if self._requested.is_set():
            return
        with self._lock:
            self._requested.set()
            self._break_off()

    @property
    def running(self) -> bool:
        """Whether it has to hear of the first request, also of one that can't load anything."""
        return self._running

    def snapshot(self) -> Calibrated:
        with self._lock:
            return self._told

    # -- its thread ----------------------------------------------------------------------------------

    def _run(self, until: float) -> None:
        try:
            self._until_probed(until)
            self._measure(until)
            ended = _Ended(COMPLETE)
        except _Ended as found:
            ended = found
        except Exception:
            log.exception("the calibration failed")
            ended = _Ended(NO_ANSWER, "it failed, see the agent's log")
        self._end(ended)

    def _end(self, ended: _Ended) -> None:
        with self._lock:
            told = self._told = Calibrated(self._told.prompts, self._told.seconds, ended.word, ended.detail)
        log.info("calibration: %s %s, %d prompts in %.2f s", ended.word, ended.detail, told.prompts, told.seconds)
        self._account.event("calibrated", ended_by=told.ended_by, prompts=told.prompts, seconds=round(told.seconds, 3))
        self._ready.change(lambda readiness: readiness.let_go(time.monotonic()))
        self._running = False

    def _until_probed(self, until: float) -> None:
        """The engine answers; its first request of all, for which it may compile what it needs, is over. Raises
        _Ended."""
        while not (self._probe.settled and self._healthy()):
            self._until_ready()
            left = until - time.monotonic()
            if left <= 0:
                raise _Ended(DEADLINE, "the engine did not answer on its port before")
            if self._requested.wait(min(LOOK_SECONDS, left)):
                raise _Ended(TRAFFIC)

    def _until_ready(self) -> None:
        """Raises _Ended where the pod did not wait: its engine turned out to be another one, its deadline has passed,
        or the pool is paused."""
        if self._ready.ready:
            raise _Ended(DEADLINE, "the pod turned ready before")

    def _measure(self, until: float) -> None:
        """Raises _Ended."""
        began, lengths = time.monotonic(), LENGTHS
        for _ in range(ROUNDS):
            for place, tokens in enumerate(lengths):
                asked = time.monotonic()
                status = self._ask(tokens, until - asked)
                now = time.monotonic()
                if status in TOO_LONG and place:
                    lengths = lengths[:place]
                    break
                if status != http.client.OK:
                    raise _Ended(NO_ANSWER, f"the engine's port answered {status}")
                self._costs.calibrated(tokens, now - asked)
                self._account.count("calibration_prompts")
                with self._lock:
                    self._told = Calibrated(self._told.prompts + 1, now - began)

    def _ask(self, tokens: int, seconds: float) -> int:
        """The HTTP status of the answer to a prompt of so many tokens, beside which nobody asked. Raises _Ended."""
        self._until_ready()
        if seconds <= 0:
            raise _Ended(DEADLINE)
        body = {
            "prompt": prompt(tokens - 1),
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": secrets.token_hex(16),
            "kv_transfer_params": marked(secrets.token_hex(8)),
        }
        status, failed = 0, None
        try:
            status, _ = complete(self._port, body, seconds, self._asking)
        except (OSError, http.client.HTTPException) as error:
            failed = error
        with self._lock:
            self._socket = None
        if self._requested.is_set():
            raise _Ended(TRAFFIC)
        if isinstance(failed, TimeoutError):
            raise _Ended(DEADLINE)
        if failed is not None:
            raise _Ended(NO_ANSWER, f"no answer on the engine's port: {failed}")
        return status

    def _asking(self, connected: socket.socket) -> None:
        """By which connection the prompt goes that is asked for now."""
        with self._lock:
            self._socket = connected
            if self._requested.is_set():
                self._break_off()

    def _break_off(self) -> None:
        """An engine gives up a request whose connection ends."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it was answered a moment ago
                self._socket.shutdown(socket.SHUT_RDWR)
