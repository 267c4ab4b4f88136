"""Real engines whose agent or peer fails in the middle of something, and engines that are killed: every answer is the
one of an engine that has computed all of it."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from engine.altering_member import AlteringMember, hot_list
from engine.forged import Forge, ForgedEngine
from engine.measured import BLOCK, Outcome, by_source, sees_only, settle, small_prompt, until_sees
from patched_agent import stop_in_a_store
from process_use import stands_still
from replica import LOOPBACK, MIB, Pool, Replica, Tools, wait_for

BLOCKS, TAIL = 6, 5
LENGTH = BLOCKS * BLOCK + TAIL
COMPUTED = by_source(computed=LENGTH)
ROUNDS = 5
HOST_POOL = 4 * MIB  # 16 rows


def prompt(seed: int, blocks: int = BLOCKS) -> list[int]:
    return small_prompt(8000 + seed, blocks * BLOCK + TAIL)


def loaded(blocks: int) -> dict[str, int]:
    return by_source(pool=blocks * BLOCK, computed=LENGTH - blocks * BLOCK)


class Pair:
    """Replica A, to which things happen, and B, whose engine computes what is right."""

    def __init__(self, pool: Pool, forge: Forge, model: Path) -> None:
        self.pool, self.forge, self.model = pool, forge, model
        self.a, self.b = (pool.replica(name) for name in "AB")
        self.stop = stop_in_a_store(self.a, 2)
        with ThreadPoolExecutor() as threads:
            list(threads.map(Replica.start_agent, (self.a, self.b)))
        engines = [ForgedEngine(forge, replica, model) for replica in (self.a, self.b)]
        self.engine, self.other = (engine.until_ready() for engine in engines)
        for replica in (self.a, self.b):
            wait_for("attached", lambda r=replica: r.status()["attached"], 30)

    def close(self) -> None:
        self.engine.close()
        self.other.close()

    def restart_engine(self) -> None:
        self.engine = ForgedEngine(self.forge, self.a, self.model).until_ready()

    def until_loaded(self, seed: int, right: Outcome) -> None:
        """Until A's engine loads all of a prompt that the pool has; its answers are right all the time."""

        def all_loaded() -> bool:
            self.engine.forget()
            now = self.engine.ask(prompt(seed))
            assert now.answer[0] == right.answer[0]
            return now.tokens == loaded(BLOCKS)

        wait_for("all loaded", all_loaded, 30)

    def until_shared(self, seed: int) -> None:
        """What A computes B loads, all of it."""
        wait_for("attached", lambda: self.a.status()["attached"], 30)
        first = self.engine.ask(prompt(seed))
        assert first.tokens == COMPUTED
        settle(self.a)
        until_sees(self.b, self.a)
        assert self.other.ask(prompt(seed)) == Outcome(loaded(BLOCKS), first.answer)


