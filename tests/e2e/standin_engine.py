"""The one stand-in engine of all suites: kvpool's real client under a scheduler of a hundred lines.

It drives session, ledger, plans, loader and offers exactly as kvpool_client/engine_vllm/tier.py does, with a memory
file as host pool, blocks of a few KiB, and bytes that follow from the prompt: what is loaded is compared with what
would have been computed, byte by byte. Over HTTP it has what an agent reads of an engine: health and metrics.
"""

import collections
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvpool_client import session, wire
from kvpool_client.ledger import Ledger, Result
from kvpool_client.loader import Loader
from kvpool_client.memory import address_of, reopen_read_only
from kvpool_client.offers import Offers
from kvpool_client.plans import Answer, Plans

BLOCK_TOKENS = 4
HASH_BYTES = 32
KEY_BYTES = HASH_BYTES + 4
STORE_SECONDS = 5.0
STEP_SECONDS = 0.002
SERVE_SECONDS = 60.0


def engine_keys(tokens: Sequence[int]) -> list[bytes]:
    """Keys of a prompt's whole blocks: a hash chained over the prefix, and the group."""
    keys, digest = [], b""
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
    """Blocks of one request: computed here, found in the host pool, loaded from the pool; `equal`: all bytes loaded
    are those that computing would have given."""

    computed: int = 0
    host: int = 0
    pool: int = 0
    equal: bool = True


