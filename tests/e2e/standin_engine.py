"""The one stand-in engine of all suites: kvpool's real client under a scheduler of two hundred lines.

Its models have one group with full attention, or several groups with windows or states among them: it looks for the
longest boundary as vLLM's connector does, group by group and again, and loads what these need there. It drives the same
SchedulerSide that the engine's adapter drives, with a memory file as host pool, blocks of a few KiB, and bytes that
follow from the prompt: what is loaded is compared with what would have been computed, byte by byte. Over HTTP it has
what an agent reads of an engine: health and metrics.
"""

import collections
import itertools
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from standin_http import serve_http
from standin_model import (  # noqa: F401 - the suites have them from here
    BLOCK_TOKENS,
    FULL_ATTENTION,
    HASH_BYTES,
    HYBRID,
    KEY_BYTES,
    RECURRENT,
    Job,
    Request,
    Served,
    block_bytes,
    engine_keys,
    hash_fields,
    is_canary,
    last_boundary,
    likeliest,
    metrics_text,
    prompt,
    window_blocks,
)

from kvpool_client.groups import FULL, Group, reference, to_header
from kvpool_client.ledger import Result
from kvpool_client.memory import address_of, reopen_read_only
from kvpool_client.plans import Answer
from kvpool_client.scheduler_side import STORE_SECONDS, HostPool, SchedulerSide

STEP_SECONDS = 0.002
NO_FIELDS: Mapping[str, Any] = {}
SERVE_SECONDS = 60.0

Preempt = Callable[[int], bool]


