"""What joining costs an engine that gains nothing from it: unique prompts only, bare against joined, interleaved.

    python benchmarks/tax.py [--quick] [--starts 2] [--rounds 15] [--prompt-tokens 640] [--answer-tokens 24]

Three real vLLM servers on the CPU: two bare ones and one with its agent. Every round asks each of them prompts that
share no prefix with any other, in an order drawn anew. `joined` is compared with the mean of the two bare ones in the
same round; one bare server against the other is A/A, the noise of this run. Every start makes new processes, because
two starts of the same server differ too.

What differs between the arms is kvpool alone:

- The engines run on the same cores, agent and load generator on the others. vLLM's own binding would not do: with a
  connector configured it reserves one core more for other work and, where none is left to compute on, gives up and
  takes all. On two cores a bare server then computes with one thread and a joined one with two.
- The same variables, the same PYTHONPATH (in a bare server the client finds no configuration and does nothing), the
  same model options, the same clock for the scheduler's steps.

On a CPU vLLM keeps its worker in a process of its own whatever is asked, and that and the core spin on their core while
they wait for each other: an engine's CPU seconds hold some of that waiting.
"""

import argparse
import contextlib
import itertools
import os
import shlex
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "examples" / "demo"))

import rounds  # noqa: E402
import step_clock  # noqa: E402
from replica import Pool, Replica, Tools  # noqa: E402
from servers import core_sets, on_cores, stream  # noqa: E402

ARMS = ("bare", "bare too", "joined")
WARM_UP = 2
EXECUTOR = "uni"  # what vLLM chooses on one GPU


@dataclass
class Series:
    """One arm's seconds: of each request, of each gap between tokens, of each round, of the scheduler's steps; CPU
    seconds a request, and while others were asked; memory in MiB."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """What every round asks of every arm: `together` requests at a time."""

    prompt_tokens: int
    answer_tokens: int
    together: int


class Prompts:
    """Prompts of which no two share a block."""

    def __init__(self) -> None:
        self._number = 0

    def next(self, length: int) -> list[int]:
        self._number += 1
        n = self._number
        return [(n * 7919 + i * 104_729 + n * i) % 40_000 + 100 for i in range(length)]


def ask(replica: Replica, prompts: Prompts, load: Load, series: Series) -> None:
    """One arm's turn of a round."""
    assert replica.engine_process is not None
    wanted = [prompts.next(load.prompt_tokens) for _ in range(load.together)]
    used, started = cpu_seconds(replica.engine_process.pid), time.monotonic()
    with ThreadPoolExecutor(load.together) as threads:
        answers = list(threads.map(lambda prompt: stream(replica, prompt, load.answer_tokens).stamps, wanted))
    series.total.append(time.monotonic() - started)
    series.cpu.append((cpu_seconds(replica.engine_process.pid) - used) / load.together)
    for stamps in answers:
        series.ttft.append(stamps[0])
        series.gaps += [after - before for before, after in itertools.pairwise(stamps)]


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all that it has started."""
    seconds = 0.0
    for member in family(pid):
        with contextlib.suppress(OSError):
            # nanoseconds on a core, of every thread; the clock ticks of /proc/PID/stat are too coarse for one request
            for task in Path(f"/proc/{member}/task").iterdir():
                seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def proportional_mib(pid: int) -> float:
    """Memory of a process and all that it has started; of what several map, each one's share."""
    kib = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            kib += int(next(line.split()[1] for line in lines if line.startswith("Pss:")))
    return kib / 1024


def started(pool: Pool, clock: Path, engine_cores: set[int], other_cores: set[int]) -> dict[str, Replica]:
    """The three servers, healthy."""
    replicas = {arm: pool.replica(arm.replace(" ", "-")) for arm in ARMS}
    cores = ",".join(str(core) for core in sorted(engine_cores))
    with on_cores(other_cores):
        replicas["joined"].start_agent()
    for arm, replica in replicas.items():
        environment = {
            "PYTHONPATH": f"{pool.client}{os.pathsep}{clock}",
            step_clock.VARIABLE: str(replica.folder / "steps"),
            "OMP_NUM_THREADS": str(len(engine_cores)),
            "VLLM_CPU_OMP_THREADS_BIND": cores,
        }
        with on_cores(engine_cores):
            replica.start_engine(joined=arm == "joined", environment=environment)
    for replica in replicas.values():
        replica.wait_engine()
    replicas["joined"].wait_ready()
    return replicas


