"""The fidelity canary: at a bounded rate a hit on other replicas' blocks is computed as well, and both are compared.

A tag shows that bytes are as they were when their sender made it, not that it computed them from the prompt. So of one
request in an interval that has loaded all that was promised, the beginning of its prompt is asked of the engine's own
HTTP port three times, one token each: as it is, which goes on from the loaded blocks in the engine's caches; under a
salt that nobody has, which is computed; and under that salt again, which goes on from what was just computed here. The
engine's client says what of each was in its caches; where that is another thing, the comparison says nothing.

Beyond the tolerance (kvpool_agent.policy.fidelity), in two comparisons one after the other, the members that these
blocks came from are distrusted, and what came from them is dropped. The prompt is kept in memory until it has been
compared, and nowhere else.
"""

import http.client
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvpool_agent.account import Account
from kvpool_agent.directory.distrust import Distrust
from kvpool_agent.flows.engine_http import complete, marked, metrics
from kvpool_agent.flows.request import Request, beginning
from kvpool_agent.policy.fidelity import LIKELIEST, Chances, Verdict, judge
from kvpool_agent.store.slab import Slab
from kvpool_client.samples import unpacked
from kvpool_contract.canary import Canary
from kvpool_contract.config import AgentConfig
from kvpool_contract.external import STORE

log = logging.getLogger("kvpool.canary")