class StandInEngine:
    """`serve` may be called by one thread at a time, as a scheduler runs on one."""

    def __init__(
        self,
        path: str,
        *,
        row_bytes: int = 4096,
        rows: int = 256,
        port: int = 0,
        host: str = "127.0.0.1",
        model: str = "m",
        groups: Sequence[Group] = FULL_ATTENTION,
        store_seconds: float = STORE_SECONDS,
        probe: bool = False,
        layout: Callable[[bytes], bytes] = bytes,
        token_seconds: float = 0.0,
        fields: Mapping[str, Any] = NO_FIELDS,
        before_completion: Callable[[Mapping[str, Any]], object] = lambda _body: None,
    ) -> None:
        """probe: whether it has the HTTP endpoint that completes a prompt, as a real engine has. layout: how its rows
        differ from those of others of its format. token_seconds: what computing a token takes; 0: no time, and none is
        told. fields: of its format, beyond the usual ones. before_completion: gets each that comes over HTTP."""
        self.token_seconds = token_seconds
        self.groups = groups
        self._probe, self._layout, self._serving = probe, layout, threading.RLock()
        self._before_completion = before_completion
        self.row_bytes, self.rows = row_bytes, rows
        self._file = os.memfd_create("standin-host-pool", os.MFD_CLOEXEC)
        os.ftruncate(self._file, rows * row_bytes)
        self._map = mmap.mmap(self._file, rows * row_bytes)
        self._memory = memoryview(self._map)
        self._descriptor = reopen_read_only(self._file)
        self.attach_header = {
            "format": {
                "engine": "standin",
                "model": model,
                "row_bytes": row_bytes,
                "block_tokens": BLOCK_TOKENS,
                **fields,
            },
            "row_bytes": row_bytes,
            "rows": rows,
            "hash_bytes": HASH_BYTES,
            "groups": to_header(groups),
            "engine": secrets.token_hex(8),
        }
        pool = HostPool(rows, row_bytes, address_of(self._memory), self._descriptor)
        self.side = SchedulerSide(path, self.attach_header, pool, groups, store_seconds=store_seconds)
        self.session = self.side.session
        self._held: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._free = list(range(rows))
        self._coming: dict[bytes, int] = {}  # rows that promotions hold
        self._promotions: dict[str, tuple[Request, list[bytes]]] = {}  # of this step, by request
        self._loads: dict[int, Job] = {}
        self._from_pool: dict[bytes, Request] = {}
        self.promoted = 0  # rows that loads were given, whether or not they came
        self.withheld: set[bytes] = set()  # blocks that are never stored, as engines store windows sparsely
        self._jobs = self.requests = 0
        self._results: dict[int, Result] = {}
        self.tokens: collections.Counter[str] = collections.Counter()
        self._http = serve_http((host, port), self.metrics, self.complete)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def start(self) -> "StandInEngine":
        self.side.start()
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        self.side.shutdown()
        self._http.shutdown()
        self._http.server_close()
        self._memory.release()
        self._map.close()
        os.close(self._file)
        os.close(self._descriptor)

    def forget(self) -> None:
        """Empties the host pool, as if the engine had evicted everything."""
        self._held.clear()
        self._free = [row for row in range(self.rows) if row not in self._coming.values()]

    @property
    def loading(self) -> bool:
        """Whether promotions hold rows now."""
        return bool(self._coming)

    @property
    def rows_lost(self) -> int:
        """Rows of the host pool that nobody holds and nobody can take."""
        return self.rows - len(self._free) - len(self._held) - len(self._coming)

    def overwrite(self) -> None:
        """Makes every row another's, as an engine does with rows whose jobs have ended."""
        self._memory[:] = b"\xa5" * len(self._memory)

    # -- the scheduler -------------------------------------------------------------------------------

    def serve(self, tokens: Sequence[int]) -> Served:
        return self.serve_together([tokens])[0]

    def serve_together(self, prompts: Sequence[Sequence[int]], preempt: Preempt = lambda _step: False) -> list[Served]:
        """Takes all requests in before the first step; ends when all are answered and stored. `preempt(step)` is asked
        after each step whether the first of those that wait shall be preempted."""
        return self._serve([(tokens, "", None) for tokens in prompts], preempt)

    def knows(self, tokens: Sequence[int], salt: str = "") -> bool:
        """Whether it would look for the prompt, and does not take it for one that nobody knows."""
        (key, *_) = engine_keys(tokens, self.groups[reference(self.groups)], salt)
        return not self.side.heads.rule_out(key, time.monotonic())

    def complete(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """A completion that came over HTTP, from another thread: the fields of Served, and with `logprobs` the
        likeliest tokens; None where there is no such endpoint. With `known`, which no real engine takes, nothing is
        served: it says whether the prompt would be looked for, or is taken for one that nobody knows."""
        if body.get("known"):
            return {"known": self.knows(body["prompt"], body.get("cache_salt", ""))}
        asked = body["prompt"], body.get("cache_salt", ""), body.get("kv_transfer_params")
        if not self._probe:
            return None
        self._before_completion(body)
        with self._serving:
            said = asdict(self._serve([asked])[0])
            if body.get("logprobs"):
                said["choices"] = [{"logprobs": {"top_logprobs": [likeliest(body["prompt"], self._wrong(*asked[:2]))]}}]
            return said

    def _wrong(self, tokens: Sequence[int], salt: str) -> list[bytes]:
        keys = [key for group in self.groups for key in engine_keys(tokens, group, salt) if key in self._held]
        return [bytes(row) for key in keys if (row := self._row(self._held[key])) != self._computed(key)]

    def _serve(
        self, asked: Sequence[tuple[Sequence[int], str, dict[str, Any] | None]], preempt: Preempt = lambda _step: False
    ) -> list[Served]:
        with self._serving:
            return self._serve_now([self._begin(*one) for one in asked], preempt)

    def _serve_now(self, requests: Sequence[Request], preempt: Preempt) -> list[Served]:
        waiting = list(requests)
        until = time.monotonic() + SERVE_SECONDS
        for step in itertools.count():
            assert time.monotonic() < until, "a request got no answer"
            self._step_begin()
            waiting = [request for request in waiting if not self._scan(request)]
            preempted = [waiting[0].req_id] if waiting and preempt(step) else []
            self._submit_loads()
            self.side.end_step((), preempted)
            if not waiting:
                break
        for key in [key for request in requests for keys in request.keys for key in keys if key in self._held]:
            self._held.move_to_end(key)  # what these requests have here makes no room for them
        for request in requests:
            self._compute_and_store(request)
            self._finish(request)
        # frames are taken in one after another: what was told of these requests is counted when this is answered
        self.side.session.call({"verb": "load"}, b"", seconds=1.0)
        return [request.served for request in requests]

    def _begin(self, tokens: Sequence[int], salt: str, parameters: dict[str, Any] | None) -> Request:
        self.requests += 1
        keys = [engine_keys(tokens, group, salt) for group in self.groups]
        request = Request(f"r{self.requests}", tokens, self.groups, keys, parameters)
        request.offer_all = self.side.new_request(request)
        if (timings := getattr(self.side, "timings", None)) is not None and hasattr(timings, "on_device"):
            timings.on_device(request.req_id, 0)  # it has no device: what it holds lies in its host pool
        timed = self.token_seconds or is_canary(parameters)
        if not timed and hasattr(self.side, "timings"):  # a client of before times nothing
            self.side.timings.drop(request.req_id)
        return request

    def _step_begin(self) -> None:
        time.sleep(STEP_SECONDS)
        for result in self.side.finished_jobs():
            assert result.job not in self._results, "a job was reported twice"
            self._results[result.job] = result
            if result.is_load:
                self._take_in(result)

    def _scan(self, request: Request) -> bool:
        """Looks for the longest boundary at which every group has what it needs; whether there was an answer. Groups
        with full attention come first; a group that shortens the boundary makes the windows be looked at again."""
        order = sorted(range(len(self.groups)), key=lambda place: self.groups[place].kind != FULL)
        boundary = last_boundary(self.groups, request.tokens)
        deferred = False
        again = True
        while again:
            again = False
            for place in order:
                group, keys = self.groups[place], request.keys[place]
                boundary = min(boundary, len(keys) * group.block_tokens)
                end = -(-boundary // group.block_tokens)
                look = self._prefix if group.kind == FULL else self._window
                blocks = look(request, group, keys[:end])
                if blocks is None:
                    deferred = True
                    continue
                again |= blocks * group.block_tokens < boundary and group.kind != FULL and blocks > 0
                boundary = min(boundary, blocks * group.block_tokens)
                if not boundary:
                    return self._answered(request, 0)
        return False if deferred else self._answered(request, boundary)

    def _answered(self, request: Request, boundary: int) -> bool:
        request.boundary = boundary
        return True

    def _lookup(self, request: Request, key: bytes) -> Answer | None:
        """HIT where the host pool holds the block; None while it is on its way there."""
        if key in self._held:
            self._held.move_to_end(key)
            return Answer.HIT
        if key in self._coming:
            return None
        answer = self.side.lookup(key, request)
        if answer is not Answer.HIT:
            return answer
        if not (rows := self._take_rows(1)):
            return Answer.MISS
        self._coming[key] = rows[0]
        self._promotions.setdefault(request.req_id, (request, []))[1].append(key)
        return None

    def _prefix(self, request: Request, group: Group, keys: Sequence[bytes]) -> int | None:
        deferred, found = False, 0
        for key in keys:
            answer = self._lookup(request, key)
            if answer is Answer.MISS:
                break
            deferred |= answer is not Answer.HIT
            found += answer is not Answer.RETRY
        return None if deferred else found

    def _window(self, request: Request, group: Group, keys: Sequence[bytes]) -> int | None:
        wanted = window_blocks(group)
        deferred, run, pending = False, 0, False
        for index in range(len(keys) - 1, -1, -1):
            answer = self._lookup(request, keys[index])
            deferred |= answer is Answer.RETRY
            if answer in (Answer.MISS, Answer.RETRY):
                run, pending = 0, False
            else:
                run += 1
                pending |= answer is None
            if run == wanted:
                return None if deferred or pending else index + wanted
        return None if deferred or pending else run

    def _submit_loads(self) -> None:
        for request, keys in self._promotions.values():
            job = self._job(keys, [self._coming[key] for key in keys], request)
            self._loads[job.job_id] = job
            self.side.submit_load(job)
        self._promotions.clear()

    def _take_in(self, result: Result) -> None:
        """The rows of a load that has ended: blocks, checked against what computing gives, or free again."""
        job = self._loads.pop(result.job)
        self.promoted += len(job.keys)
        for key, row in zip(job.keys, job.chunk_ids, strict=True):
            del self._coming[key]
            if key not in result.done:
                self._free.append(row)
                continue
            self._held[key] = row
            self._from_pool.setdefault(key, job.req_context)
            job.req_context.served.equal &= self._row(row) == self._computed(key)

    def _compute_and_store(self, request: Request) -> None:
        served, place = request.served, reference(self.groups)
        size = self.groups[place].block_tokens
        total, found = len(request.keys[place]), -(-request.boundary // size)
        served.computed = total - found
        if self.token_seconds or is_canary(request.kv_transfer_params):
            self.side.timings.began(request.req_id, request.boundary, request.tokens, time.monotonic())
            time.sleep(self.token_seconds * (request.tokens - request.boundary))
            served.first_token = time.monotonic()
            self.side.timings.first_token(request.req_id, served.first_token)
        needed = [
            key
            for group, keys in zip(self.groups, request.keys, strict=True)
            for key in keys[: -(-request.boundary // group.block_tokens)][-window_blocks(group) :]
        ]
        loaded = [key for key in needed if self._from_pool.get(key) is request]
        first = min((request.keys[place].index(k) for k in loaded if k in request.keys[place]), default=found)
        served.pool, served.host = found - first, first
        served.rows = len(loaded) if len(self.groups) > 1 else None
        computed = [
            key
            for group, keys in zip(self.groups, request.keys, strict=True)
            for key in keys[request.boundary // group.block_tokens :]
            if key not in self._held
        ]
        if rows := self._take_rows(len(computed)):
            for key, row in zip(computed, rows, strict=True):
                self._row(row)[:] = self._computed(key)
                self._held[key] = row
        else:
            computed = []
        offered = [key for keys in request.keys for key in keys if key in self._held] if request.offer_all else computed
        if offered := [key for key in offered if key not in self.withheld]:
            job = self._job(offered, [self._held[key] for key in offered], request)
            self.side.submit_store(job)
            self._wait(job)

    def _finish(self, request: Request) -> None:
        served = request.served
        held = [(key, self._held[key]) for keys in request.keys for key in keys if key in self._held]
        served.equal &= all(self._row(row) == self._computed(key) for key, row in held)
        for word, blocks in (("local_compute", served.computed), ("host", served.host), ("p2p", served.pool)):
            self.tokens[word] += blocks * BLOCK_TOKENS
        self.side.end_step([request.req_id], ())
        if (samples := getattr(self.side, "samples", None)) is not None:  # a client of before shows no prompt
            samples.ended(request.req_id, request.prompt)
        self.side.request_finished(request)
        self._from_pool = {key: owner for key, owner in self._from_pool.items() if owner is not request}

    def _job(self, keys: Sequence[bytes], rows: Sequence[int], request: Request) -> Job:
        self._jobs += 1
        return Job(self._jobs, keys, rows, request)

    def _wait(self, job: Job) -> Result:
        while job.job_id not in self._results:
            self._step_begin()
        return self._results[job.job_id]

    def _take_rows(self, count: int) -> list[int]:
        """So many rows, by evicting what was used longest ago; none where there are not so many."""
        if len(self._free) + len(self._held) < count:
            return []
        while len(self._free) < count:
            self._free.append(self._held.popitem(last=False)[1])
        return [self._free.pop() for _ in range(count)]

    def _computed(self, key: bytes) -> bytes:
        return self._layout(block_bytes(key, self.row_bytes))

    def _row(self, row: int) -> memoryview:
        return self._memory[row * self.row_bytes : (row + 1) * self.row_bytes]

    def metrics(self) -> str:
        return metrics_text(self.tokens)