def one_start(
    pool: Pool, load: Load, count: int, cores: tuple[set[int], set[int]], all_series: dict[str, Series], agent: Series
) -> None:
    """Starts the servers anew and runs all rounds."""
    replicas = started(pool, step_clock.install(pool.folder / "clock"), *cores)
    prompts = Prompts()
    pids = {arm: replica.engine_process.pid for arm, replica in replicas.items() if replica.engine_process}
    assert replicas["joined"].agent_process is not None
    agent_pid = replicas["joined"].agent_process.pid
    for replica in replicas.values():
        for _ in range(WARM_UP):
            ask(replica, prompts, load, Series())
    steps_before = {arm: len(step_clock.read(replica.folder / "steps")) for arm, replica in replicas.items()}
    agent_before = cpu_seconds(agent_pid)
    for order in rounds.orders(ARMS, count, seed=len(all_series["bare"].total)):
        for arm in order:
            others = {other: cpu_seconds(pids[other]) for other in ARMS if other != arm}
            ask(replicas[arm], prompts, load, all_series[arm])
            taken = all_series[arm].total[-1]
            for other, before in others.items():
                all_series[other].idle.append((cpu_seconds(pids[other]) - before) / taken)
    agent.cpu.append((cpu_seconds(agent_pid) - agent_before) / (count * load.together))
    agent.memory.append(proportional_mib(agent_pid))
    for arm, replica in replicas.items():
        all_series[arm].steps += step_clock.read(replica.folder / "steps")[steps_before[arm] :]
        all_series[arm].memory.append(proportional_mib(pids[arm]))
    status = replicas["joined"].status()
    stored, found = status["transfers"].get("store_in", {"blocks": 0})["blocks"], replicas["joined"].prompt_tokens()
    print(f"  joined: {stored} blocks stored, {found['pool']} tokens from the pool (must be 0)", flush=True)
    if found["pool"] or found["host"] or not stored:
        raise SystemExit("the joined server did not do what this measures: it stores all and finds nothing")


def show(all_series: dict[str, Series], agent: Series) -> None:
    for arm, one in all_series.items():
        print(
            f"  {arm:9} TTFT p50 {statistics.median(one.ttft):.3f} s, p99 {rounds.p99(one.ttft):.3f} s; "
            f"ITL p50 {1e3 * statistics.median(one.gaps):.1f} ms, p99 {1e3 * rounds.p99(one.gaps):.1f} ms; "
            f"scheduler step p50 {1e3 * statistics.median(one.steps):.2f} ms, p99 {1e3 * rounds.p99(one.steps):.2f} ms "
            f"({len(one.steps)} steps)"
        )
    for arm, one in (*all_series.items(), ("agent", agent)):
        idle = f", {100 * statistics.median(one.idle):.1f} % of a core while others are asked" if one.idle else ""
        print(
            f"  {arm:9} {statistics.median(one.cpu):.3f} CPU-s a request{idle}, "
            f"{statistics.median(one.memory):.0f} MiB (shared pages by share)"
        )
    bare, again, joined = (all_series[arm] for arm in ARMS)

    def middle(a: list[float], b: list[float]) -> list[float]:
        return [(x + y) / 2 for x, y in zip(a, b, strict=True)]

    both = middle(bare.total, again.total)
    print(f"  throughput, joined / bare    {rounds.ratio(both, joined.total)}")
    print(f"  throughput, A/A (noise)      {rounds.ratio(bare.total, again.total)}")
    print(f"  TTFT, joined / bare          {rounds.ratio(joined.ttft, middle(bare.ttft, again.ttft))}")
    print(f"  TTFT, A/A (noise)            {rounds.ratio(again.ttft, bare.ttft)}")
    print(f"  CPU-s, joined / bare         {rounds.ratio(joined.cpu, middle(bare.cpu, again.cpu))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one start, three rounds: to see that it works")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="of each start")
    parser.add_argument("--prompt-tokens", type=int, default=640)
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--together", type=int, default=1, help="requests at a time")
    parser.add_argument("--engine-python", type=Path, help="an interpreter with vLLM; without it the cached CPU build")
    parser.add_argument("--model", type=Path, help="a folder; goes with --engine-python")
    parser.add_argument("--engine-arguments", default="", help="added to the servers' own")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    if bool(options.engine_python) != bool(options.model):
        raise SystemExit("tax.py: --engine-python and --model go together.")
    if options.quick:
        options.starts, options.rounds = 1, 3
    cores = core_sets("tax.py")
    load = Load(options.prompt_tokens, options.answer_tokens, options.together)
    tools = Tools(options.engine_python, options.model) if options.model else Tools.prepared()
    all_series, agent = {arm: Series() for arm in ARMS}, Series()
    print(
        f"{options.starts} starts of {options.rounds} rounds, {load.prompt_tokens} prompt and {load.answer_tokens} "
        f"answer tokens, {load.together} at a time; {rounds.machine()}",
        flush=True,
    )
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory(prefix="kvpool-tax-") as folder:
            arguments = tuple(shlex.split(options.engine_arguments))
            pool = Pool(tools, Path(folder), dtype=options.dtype, executor=EXECUTOR, engine_arguments=arguments)
            try:
                one_start(pool, load, options.rounds, cores, all_series, agent)
            finally:
                pool.stop()
    show(all_series, agent)


if __name__ == "__main__":
    main()
