"""What a block costs inside the engine's pod: milliseconds of the scheduler, and the way from a plan to filled rows.

    python benchmarks/handoff.py [--quick] [--rounds 20]

1. **Scheduler steps**, with 32 prompts of 32,768 tokens waiting (256 blocks of 128 tokens each): scheduler_steps.py, in
   the engine's environment, vLLM's own connector and tiering manager over kvpool's tier and a real agent. "of it
   kvpool" is the time inside the tier; the rest is vLLM's own work for the same requests.
2. **Hand-off**: from the plan's answer, as the client's thread reads it, to the last row filled. kvpool's real client
   and a real agent, whose arena holds the blocks; beside it, in the same rounds, a bare memmove of the same bytes
   between two mappings, twice: the second against the first is A/A, the noise.
3. **Copies**: calls and bytes of the one function with which the client copies, counted over all rounds.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
from replica import Pool, Tools, wait_for  # noqa: E402

from kvpool_client import loader, wire  # noqa: E402
from kvpool_client.memory import ReadOnlyMapping, address_of, copy, reopen_read_only  # noqa: E402
from kvpool_client.plans import Answer  # noqa: E402
from kvpool_client.scheduler_side import HostPool, SchedulerSide  # noqa: E402

MIB = 2**20
HASH_BYTES, KEY_BYTES = 32, 36
STEP_SECONDS = 0.001  # what vLLM's core sleeps in a step without work


class Copies:
    """Counts what the client copies, by the one function that does."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0

    def __call__(self, target: int, source: int, length: int) -> None:
        self.calls += 1
        self.bytes += length
        copy(target, source, length)