@dataclass
class _Request:
    name: str
    keys: list[bytes]
    offer_all: bool
    served: Served = field(default_factory=Served)
    hits: list[bytes] = field(default_factory=list)


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
    ) -> None:
        self.row_bytes, self.rows, self._store_seconds = row_bytes, rows, store_seconds
        self._file = os.memfd_create("standin-host-pool", os.MFD_CLOEXEC)
        os.ftruncate(self._file, rows * row_bytes)
        self._memory = memoryview(mmap.mmap(self._file, rows * row_bytes))
        self._descriptor = reopen_read_only(self._file)
        self.attach_header = {
            "format": {"engine": "standin", "model": model, "row_bytes": row_bytes, "block_tokens": BLOCK_TOKENS},
            "row_bytes": row_bytes,
            "rows": rows,
            "hash_bytes": HASH_BYTES,
            "groups": 1,
        }
        self.ledger = Ledger()
        self._plans = Plans(load_deadline=0.0)
        self._offers = Offers()
        self._inbox: collections.deque[wire.Frame | None] = collections.deque()
        self.session = session.Session(path, self.attach_header, [self._descriptor], self)
        self._loader = Loader(self.session, self.ledger, address_of(self._memory), row_bytes, KEY_BYTES)
        self._held: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._free = list(range(rows))
        self._jobs = self._requests = 0
        self._results: dict[int, Result] = {}
        self.tokens: collections.Counter[str] = collections.Counter()
        self._http = _server(port, self)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def start(self) -> "StandInEngine":
        self.session.start()
        self._loader.start()
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def close(self) -> None:
        self.ledger.fail_all()
        self._loader.close()
        self.session.close()
        self._http.shutdown()
        self._http.server_close()
        os.close(self._file)
        os.close(self._descriptor)

    def forget(self) -> None:
        """Empties the host pool, as if the engine had evicted everything."""
        self._held.clear()
        self._free = list(range(self.rows))

    def overwrite(self) -> None:
        """Makes every row another's, as an engine does with rows whose jobs have ended."""
        self._memory[:] = b"\xa5" * len(self._memory)

    # -- the session's listener, as the tier is ------------------------------------------------------

    def on_attached(self, attached: session.Attached) -> None:
        self._plans.load_deadline = attached.load_seconds + 0.5
        self._offers.unconfirmed(time.monotonic())

    def on_event(self, frame: wire.Frame) -> None:
        if frame.verb != "copied":
            self._inbox.append(frame)
            return
        job, whole = int(frame.header["job"]), bool(frame.header["whole"])
        if not self.ledger.close(job, success=whole):
            self.session.post({"verb": "forget", "job": job})
            return
        self.session.post({"verb": "commit", "job": job})
        confirmed = whole and not frame.header["stored"]
        (self._offers.confirmed if confirmed else self._offers.unconfirmed)(time.monotonic())

    def on_lost(self) -> None:
        self._inbox.append(None)
        self.ledger.fail_all()
        self._offers.unconfirmed(time.monotonic())

    # -- the scheduler -------------------------------------------------------------------------------

    def serve(self, tokens: Sequence[int]) -> Served:
        return self.serve_together([tokens])[0]

    def serve_together(self, prompts: Sequence[Sequence[int]]) -> list[Served]:
        """Takes all requests in before the first step; ends when all are answered and stored."""
        requests = [self._begin(tokens) for tokens in prompts]
        waiting = list(requests)
        until = time.monotonic() + SERVE_SECONDS
        while waiting:
            assert time.monotonic() < until, "a request got no answer"
            self._step_begin()
            waiting = [request for request in waiting if not self._scan(request)]
            self._step_end()
        for request in requests:
            self._load(request)
            self._compute_and_store(request)
            self._finish(request)
        return [request.served for request in requests]

    def _begin(self, tokens: Sequence[int]) -> _Request:
        self._requests += 1
        keys = engine_keys(tokens)
        request = _Request(f"r{self._requests}", keys, self._offers.offer_again(time.monotonic()))
        self._plans.begin(request.name, lambda: keys)
        return request

    def _step_begin(self) -> None:
        time.sleep(STEP_SECONDS)
        while self._inbox:
            frame = self._inbox.popleft()
            if frame is None:
                self._plans.fail_open()
            elif frame.verb == "plan":
                self._plans.answer(int(frame.header["plan"]), frame.header["hits"])
        if self.ledger.expire(time.monotonic()):
            self._offers.unconfirmed(time.monotonic())
        for result in self.ledger.take():
            assert result.job not in self._results, "a job was reported twice"
            self._results[result.job] = result

    def _scan(self, request: _Request) -> bool:
        """Asks block by block from the first that the host pool lacks; whether there was an answer."""
        held = next((i for i, key in enumerate(request.keys) if key not in self._held), len(request.keys))
        for key in request.keys[held + len(request.hits) :]:
            room = 2 * (self.ledger.load_rows + self._plans.hits_this_step) < self.rows
            if self.session.attached is not None:
                answer = self._plans.lookup(request.name, key, time.monotonic(), room)
            else:
                answer = self._plans.decline(request.name, key)
            if answer is Answer.RETRY:
                return False
            if answer is Answer.MISS:
                break
            request.hits.append(key)
        request.served.host = held
        return True

    def _step_end(self) -> None:
        for plan in self._plans.end_step():
            header = {"verb": "lookup", "plan": plan.number, "start": plan.start}
            if not self.session.post(header, b"".join(plan.chain)):
                self._plans.answer(plan.number, ())

    def _load(self, request: _Request) -> None:
        wanted = [key for key in request.hits if key not in self._held]
        request.served.host += len(request.hits) - len(wanted)  # another request of this step has brought them
        if not wanted:
            return
        rows = self._take_rows(len(wanted))
        job = self._job(wanted, is_load=True, seconds=self._plans.load_deadline)
        self._loader.submit(job, list(zip(wanted, rows, strict=True)), self._plans.number_of(request.name))
        done = set(self._wait(job).done)
        for key, row in zip(wanted, rows, strict=True):
            if key not in done:
                self._free.append(row)
                continue
            self._held[key] = row
            request.served.equal &= self._row(row) == block_bytes(key, self.row_bytes)
        request.served.pool = len(done)

    def _compute_and_store(self, request: _Request) -> None:
        computed = [key for key in request.keys if key not in self._held]
        for key, row in zip(computed, self._take_rows(len(computed)), strict=True):
            self._row(row)[:] = block_bytes(key, self.row_bytes)
            self._held[key] = row
        request.served.computed = len(computed)
        offered = request.keys if request.offer_all else computed
        if offered:
            parents = dict(zip(request.keys[1:], request.keys, strict=False))
            job = self._job(offered, is_load=False, seconds=self._store_seconds)
            header = {"verb": "store", "job": job, "rows": [self._held[key] for key in offered]}
            if not self.session.post(header, b"".join(k + parents.get(k, bytes(KEY_BYTES)) for k in offered)):
                self.ledger.close(job, success=False)
                self._offers.unconfirmed(time.monotonic())
            self._wait(job)

    def _finish(self, request: _Request) -> None:
        served = request.served
        for word, blocks in (("local_compute", served.computed), ("host", served.host), ("p2p", served.pool)):
            self.tokens[word] += blocks * BLOCK_TOKENS
        self._plans.scheduled(request.name)
        summary = self._plans.finish(request.name)
        header = {"prompt": summary.prompt_blocks, "asked": summary.asked, "loaded": summary.hit_blocks}
        self.session.post({"verb": "finished", **header}, b"".join(request.keys))

    def _job(self, keys: Sequence[bytes], *, is_load: bool, seconds: float) -> int:
        self._jobs += 1
        self.ledger.open(self._jobs, keys, is_load=is_load, deadline=time.monotonic() + seconds)
        return self._jobs

    def _wait(self, job: int) -> Result:
        while job not in self._results:
            self._step_begin()
        return self._results[job]

    def _take_rows(self, count: int) -> list[int]:
        while len(self._free) < count:
            self._free.append(self._held.popitem(last=False)[1])
        return [self._free.pop() for _ in range(count)]

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

        def log_message(self, *_: Any) -> None:
            """Nothing: a poll a second is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