@pytest.fixture(scope="module")
def pair(
    forge: Forge, small_models: list[Path], tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    agent = {"arenaBytes": 64 * MIB, "loading": {"mode": "Always", "deadlineSeconds": 1.0}}
    pool = Pool(tools, tmp_path_factory.mktemp("faults"), host_pool_bytes=HOST_POOL, agent=agent)
    made = None
    try:
        made = Pair(pool, forge, small_models[0])
        yield made
    finally:
        if made is not None:
            made.close()
        pool.stop()


class StoppingMember(AlteringMember):
    """Serves two blocks, then says so and waits before it goes on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.middle, self.go_on, self.stale_tags = Event(), Event(), False

    @contextmanager
    def blocks(self, *arguments: Any) -> Iterator[Any]:
        with super().blocks(*arguments) as blocks:

            def each() -> Iterator[Any]:
                for index, tag, data in blocks:
                    if index == 2:
                        self.middle.set()
                        self.go_on.wait(20)
                    yield index, b"x" * 16 if self.stale_tags and index == 2 else tag, data

            yield each()


def worker_stands_still(pair: Pair, member: StoppingMember) -> Callable[[], None]:
    worker = pair.a.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    member.go_on.set()
    return lambda: os.kill(worker, signal.SIGCONT)


def peer_dies(pair: Pair, member: StoppingMember) -> Callable[[], None]:
    member.close()
    return member.go_on.set


def wrong_tags(pair: Pair, member: StoppingMember) -> Callable[[], None]:
    member.stale_tags = True
    member.go_on.set()
    return lambda: None


@pytest.mark.parametrize(
    ("fault", "expected", "word"),
    [(worker_stands_still, COMPUTED, ""), (peer_dies, loaded(2), "fetch_transfer_failed"),
     (wrong_tags, loaded(2), "tag_failures")],
)  # fmt: skip
def test_what_fails_in_the_middle_of_a_load_is_computed_and_the_answer_is_the_same(
    pair: Pair, fault: Callable[..., Callable[[], None]], expected: dict[str, int], word: str
) -> None:
    seed = {worker_stands_still: 1, peer_dies: 2, wrong_tags: 3}[fault]
    address, fingerprint = f"{LOOPBACK}:{pair.b.peer_port}", bytes.fromhex(pair.b.status()["format"])
    known = {block.key for block in hot_list(pair.pool, address, fingerprint)}
    right = pair.other.ask(prompt(seed))
    assert right.tokens == COMPUTED

    def chain() -> list[bytes]:
        blocks = [block for block in hot_list(pair.pool, address, fingerprint) if block.key not in known]
        return [block.key for block in sorted(blocks, key=lambda block: block.depth)]

    wait_for("B's blocks", lambda: len(chain()) == BLOCKS, 20)
    member = StoppingMember(pair.pool, address, fingerprint, chain())
    seeds = pair.pool.members.read_text()
    try:
        pair.pool.members.write_text(f"{member.address}\n")
        sees_only(pair.a, member.address)
        before = pair.a.status()["counters"]
        pair.engine.begin(prompt(seed))
        assert member.middle.wait(20)
        goes_on = fault(pair, member)
        answer = pair.engine.answer()
        goes_on()
        assert (answer.tokens, answer.answer[0]) == (expected, right.answer[0])
        if word:
            assert pair.a.status()["counters"][word] - before.get(word, 0) == 1
    finally:
        member.go_on.set()
        pair.pool.members.write_text(seeds)
        member.close()
    sees_only(pair.a, address)
    pair.until_loaded(seed, right)
    pair.until_shared(10 + seed)


def test_a_worker_that_stands_still_while_rows_become_other_blocks_publishes_none_of_them(pair: Pair) -> None:
    before, worker = pair.a.status(), pair.a.worker_pid()
    forgotten = before["counters"].get("stores_forgotten", 0)
    pair.stop.touch()
    try:
        first = pair.engine.ask(prompt(20))
        wait_for("the worker stands still, two of the rows copied", lambda: stands_still(worker), 20, 0.01)
        pair.engine.forget()  # ends the store; from now on its rows are free
        for seed in (21, 22, 23):  # more than the host pool has
            assert pair.engine.ask(prompt(seed)).tokens == COMPUTED
        pair.engine.forget()
    finally:
        pair.stop.unlink()
        os.kill(worker, signal.SIGCONT)
    assert first.tokens == COMPUTED
    status = wait_for(
        "the late stores' end",
        lambda: (
            s
            if (s := pair.a.status())["attached"]
            and (s["counters"].get("stores_forgotten", 0) > forgotten or s["incarnation"] != before["incarnation"])
            else None
        ),
        30,
    )
    assert status["arena"]["blocks"] == before["arena"]["blocks"]
    right = pair.other.ask(prompt(20))
    assert (right.tokens, right.answer) == (COMPUTED, first.answer)
    pair.until_loaded(20, right)
    pair.until_shared(24)


def host_pools(pid: int) -> set[str]:
    """Inodes of the host pools that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/dev/shm/vllm_offload" in line}


def test_an_engine_killed_and_stopped_five_times_each_in_one_pod_attaches_and_shares_each_time(pair: Pair) -> None:
    right = pair.engine.ask(prompt(30))
    settle(pair.a)
    worker = pair.a.worker_pid()
    descriptors = len(list(Path(f"/proc/{worker}/fd").iterdir()))
    incarnation = pair.a.status()["incarnation"]
    (before,) = host_pools(worker)
    for number in (signal.SIGKILL, signal.SIGTERM) * ROUNDS:
        pair.engine.begin(prompt(31))  # whatever it does at that moment
        pair.engine.signal(number)
        wait_for("detached", lambda: not pair.a.status()["attached"], 30, 0.01)
        wait_for("no host pool left", lambda: host_pools(worker) == set(), 30, 0.01)
        pair.restart_engine()
        wait_for("attached", lambda: pair.a.status()["attached"], 30, 0.01)
        (now,) = host_pools(worker)
        assert now != before  # one, and another one
        before = now
        again = pair.engine.ask(prompt(30))
        assert (again.tokens, again.answer[0]) == (loaded(BLOCKS), right.answer[0])
    assert pair.a.status()["incarnation"] == incarnation
    wait_for("descriptors", lambda: len(list(Path(f"/proc/{worker}/fd").iterdir())) <= descriptors, 20)
    names = [entry.name for entry in os.scandir("/dev/shm") if str(entry.inode()) == now]
    assert not names, "the host pool's name is still there"
    pair.until_shared(32)
