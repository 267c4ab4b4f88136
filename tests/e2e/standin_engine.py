"""The one stand-in engine of all suites: kvpool's real client under a scheduler of a hundred lines.

It drives the same SchedulerSide that the engine's adapter drives, with a memory file as host pool, blocks of a few KiB,
and bytes that follow from the prompt: what is loaded is compared with what would have been computed, byte by byte. Over
HTTP it has what an agent reads of an engine: health and metrics.
"""

import collections
import hashlib
import json
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvpool_client.ledger import Result
from kvpool_client.memory import address_of, reopen_read_only
from kvpool_client.plans import Answer
from kvpool_client.scheduler_side import STORE_SECONDS, HostPool, SchedulerSide

BLOCK_TOKENS = 4
HASH_BYTES = 32
KEY_BYTES = HASH_BYTES + 4
STEP_SECONDS = 0.002
SERVE_SECONDS = 60.0


def engine_keys(tokens: Sequence[int], salt: str = "") -> list[bytes]:
    """Keys of a prompt's whole blocks: a hash chained over the prefix, and the group."""
    keys, digest = [], salt.encode()
    for i in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        digest = hashlib.sha256(digest + repr(list(tokens[i : i + BLOCK_TOKENS])).encode()).digest()
        keys.append(digest + bytes(4))
    return keys


