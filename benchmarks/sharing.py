"""What sharing does to the time to the first token of real engines: where long prefixes are steadily found at other
replicas, and where what another one holds comes too slowly to be worth it.

    python benchmarks/sharing.py [--quick] [--picture NAME] [--csv FILE] [--prefix-tokens 640] [--slow-megabytes 10]

Three real vLLM servers on the CPU with their agents, inside TLS and with `loading.mode: Measured`, which are a pool's
defaults: `joined`. Three without: `bare`. No two arms share a prompt; one request at a time; arms of one round follow
each other in an order drawn anew.

- `steady`: in each round one replica, each in its turn, computes a new prefix, and the two others are asked for the one
  of two rounds ago, each with an ending of its own. The bare ones are asked as much again, `bare too`: the noise.
- `slow`: the third replica computes each round's prefix, and one of the others, in turn, is asked for the one of two
  rounds ago. Both reach the third one's agent by a proxy of this program's that paces what comes from there: to load a
  prefix takes several times as long as to compute it. What is sought is small, and one server computes up to a tenth
  faster than the next, with agents or without; so the same server is asked for a `fresh` prefix too, which nobody has,
  and one is compared with the other. At the bare ones, which compute both, that is the noise.

Rounds numbered below 0 come first and are in the file alone: each replica computes and is asked, so that every agent
has measured what it decides by. All seconds are of this process's clock, from the request to its first token.

What differs between the arms is kvpool alone. All engines run on the same cores, each with one thread to compute;
agents, proxy and this program on the last one. They are forked from one process that has imported vLLM (see
tests/e2e/engine/forge.py), whose core and worker busily wait for each other for 20 ms instead of a second: six of them
would otherwise take the core from each other.
"""

import argparse
import csv
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
for part in ("agent", "examples/demo", "tests/e2e"):
    sys.path.insert(0, str(REPOSITORY / part))

import rounds  # noqa: E402
from engine.forged import Forge, ForgedPool, forged_pool  # noqa: E402
from engine.measured import prompt  # noqa: E402
from replica import LOOPBACK, MIB, Replica, Tools, wait_for  # noqa: E402
from servers import core_sets, on_cores, stream  # noqa: E402
from throttled import ThrottledLink  # noqa: E402

BARE, JOINED, AGAIN = "bare", "joined", "bare too"
STEADY, SLOW = "steady", "slow"
ARMS = {STEADY: (BARE, JOINED, AGAIN), SLOW: (BARE, JOINED)}
COMPUTED, ASKED, FRESH = "computed", "asked", "fresh"
FRESH_SEEDS = 20_000  # and more; prompts of two seeds below 40,000 share nothing
REPLICAS = 3
WARM_UP = 2 * REPLICAS  # rounds
LAG = 2  # rounds from a prefix's computing until it is asked for: the others have heard of it by then
OWN_TOKENS = 24  # of what follows a prefix
PAUSE_SECONDS = 0.05  # after an arm's turn: what its agents still do is not in the next arm's figures
ARENA, HOST_POOL, DEVICE = 512 * MIB, 256 * MIB, 256 * MIB
PARTS = (0.5, 0.95, 0.99)
TELL_SECONDS = 15.0


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A round's: which replica computes it, and which are asked for it."""

    round: int
    seed: int
    holder: int
    askers: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Asked:
    """`cached`: tokens of the prompt that were not computed."""

    picture: str
    round: int
    wave: str
    arm: str
    seconds: float
    cached: int


def prefixes(picture: str, arm: str, count: int) -> list[Prefix]:
    """Those of all rounds of an arm."""
    found = []
    for number in range(-WARM_UP, count):
        holder = number % REPLICAS
        askers = [n for n in range(REPLICAS) if n != holder]
        if picture == SLOW and number >= 0:
            holder, askers = REPLICAS - 1, [number % (REPLICAS - 1)]
        arms = ARMS[picture]
        seed = ((number + WARM_UP) * len(arms) + arms.index(arm)) * 2 + (picture == SLOW) + 1
        found.append(Prefix(number, seed, holder, askers))
    return found