SAME, DIFFERS, INCONCLUSIVE, NOT_RUN = "same", "differs", "inconclusive", "not_run"
MAX_TOKENS = 8192  # of a prompt that are computed for a comparison
ROUNDS = 2  # comparisons that must find a difference
ANSWER_SECONDS = 60.0
HELD_SECONDS = 5.0  # from the engine's answer to what its client says of it
QUEUE_SECONDS, QUEUE_PAUSE_SECONDS = 30.0, 0.5  # that a comparison waits for an engine without a queue
_WAITING = re.compile(r"^vllm:num_requests_waiting(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class _NotRun(Exception):  # noqa: N818 - an answer, not a fault
    """The engine's port gives no answer that could be compared, for this reason."""


class _Inconclusive(Exception):  # noqa: N818
    """The answers are not those that were to be compared."""


@dataclass(frozen=True)
class _Wanted:
    """A prompt that was asked for: by which client's plan, how many tokens of it, and the members at these addresses
    that its blocks came from."""

    session: object
    plan: int
    tokens: int
    givers: dict[str, str]


class CanaryFlow:
    """Any thread may call. Counts `canary_same`, `canary_differs`, `canary_inconclusive` and `canary_not_run`."""

    def __init__(
        self,
        config: Callable[[], AgentConfig],
        slabs: Callable[[], Sequence[Slab]],
        distrust: Distrust,
        account: Account,
    ) -> None:
        """config: the one in force. slabs: those that there are now."""
        self._config, self._slabs, self._distrust, self._account = config, slabs, distrust, account
        self._changed = threading.Condition()
        self._due = 0.0
        self._wanted: _Wanted | None = None
        self._running = False
        self._mark = ""  # of the request that is under way
        self._held: int | None = None  # what the client has said of it
        self._counts = dict.fromkeys((SAME, DIFFERS, INCONCLUSIVE, NOT_RUN), 0)
        self._state = self._detail = ""
        self._last: Verdict | None = None

    # -- the engine's session ------------------------------------------------------------------------

    def wants(self, session: object, plan: int, slab: Slab, request: Request, hits: Sequence[Sequence[int]]) -> int:
        """How many of the first tokens of this request's prompt shall be told when it ends; 0 for none. hits: the
        blocks from which it goes on, as its plan says."""
        seconds, now = self._config().canary.intervalSeconds, time.monotonic()
        if seconds <= 0 or now < self._due or slab.number:
            return 0
        tokens, keys = beginning(request, hits, MAX_TOKENS)
        with self._changed:
            if self._running or now < self._due:
                return 0
            addresses = self._account.givers(keys)
            givers = {address: self._distrust.member_at(address) for address in addresses}
            # with blocks of a store, or of somebody who is gone, among them nobody could be told to be the cause
            if not givers or STORE in givers or not all(givers.values()):
                return 0
            self._due = now + seconds
            self._wanted = _Wanted(session, plan, tokens, givers)
            return tokens

    def take(self, session: object, plan: int, data: bytes) -> None:
        """The prompt that was asked for. Raises ValueError where it is none."""
        tokens = unpacked(data)
        with self._changed:
            wanted = self._wanted
            if wanted is None or (wanted.session, wanted.plan) != (session, plan) or len(tokens) != wanted.tokens:
                return
            self._wanted, self._running = None, True
        try:
            threading.Thread(target=self._run, args=(wanted, tokens), name="kvpool-canary", daemon=True).start()
        except RuntimeError:  # the container has no thread left
            self._end(wanted, INCONCLUSIVE, "the agent had no thread left", None)

    def held(self, mark: str, tokens: int) -> None:
        """So many tokens of the request with this mark were in the engine's caches; -1: its client can't tell."""
        with self._changed:
            if mark and mark == self._mark:
                self._held = tokens
                self._changed.notify_all()

    def snapshot(self) -> Canary:
        with self._changed:
            last, counts = self._last, self._counts
            return Canary(
                self._state, self._detail, counts[SAME], counts[DIFFERS], counts[INCONCLUSIVE], counts[NOT_RUN],
                last.variation if last is not None else 0.0, last.noise if last is not None else 0.0,
                self._distrust.members,
            )  # fmt: skip

    # -- one comparison ------------------------------------------------------------------------------

    def _run(self, wanted: _Wanted, tokens: list[int]) -> None:
        verdict, state, detail = None, SAME, ""
        try:
            for _ in range(ROUNDS):
                verdict = self._compare(tokens)
                if not verdict.differs:
                    break
            else:
                state = DIFFERS
        except _Inconclusive as found:
            state, detail = INCONCLUSIVE, str(found)
        except _NotRun as found:
            state, detail = NOT_RUN, str(found)
        except Exception:
            log.exception("the canary failed")
            state, detail = INCONCLUSIVE, "it failed, see the agent's log"
        finally:
            self._end(wanted, state, detail, verdict)

    def _end(self, wanted: _Wanted, state: str, detail: str, verdict: Verdict | None) -> None:
        with self._changed:
            told = (state, detail) != (self._state, self._detail)
            self._running, self._mark = False, ""
            self._state, self._detail = state, detail
            self._counts[state] += 1
            if state in (SAME, DIFFERS):
                self._last = verdict
        self._account.count(f"canary_{state}")
        if state == DIFFERS and verdict is not None:
            self._stop_loading(wanted, verdict)
        elif told:
            log.info("canary: %s %s", state, detail)

    def _stop_loading(self, wanted: _Wanted, verdict: Verdict) -> None:
        members = sorted(set(wanted.givers.values()))
        self._distrust.add(members)
        keys = self._account.given_by(wanted.givers)
        for slab in self._slabs():
            for key in keys:
                slab.arena.drop(key)
        log.error(
            "blocks of %s make this engine answer otherwise than computing does (total variation %.2g, its own noise "
            "%.2g); nothing is loaded from there any more", ", ".join(members), verdict.variation, verdict.noise,
        )  # fmt: skip
        self._account.event(
            "canary_differs",
            members=", ".join(members),
            variation=round(verdict.variation, 6),
            noise=round(verdict.noise, 6),
        )

    def _compare(self, tokens: list[int]) -> Verdict:
        """Raises _Inconclusive and _NotRun."""
        size, salt = len(tokens), secrets.token_hex(16)
        prompt = [*tokens, tokens[0]]  # one is computed in any case
        hit = self._ask(prompt, "", size)
        computed = self._ask(prompt, salt, 0)
        return judge(hit, computed, self._ask(prompt, salt, size))

    def _ask(self, prompt: list[int], salt: str, expected: int) -> Chances:
        """The likeliest next tokens, of a request of which the engine holds so many tokens."""
        mark = secrets.token_hex(8)
        with self._changed:
            self._mark, self._held = mark, None
        body = {
            "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": LIKELIEST,
            "return_tokens_as_token_ids": True, "kv_transfer_params": marked(mark),
            **({"cache_salt": salt} if salt else {}),
        }  # fmt: skip
        port = self._config().engine.port
        try:
            self._until_no_queue(port)
            status, answer = complete(port, body, ANSWER_SECONDS)
        except (OSError, http.client.HTTPException) as error:
            raise _NotRun(f"no answer on the engine's port: {error}") from None
        if status != http.client.OK:
            raise _NotRun(f"the engine's port answered {status}")
        with self._changed:
            self._changed.wait_for(lambda: self._held is not None, timeout=HELD_SECONDS)
            held = self._held
        if held is None or held < 0:
            raise _Inconclusive("the engine's client did not say what its caches held")
        if held != expected:
            raise _Inconclusive(f"{held} tokens were in the engine's caches, not {expected}")
        return chances_of(answer)

    def _until_no_queue(self, port: int) -> None:
        until = time.monotonic() + QUEUE_SECONDS
        while waiting(metrics(port, ANSWER_SECONDS)):
            if time.monotonic() >= until:
                raise _Inconclusive("the engine had a queue all the time")
            time.sleep(QUEUE_PAUSE_SECONDS)


def waiting(page: str) -> bool:
    """Whether an engine's page of metrics says that requests wait."""
    return any(float(count) > 0 for count in _WAITING.findall(page))


def chances_of(answer: bytes) -> Chances:
    """The log-probabilities of the first token that was generated. Raises _NotRun where there are none."""
    try:
        found: Any = json.loads(answer)["choices"][0]["logprobs"]["top_logprobs"][0]
        chances = {str(token): float(log_probability) for token, log_probability in found.items()}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        chances = {}
    if not chances:
        raise _NotRun("the engine's answer has no log-probabilities")
    return chances