class Client:
    """The client as an engine drives it: `blocks` blocks in the agent's arena, `blocks` rows to fill."""

    def __init__(self, path: str, size: int, blocks: int) -> None:
        self.size, self.blocks = size, blocks
        rows = 4 * blocks  # promotions may hold half of the host pool
        file = os.memfd_create("host-pool", os.MFD_CLOEXEC)
        os.ftruncate(file, rows * size)
        self.memory = memoryview(mmap.mmap(file, rows * size))
        for i in range(blocks):
            self.memory[i * size : (i + 1) * size] = os.urandom(4096) * (size // 4096)
        self.expected = bytes(self.memory[: blocks * size])
        self.memory[blocks * size :] = bytes((rows - blocks) * size)  # pages are there before they are timed
        header = {"format": {"size": size}, "row_bytes": size, "rows": rows, "hash_bytes": HASH_BYTES, "groups": 1}
        pool = HostPool(rows, size, address_of(self.memory), reopen_read_only(file))
        self.side = SchedulerSide(path, header, pool, KEY_BYTES, shares=True, store_seconds=60)
        self.heard = 0.0
        hear = self.side.on_event

        def on_event(frame: wire.Frame) -> None:
            hear(frame)
            if frame.verb == "plan":
                self.heard = time.perf_counter()

        self.side.on_event = on_event  # type: ignore[method-assign]
        self.side.start()
        wait_for("attach", lambda: self.side.session.attached, 20, 0.01)
        self._keys = [bytes([i]) * HASH_BYTES + bytes(4) for i in range(blocks)]
        self._number = 0
        stored = self._ended(self._submit(self.side.submit_store, range(blocks)))
        if not stored.success:
            raise SystemExit("the agent did not take the blocks")

    def _submit(self, submit: Any, rows: range, context: Any = None) -> int:
        self._number += 1
        context = context or self._context()
        submit(SimpleNamespace(job_id=self._number, keys=self._keys, chunk_ids=rows, req_context=context))
        return self._number

    def _context(self) -> Any:
        return SimpleNamespace(
            req_id=f"r{self._number}", _offload_key_positions={key: i for i, key in enumerate(self._keys)}
        )

    def _ended(self, job: int) -> Any:
        while True:
            for result in self.side.finished_jobs():
                if result.job == job:
                    return result
            time.sleep(0)

    def hand_off(self) -> float:
        """Seconds from the plan's answer to the last row filled; the rows hold the right bytes."""
        self._number += 1
        context = self._context()
        self.side.new_request(context)
        self.heard = 0.0
        waiting, hits = True, 0
        while waiting:
            self.side.finished_jobs()
            waiting, hits = False, 0
            for key in self._keys:
                answer = self.side.lookup(key, context)
                if answer is Answer.RETRY:
                    waiting = True
                    break
                hits += answer is Answer.HIT
            self.side.end_step((), ())
            if waiting:
                time.sleep(STEP_SECONDS)
        if hits != self.blocks:
            raise SystemExit(f"{hits} of {self.blocks} blocks were there")
        result = self._ended(self._submit(self.side.submit_load, range(self.blocks, 2 * self.blocks), context))
        seconds = time.perf_counter() - self.heard
        rows = self.memory[self.blocks * self.size : 2 * self.blocks * self.size]
        if not result.success or rows != self.expected:
            raise SystemExit("a row does not hold its block")
        rows[:] = bytes(len(rows))
        self.side.request_finished(context)
        return seconds


def measure_hand_off(size: int, blocks: int, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kvpool-handoff-") as folder:
        pool = Pool(Tools(Path("none"), Path("none")), Path(folder))
        copies = Copies()
        loader.copy, kept = copies, loader.copy
        try:
            replica = pool.replica("a", agent={"arenaBytes": max(16, 4 * blocks) * size})
            replica.start_agent()
            client = Client(str(replica.folder / "run" / "engine.sock"), size, blocks)
            source = os.memfd_create("source", os.MFD_CLOEXEC)
            os.ftruncate(source, blocks * size)
            mmap.mmap(source, blocks * size)[:] = client.expected
            mapped = ReadOnlyMapping(source, blocks * size)
            target = address_of(client.memory) + 2 * blocks * size

            def by_memmove() -> float:
                return rounds.timed(
                    lambda: [copy(target + i * size, mapped.address + i * size, size) for i in range(blocks)]
                )

            ways = {"memmove": by_memmove, "memmove again": by_memmove, "kvpool": client.hand_off}
            found = rounds.run(ways, count, warm_up=2)
            client.side.shutdown()
        finally:
            loader.copy = kept
            pool.stop()
    loaded = (count + 2) * blocks
    label = f"  {blocks:3d} x {size // MIB:2d} MiB  "
    for name in ("memmove", "kvpool"):
        middle = statistics.median(found[name])
        rate = blocks * size / 1e9 / middle
        print(f"{label}{name:16} {1e3 * middle:8.2f} ms ({rate:.1f} GB/s), p99 {1e3 * rounds.p99(found[name]):.2f} ms")
    print(f"{label}kvpool / memmove {rounds.ratio(found['kvpool'], found['memmove'])}")
    print(f"{label}A/A, noise       {rounds.ratio(found['memmove again'], found['memmove'])}")
    print(
        f"{label}copies in the engine's process: {copies.calls} of {copies.bytes} bytes for {loaded} blocks: "
        f"{copies.calls / loaded:g} a block, {copies.bytes / (loaded * size):g} times its bytes",
        flush=True,
    )


def measure_steps(count: int, requests: int, prompt_tokens: int) -> None:
    tools = Tools.prepared()
    with tempfile.TemporaryDirectory(prefix="kvpool-steps-") as folder:
        pool = Pool(tools, Path(folder), host_pool_bytes=256 * MIB)
        try:
            replica = pool.replica("a", agent={"arenaBytes": 512 * MIB, "loading": {"deadlineSeconds": 30}})
            replica.start_agent()
            command = [
                str(tools.engine_python), str(REPOSITORY / "benchmarks" / "scheduler_steps.py"),
                "--model", str(tools.model), "--worker", str(replica.worker_pid()), "--rounds", str(count),
                "--requests", str(requests), "--prompt-tokens", str(prompt_tokens),
            ]  # fmt: skip
            environment = {
                **os.environ,
                "PYTHONPATH": str(pool.client), "KVPOOL_CLIENT_CONFIG": json.dumps(replica.client_config()),
                "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
            }  # fmt: skip
            with (Path(folder) / "log").open("wb") as log:
                done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log)
            if done.returncode:
                raise SystemExit((Path(folder) / "log").read_text()[-4000:])
        finally:
            pool.stop()
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  {requests} prompts of {prompt_tokens} tokens, {found['blocks']} blocks of 128 tokens, {count} rounds")
    for state, figure in found["states"].items():
        inside = "" if figure["inside"] is None else f", of it kvpool {figure['inside']:.2f} ms"
        print(
            f"  {state:34} {figure['ms']:8.2f} ms (least {figure['least']:.2f}, most {figure['most']:.2f}, "
            f"{figure['steps']} steps){inside}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds: to see that it works")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=32_768)
    options = parser.parse_args()
    count = 3 if options.quick else options.rounds
    print(f"scheduler's step; {rounds.machine()}", flush=True)
    measure_steps(count, options.requests, options.prompt_tokens)
    print(f"hand-off, from the plan's answer to filled rows, {count} rounds; {rounds.machine()}", flush=True)
    for size, blocks in ((2 * MIB, 1), (2 * MIB, 16), (16 * MIB, 1), (16 * MIB, 8)):
        measure_hand_off(size, blocks, count)


if __name__ == "__main__":
    main()