class Fleet:
    """Three servers of one arm, with their agents where they are joined. `slow`: bytes per second that the third one's
    agent gives at most; 0: no bound."""

    def __init__(self, pool: ForgedPool, prefix_tokens: int, *, joined: bool, slow: float) -> None:
        self._pool, self._tokens, self._joined, self._slow = pool, prefix_tokens, joined, slow
        self.replicas: list[Replica] = [pool.replica(name) for name in "abc"]
        self._link: ThrottledLink | None = None

    def start(self, environment: dict[str, str]) -> None:
        """Does not wait for the engines."""
        if self._joined:
            self._start_agents()
        for replica in self.replicas:
            replica.start_engine(self._joined, {"PYTHONPATH": str(self._pool.client), **environment})

    def _start_agents(self) -> None:
        *others, third = self.replicas
        third.listed = bool(self._slow)  # then the link is, and not its own address
        third.start_agent()
        if self._slow:
            self._link = ThrottledLink(third.peer_port, self._slow)
            with self._pool.members.open("a") as members:
                members.write(f"{self._link.address}\n")
        for each in others:
            each.start_agent()

    def wait(self) -> None:
        """Until all are ready, and all agents know each other."""
        for replica in self.replicas:
            replica.wait_engine()
        for replica in self.replicas if self._joined else ():
            replica.wait_ready()
            wait_for(f"{replica.name} sees the others", lambda one=replica: self._settled(one), 60)

    def _settled(self, one: Replica) -> bool:
        """Whether it sees the others where it shall, and its own request for the probe is over."""
        third = self._link.address if self._link else f"{LOOPBACK}:{self.replicas[-1].peer_port}"
        addresses = [*(f"{LOOPBACK}:{other.peer_port}" for other in self.replicas[:-1]), third]
        others = {at for at, other in zip(addresses, self.replicas, strict=True) if other is not one}
        status = one.status()
        live = {peer["address"] for peer in status["peers"] if peer["live"]}
        return live == others and status["probe"]["state"] not in ("", "pending")

    def close(self) -> None:
        self._pool.stop()
        if self._link:
            self._link.close()

    def counted(self, name: str) -> int:
        """By all agents."""
        return sum(replica.status()["counters"].get(name, 0) for replica in self.replicas)

    def ask(self, number: int, prefix: Prefix) -> tuple[float, int]:
        """Seconds until the first token of a prompt with this prefix and an ending of its own; tokens not computed."""
        own = prompt(10_000 + prefix.seed * REPLICAS + number, OWN_TOKENS)
        answer = stream(self.replicas[number], [*prompt(prefix.seed, self._tokens), *own], 1)
        return answer.stamps[0], answer.cached


def turn(picture: str, arm: str, fleet: Fleet, new: Prefix | None, known: Prefix | None) -> Iterator[Asked]:
    """One arm's requests of a round."""
    if new is not None:
        yield Asked(picture, new.round, COMPUTED, arm, *fleet.ask(new.holder, new))
    for number in known.askers if known is not None else ():
        fresh = dataclasses.replace(known, seed=FRESH_SEEDS + known.seed)
        ways = [(ASKED, known), (FRESH, fresh)] if picture == SLOW else [(ASKED, known)]
        for wave, prefix in ways if known.round // 2 % 2 else reversed(ways):  # each of two askers in both orders
            yield Asked(picture, known.round, wave, arm, *fleet.ask(number, prefix))
    time.sleep(PAUSE_SECONDS)