def block_bytes(key: bytes, size: int) -> bytes:
    """What computing a block yields: the same everywhere, another for every key."""
    return (key * (size // len(key) + 1))[:size]


def prompt(name: str, blocks: int) -> list[int]:
    """`blocks` whole blocks and one token more; two names share no block."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return [seed + i for i in range(blocks * BLOCK_TOKENS + 1)]


@dataclass
class Served:
    """Blocks of one request: computed here, found in the host pool, loaded from the pool; `equal`: all bytes loaded,
    and all that the host pool has of it in the end, are those that computing would have given."""

    computed: int = 0
    host: int = 0
    pool: int = 0
    equal: bool = True


@dataclass
class _Request:
    """A request, with the names that the client knows it by."""

    req_id: str
    keys: list[bytes]
    kv_transfer_params: dict[str, Any] | None = None
    offer_all: bool = False
    served: Served = field(default_factory=Served)
    hits: list[bytes] = field(default_factory=list)

    @property
    def _offload_key_positions(self) -> dict[bytes, int]:
        return {key: (i + 1) * BLOCK_TOKENS for i, key in enumerate(self.keys)}


@dataclass(frozen=True)
class _Job:
    job_id: int
    keys: Sequence[bytes]
    chunk_ids: Sequence[int]
    req_context: _Request


class StandInEngine:
    """`serve` may be called by one thread at a time, as a scheduler runs on one."""

    def __init__(
        self,
        path: str,
        *,
        row_bytes: int = 4096,
        rows: int = 256,
        port: int = 0,
        model: str = "m",
        store_seconds: float = STORE_SECONDS,
        probe: bool = False,
        layout: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """probe: whether it has the HTTP endpoint that completes a prompt, as a real engine has. layout: how its rows
        differ from those of other engines of the same format."""
        self.row_bytes, self.rows = row_bytes, rows
        self._probe, self._layout, self._serving = probe, layout, threading.RLock()
        self._file = os.memfd_create("standin-host-pool", os.MFD_CLOEXEC)
        os.ftruncate(self._file, rows * row_bytes)
        self._map = mmap.mmap(self._file, rows * row_bytes)
        self._memory = memoryview(self._map)
        self._descriptor = reopen_read_only(self._file)
        self.attach_header = {
            "format": {"engine": "standin", "model": model, "row_bytes": row_bytes, "block_tokens": BLOCK_TOKENS},
            "row_bytes": row_bytes,
            "rows": rows,
            "hash_bytes": HASH_BYTES,
            "groups": 1,
            "engine": secrets.token_hex(8),
        }
        pool = HostPool(rows, row_bytes, address_of(self._memory), self._descriptor)
        self.side = SchedulerSide(path, self.attach_header, pool, KEY_BYTES, shares=True, store_seconds=store_seconds)
        self.session = self.side.session
        self._held: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._free = list(range(rows))
        self._jobs = self._requests = 0
        self._results: dict[int, Result] = {}
        self.tokens: collections.Counter[str] = collections.Counter()
        self._http = _server(port, self)

    @property
    def requests(self) -> int:
        """How many it has had."""
        return self._requests

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
        self._free = list(range(self.rows))

    def overwrite(self) -> None:
        """Makes every row another's, as an engine does with rows whose jobs have ended."""
        self._memory[:] = b"\xa5" * len(self._memory)

    # -- the scheduler -------------------------------------------------------------------------------

    def serve(self, tokens: Sequence[int]) -> Served:
        return self.serve_together([tokens])[0]

    def serve_together(self, prompts: Sequence[Sequence[int]]) -> list[Served]:
        """Takes all requests in before the first step; ends when all are answered and stored."""
        return self._serve([(tokens, "", None) for tokens in prompts])

    def complete(self, body: dict[str, Any]) -> bool:
        """A completion that came over HTTP, from another thread; whether there is such an endpoint."""
        if not self._probe:
            return False
        self._serve([(body["prompt"], body.get("cache_salt", ""), body.get("kv_transfer_params"))])
        return True

    def _serve(self, asked: Sequence[tuple[Sequence[int], str, dict[str, Any] | None]]) -> list[Served]:
        with self._serving:
            return self._serve_now([self._begin(*one) for one in asked])

    def _serve_now(self, requests: Sequence[_Request]) -> list[Served]:
        waiting = list(requests)
        until = time.monotonic() + SERVE_SECONDS
        while waiting:
            assert time.monotonic() < until, "a request got no answer"
            self._step_begin()
            waiting = [request for request in waiting if not self._scan(request)]
            self.side.end_step((), ())
        for key in [key for request in requests for key in request.keys if key in self._held]:
            self._held.move_to_end(key)  # what these requests have here makes no room for them
        for request in requests:
            self._load(request)
            self._compute_and_store(request)
            self._finish(request)
        return [request.served for request in requests]

    def _begin(self, tokens: Sequence[int], salt: str, parameters: dict[str, Any] | None) -> _Request:
        self._requests += 1
        keys = engine_keys(tokens, salt)
        request = _Request(f"r{self._requests}", keys, parameters)
        request.offer_all = self.side.new_request(request)
        return request

    def _step_begin(self) -> None:
        time.sleep(STEP_SECONDS)
        for result in self.side.finished_jobs():
            assert result.job not in self._results, "a job was reported twice"
            self._results[result.job] = result

    def _scan(self, request: _Request) -> bool:
        """Asks block by block from the first that the host pool lacks; whether there was an answer."""
        held = next((i for i, key in enumerate(request.keys) if key not in self._held), len(request.keys))
        for key in request.keys[held + len(request.hits) :]:
            answer = self.side.lookup(key, request)
            if answer is Answer.RETRY:
                return False
            if answer is Answer.MISS:
                break
            request.hits.append(key)
        request.served.host = held
        return True

    def _load(self, request: _Request) -> None:
        wanted = [key for key in request.hits if key not in self._held]
        request.served.host += len(request.hits) - len(wanted)  # another request of this step has brought them
        if not wanted:
            return
        rows = self._take_rows(len(wanted))
        job = self._job(wanted, rows, request)
        self.side.submit_load(job)
        done = set(self._wait(job).done)
        for key, row in zip(wanted, rows, strict=True):
            if key not in done:
                self._free.append(row)
                continue
            self._held[key] = row
            request.served.equal &= self._row(row) == self._computed(key)
        request.served.pool = len(done)

    def _compute_and_store(self, request: _Request) -> None:
        computed = [key for key in request.keys if key not in self._held]
        for key, row in zip(computed, self._take_rows(len(computed)), strict=True):
            self._row(row)[:] = self._computed(key)
            self._held[key] = row
        request.served.computed = len(computed)
        offered = request.keys if request.offer_all else computed
        if offered:
            job = self._job(offered, [self._held[key] for key in offered], request)
            self.side.submit_store(job)
            self._wait(job)

    def _finish(self, request: _Request) -> None:
        served = request.served
        held = [(key, self._held[key]) for key in request.keys if key in self._held]
        served.equal &= all(self._row(row) == block_bytes(key, self.row_bytes) for key, row in held)
        for word, blocks in (("local_compute", served.computed), ("host", served.host), ("p2p", served.pool)):
            self.tokens[word] += blocks * BLOCK_TOKENS
        self.side.end_step([request.req_id], ())
        self.side.request_finished(request)

    def _job(self, keys: Sequence[bytes], rows: Sequence[int], request: _Request) -> _Job:
        self._jobs += 1
        return _Job(self._jobs, keys, rows, request)

    def _wait(self, job: _Job) -> Result:
        while job.job_id not in self._results:
            self._step_begin()
        return self._results[job.job_id]

    def _take_rows(self, count: int) -> list[int]:
        while len(self._free) < count:
            self._free.append(self._held.popitem(last=False)[1])
        return [self._free.pop() for _ in range(count)]

    def _computed(self, key: bytes) -> bytes:
        return self._layout(block_bytes(key, self.row_bytes))

    def _row(self, row: int) -> memoryview:
        return self._memory[row * self.row_bytes : (row + 1) * self.row_bytes]

    def metrics(self) -> str:
        cached = "\n".join(
            f'vllm:prompt_tokens_cached_by_source_total{{source="{source}"}} {float(self.tokens[source])}'
            for source in ("device", "host", "p2p")
        )
        computed = f'vllm:prompt_tokens_by_source_total{{source="local_compute"}} {float(self.tokens["local_compute"])}'
        return f"# TYPE vllm:prompt_tokens_by_source counter\n{computed}\n{cached}\n"


def _server(port: int, engine: StandInEngine) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = engine.metrics() if self.path == "/metrics" else ""
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/v1/completions" and engine.complete(body) else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing: a poll a second is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
