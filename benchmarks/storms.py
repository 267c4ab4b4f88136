"""What sharing does to the time to the first token when ten replicas start at once, and when all of them meet what
nobody has.

    python benchmarks/storms.py [--quick] [--csv FILE]

Real agents inside TLS, as a pool's defaults have them, under stand-in engines that sleep for each token that they
compute; the same engines without agents are `bare`, and a second time `bare too`, which is the noise. Two hundred
requests of each arm and picture:

- `start`: two replicas have served twelve prefixes for a while. Ten more start at the same time; each is asked for the
  prefixes, with an ending of its own, one request after another, as soon as it is ready.
- `storm`: ten replicas, which have met one such round before. In each round two new prefixes come, one to every replica
  of either half at the same time, and then, crosswise, the other one: first everybody computes and publishes, and then
  everybody asks for what the others have just computed.

Arms of one round follow each other in an order drawn anew. The engines are threads of one process, and what they do
beside sleeping is in every arm's figures.
"""

import argparse
import csv
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
from agent_pool import AgentPool  # noqa: E402
from first_token import first_token  # noqa: E402
from replica import MIB, wait_for  # noqa: E402
from standin_engine import StandInEngine, prompt  # noqa: E402

ARMS = BARE, JOINED, AGAIN = "bare", "joined", "bare too"
REPLICAS, PREFIXES, ROW_BYTES = 10, 12, 64 << 10
BLOCKS, OWN_BLOCKS = 64, 4  # of a prefix, and of what follows it
TOKEN_SECONDS = 0.002  # a prefix takes half a second
ROWS = 1024
ARENA = 128 * MIB
READY_SECONDS = 120.0


@dataclass(frozen=True)
class Asked:
    picture: str
    arm: str
    round: int
    wave: str
    seconds: float


class Replica:
    """`path`: its agent's socket, if it has one."""

    def __init__(self, path: str) -> None:
        self.engine = StandInEngine(path, row_bytes=ROW_BYTES, rows=ROWS, token_seconds=TOKEN_SECONDS).start()
        self.ask = partial(first_token, self.engine)


def tokens_of(prefix: str, own: str) -> list[int]:
    return [*prompt(prefix, BLOCKS)[:-1], *prompt(own, OWN_BLOCKS)]


class Fleet:
    """Replicas of one arm; those of a pool with their agents."""

    def __init__(self, folder: Path, *, joined: bool) -> None:
        self._pool = AgentPool(folder, arenaBytes=ARENA) if joined else None
        self._folder = folder
        self.replicas: list[Replica] = []

    def start(self, count: int) -> list[Replica]:
        """So many more, when all of them are ready."""
        with ThreadPoolExecutor(count) as threads:
            made = list(threads.map(self._one, range(len(self.replicas), len(self.replicas) + count)))
        self.replicas += made
        return made

    def _one(self, number: int) -> Replica:
        if self._pool is None:
            return Replica(str(self._folder / f"nobody-{number}.sock"))
        node = self._pool.node(f"r{number}").start()
        replica = Replica(node.socket_path)
        wait_for("an agent that is ready", node.ready, READY_SECONDS, 0.02)
        return replica

    def close(self) -> None:
        for replica in self.replicas:
            replica.engine.close()
        if self._pool is not None:
            self._pool.stop()


@contextmanager
def fleet(arm: str) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(Path(folder), joined=arm == JOINED)
        try:
            yield made
        finally:
            made.close()


def together(replicas: Sequence[Replica], ask: Callable[[int, Replica], list[float]]) -> list[float]:
    """What each replica's requests took; all replicas begin at the same time."""
    begin = threading.Barrier(len(replicas))

    def one(number: int) -> list[float]:
        begin.wait(READY_SECONDS)
        return ask(number, replicas[number])

    with ThreadPoolExecutor(len(replicas)) as threads:
        return [seconds for each in threads.map(one, range(len(replicas))) for seconds in each]


def start(arm: str, number: int, requests: int) -> Iterator[Asked]:
    """One start of ten replicas."""
    with fleet(arm) as found:
        old = found.start(2)
        for turn in range(3 * PREFIXES):
            old[turn % 2].ask(tokens_of(f"p{turn % PREFIXES}", f"old {turn}"))
        began = time.monotonic()
        new = found.start(REPLICAS)
        print(f"  start {number}, {arm}: ten replicas are ready after {time.monotonic() - began:.1f} s", flush=True)

        def ask(of: int, replica: Replica) -> list[float]:
            chance = random.Random(1000 * number + of)
            return [
                replica.ask(tokens_of(f"p{chance.randrange(PREFIXES)}", f"new {number} {of} {n}"))
                for n in range(requests)
            ]

        for seconds in together(new, ask):
            yield Asked("start", arm, number, "", seconds)


def storms(count: int) -> Iterator[Asked]:
    """All arms' rounds, interleaved."""
    with fleet(BARE) as bare, fleet(JOINED) as joined, fleet(AGAIN) as again:
        fleets = {BARE: bare, JOINED: joined, AGAIN: again}
        for each in fleets.values():
            each.start(REPLICAS)
        for number, order in enumerate(rounds.orders(ARMS, count + 1)):
            for arm in order:
                for wave, of in (("computed by all", 0), ("asked by the others", 1)):

                    def ask(n: int, replica: Replica, of: int = of, number: int = number) -> list[float]:
                        return [replica.ask(tokens_of(f"storm {number} {(n + of) % 2}", f"own {n} {of}"))]

                    for seconds in together(fleets[arm].replicas, ask):
                        if number:
                            yield Asked("storm", arm, number, wave, seconds)


def told(asked: Sequence[Asked]) -> str:
    seconds = [one.seconds for one in asked]
    return " | ".join(f"{1e3 * rounds.quantile(seconds, part):.0f} ms" for part in (0.5, 0.95, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="A tenth of the requests.")
    parser.add_argument("--csv", type=Path, help="Where every request's seconds are written.")
    given = parser.parse_args()
    print(f"{rounds.machine()}; a prefix takes {BLOCKS * 4 * TOKEN_SECONDS * 1e3:.0f} ms to compute")
    starts, requests, storm_rounds = (1, 2, 1) if given.quick else (2, 10, 10)
    asked = [one for number in range(starts) for arm in ARMS for one in start(arm, number, requests)]
    asked += storms(storm_rounds)
    print("\n| picture | wave | arm | requests | p50 | p95 | p99 |\n|---|---|---|---|---|---|---|")
    for picture, wave in dict.fromkeys((one.picture, one.wave) for one in asked):
        for arm in ARMS:
            of = [one for one in asked if (one.picture, one.wave, one.arm) == (picture, wave, arm)]
            print(f"| {picture} | {wave} | {arm} | {len(of)} | {told(of)} |")
    if given.csv:
        with given.csv.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(("picture", "arm", "round", "wave", "ms"))
            lines.writerows((o.picture, o.arm, o.round, o.wave, round(1e3 * o.seconds)) for o in asked)


if __name__ == "__main__":
    main()