def run(picture: str, fleets: dict[str, Fleet], count: int) -> Iterator[Asked]:
    """All arms' rounds, interleaved."""
    planned = {arm: prefixes(picture, arm, count) for arm in ARMS[picture]}
    steps = count + WARM_UP + LAG
    began = told = time.monotonic()
    for step, order in enumerate(rounds.orders(ARMS[picture], steps)):
        for arm in order:
            new = planned[arm][step] if step < steps - LAG else None
            known = planned[arm][step - LAG] if step >= LAG else None
            yield from turn(picture, arm, fleets[arm], new, known)
        if (now := time.monotonic()) > told + TELL_SECONDS or step + 1 == steps:
            told = now
            print(f"  {picture}: {step + 1} of {steps} rounds, {now - began:.0f} s", flush=True)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all fleets are made of."""

    forge: Forge
    tools: Tools
    folder: Path
    engine_cores: set[int]
    prefix_tokens: int

    @contextmanager
    def fleet(self, name: str, *, joined: bool, slow: float = 0.0) -> Iterator[Fleet]:
        """Its engines start; `wait` for them."""
        pool = forged_pool(
            self.forge, self.tools, self.folder / name, dtype="bfloat16", loading="Measured",
            host_pool_bytes=HOST_POOL, device_bytes=DEVICE, agent={"arenaBytes": ARENA},
            engine_arguments=("--enable-prompt-tokens-details",),
        )  # fmt: skip
        made = Fleet(pool, self.prefix_tokens, joined=joined, slow=slow)
        try:
            made.start({"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(self.engine_cores)))})
            yield made
        finally:
            made.close()


def measured(bench: Bench, counts: dict[str, int], slow: float) -> Iterator[Asked]:
    """Both pictures; the bare servers are the same in both."""
    began = time.monotonic()
    with bench.fleet("bare", joined=False) as bare:
        for picture, count in counts.items():
            with bench.fleet(picture, joined=True, slow=slow if picture == SLOW else 0.0) as joined:
                for fleet in (bare, joined):
                    fleet.wait()
                print(f"{picture}: servers are ready; {time.monotonic() - began:.0f} s so far", flush=True)
                yield from run(picture, {BARE: bare, JOINED: joined, AGAIN: bare}, count)
                refused, tried = joined.counted("loads_refused"), joined.counted("loads_tried")
                print(f"  {picture}: agents refused {refused} loads and tried {tried} of those again", flush=True)


# -- what is told ---------------------------------------------------------------------------------


def kept(asked: Iterator[Asked], path: Path | None) -> Iterator[Asked]:
    """The same, each one in the file as soon as it is there."""
    if path is None:
        yield from asked
        return
    with path.open("w", newline="", buffering=1) as file:
        lines = csv.writer(file)
        lines.writerow(("picture", "round", "wave", "arm", "ms", "cached"))
        for one in asked:
            lines.writerow((one.picture, one.round, one.wave, one.arm, round(1e3 * one.seconds), one.cached))
            yield one


def seconds_of(asked: Sequence[Asked], picture: str, wave: str, arm: str) -> list[float]:
    return [one.seconds for one in asked if (one.picture, one.wave, one.arm) == (picture, wave, arm)]


def show(asked: Sequence[Asked], prefix_tokens: int) -> None:
    """Tables of all rounds from 0 on."""
    asked = [one for one in asked if one.round >= 0]
    pictures = [picture for picture in ARMS if any(one.picture == picture for one in asked)]
    waves = [(picture, wave) for picture in pictures for wave in (ASKED, FRESH, COMPUTED)]
    print("\n| picture | wave | arm | requests | loaded whole | p50 | p95 | p99 |\n|---|---|---|---|---|---|---|---|")
    for picture, wave in waves:
        for arm in ARMS[picture]:
            of = [one for one in asked if (one.picture, one.wave, one.arm) == (picture, wave, arm)]
            if not of:
                continue
            whole = sum(one.cached >= prefix_tokens for one in of)
            times = [rounds.quantile([one.seconds for one in of], part) for part in PARTS]
            told = " | ".join(f"{1e3 * seconds:.0f} ms" for seconds in times)
            print(f"| {picture} | {wave} | {arm} | {len(of)} | {whole} | {told} |")
    print("\n| picture | compared | quantile | ratio | noise | beyond it |\n|---|---|---|---|---|---|")
    for picture in pictures:
        for name, above, below, noise in compared(asked, picture):
            for part in PARTS:
                ratio, chance = rounds.quantile_ratio(above, below, part), rounds.quantile_ratio(*noise, part)
                word = "slower" if ratio.low > chance.high else "faster" if ratio.high < chance.low else "no"
                print(f"| {picture} | {name} | p{100 * part:.0f} | {ratio} | {chance} | {word} |")


Series = Sequence[float]


def compared(asked: Sequence[Asked], picture: str) -> Iterator[tuple[str, Series, Series, tuple[Series, Series]]]:
    """What of a picture is compared with what, and two series between which there is nothing but noise."""
    if picture == SLOW:
        joined, fresh = (seconds_of(asked, picture, wave, JOINED) for wave in (ASKED, FRESH))
        bare, too = (seconds_of(asked, picture, wave, BARE) for wave in (ASKED, FRESH))
        yield "joined: asked / fresh", joined, fresh, (bare, too)
        return
    for wave in (ASKED, COMPUTED):
        bare, joined, again = (seconds_of(asked, picture, wave, arm) for arm in (BARE, JOINED, AGAIN))
        yield f"{wave}: joined / bare", joined, [*bare, *again], (again, bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Few rounds: to see that it works.")
    parser.add_argument("--picture", choices=[STEADY, SLOW], default="", help="One of them alone.")
    parser.add_argument("--csv", type=Path, help="Where every request's seconds are written.")
    parser.add_argument("--prefix-tokens", type=int, default=640, help="A multiple of 128, at most 1920.")
    parser.add_argument("--slow-megabytes", type=float, default=10.0, help="A second, of what comes from the slow one.")
    given = parser.parse_args()
    if given.prefix_tokens % 128 or not 0 < given.prefix_tokens <= 1920:
        parser.error(f"--prefix-tokens {given.prefix_tokens}: a multiple of 128, at most 1920")
    engine_cores, _ = core_sets("sharing.py")
    counts = {STEADY: 3, SLOW: 4} if given.quick else {STEADY: 100, SLOW: 200}
    counts = {picture: count for picture, count in counts.items() if given.picture in ("", picture)}
    print(f"{rounds.machine()}; prefixes of {given.prefix_tokens} tokens", flush=True)
    with tempfile.TemporaryDirectory(prefix="kvpool-sharing-") as name:
        folder, tools = Path(name), Tools.prepared()
        with on_cores(engine_cores):
            forge = Forge(tools, folder)
        with closing(forge):
            bench = Bench(forge, tools, folder, engine_cores, given.prefix_tokens)
            asked = list(kept(measured(bench, counts, given.slow_megabytes * 1e6), given.csv))
    show(asked, given.prefix_tokens)
    few = "; too few requests to conclude anything from" if given.quick else ""
    print(f"\n{rounds.machine()}{few}")


if __name__ == "__main__":
    main()
