#!/usr/bin/env python3
"""A pool of real agents under mixed faults for a long time: `make soak`, SOAK_MINUTES (60) and SOAK_SEED.

    soak.py [--minutes 60] [--seed WORD]

Stand-in engines ask all the time and compare every byte they load. Faults of ten kinds come at random, three at a
time. Two members' processes live through the whole run: their memory, descriptors and threads must not grow, nor those
of this process, in which all engines' clients run. The exit status is 1 when a byte was wrong, a request or a member
did not come back, sharing is not whole at the end, or something grew.
"""

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from agent_pool import AgentPool
from arena_audit import Audit, audit
from chaos import Chaos, Members
from process_use import OVERHEAD, Use, growth, try_use_of
from replica import CLAIMS_KEPT, LOOPBACK, MIB, WaitError, free_port, wait_for
from standin_engine import Served, prompt
from traffic import ROW, Prompts, Totals, Traffic

from kvpool_agent.peer.connection import PeerError

ARENA = 16 * MIB
ENGINE = {"row_bytes": ROW, "rows": 192, "store_seconds": 2.0}
AGENT = {"arenaBytes": ARENA, "loading": {"deadlineSeconds": 1.0}, "readiness": {"deadlineSeconds": 10}}
STEADY, MORTAL = "ab", "cd"
PROGRESS_SECONDS, SAMPLE_SECONDS, AUDIT_SECONDS = 10.0, 2.0, 30.0
JUDGED_SECONDS = 600  # a shorter run says nothing about growth
SETTLED = 0.1  # of the run, after which what grows counts: pools of threads and connections have their size
MEMORY_GROWTH, COUNT_GROWTH = 8 * MIB, 8  # over the whole run, of the floor
SHARING_SECONDS = 120.0
SHARED_BLOCKS = 12


class Samples:
    """Series of each member's use, by name; `clients` is this process."""

    def __init__(self) -> None:
        self.of: dict[str, list[Use]] = {}

    def take(self, traffics: list[Traffic]) -> None:
        for traffic in traffics:
            use = try_use_of(traffic.node)
            if use is not None:
                self.of.setdefault(traffic.node.replica.name, []).append(use)
        own = Use(len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), 0, 0)
        self.of.setdefault("clients", []).append(own)


def grown(series: list[Use]) -> tuple[float, float, float]:
    """Growth of memory, descriptors and threads over the run, its beginning left out."""
    steady = series[int(SETTLED * len(series)) :]
    return (
        growth([use.memory for use in steady]),
        growth([use.descriptors for use in steady]),
        growth([use.threads for use in steady]),
    )


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.totals, self.samples, self.audits = Totals(), Samples(), Audit()
        self.pool = AgentPool(folder, **AGENT)
        self.prompts = Prompts(seed)
        for _ in range(CLAIMS_KEPT):  # each is a descriptor of this process: all of them from the beginning
            free_port()
        nodes = self.pool.all_started(STEADY + MORTAL)
        for node in nodes:
            node.attach(**ENGINE)
        members = Members(self.pool)
        members.add(*(f"{LOOPBACK}:{node.replica.peer_port}" for node in nodes))
        self.traffics = [Traffic(node, self.prompts, self.totals, random.Random(f"{seed} {i}"))
                         for i, node in enumerate(nodes)]  # fmt: skip
        fingerprint = nodes[0].status().format
        self.chaos = Chaos(
            self.pool, members, self.prompts, self.totals, self.traffics[: len(STEADY)], self.traffics[len(STEADY) :],
            dict(ENGINE), fingerprint, seed,
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        for traffic in self.traffics:
            traffic.start()
        self.chaos.start()
        try:
            self._watch(began, seconds)
        except KeyboardInterrupt:
            self.totals.fail("the run was ended early")
        self._say("the faults end")
        self.chaos.end()
        for traffic in self.traffics:
            traffic.end()
        self._say("sharing must be whole again")
        self._sharing_is_whole()
        self.audit()

    def _watch(self, began: float, seconds: float) -> None:
        told, audited = began, began
        while (now := time.monotonic()) < began + seconds and self.totals.wrong_requests == 0:
            self.samples.take(self.traffics)
            if now - told >= PROGRESS_SECONDS:
                told = now
                self._tell(now - began, seconds)
            if now - audited >= AUDIT_SECONDS:
                audited = now
                self.audit()
            time.sleep(SAMPLE_SECONDS)

    def audit(self) -> None:
        """Whatever members hold now is asked for and compared; one that is away is left out."""
        for traffic in self.traffics:
            try:
                found = audit(traffic.node, self.prompts.known(), ROW)
            except (PeerError, OSError, ValueError):
                continue
            self.audits.right += found.right
            self.audits.refused += found.refused
            self.audits.wrong += found.wrong
            if found.wrong:
                self.totals.fail(f"{traffic.node.replica.name} holds {found.wrong} wrong blocks under valid tags")

    def _sharing_is_whole(self) -> None:
        """What one computes every other one loads, all of it. Breakers may be open at first."""
        for giver in self.traffics:
            for taker in self.traffics:
                if giver is taker:
                    continue
                name = f"{giver.node.replica.name} to {taker.node.replica.name}"
                try:
                    wait_for(f"sharing, {name}", lambda g=giver, t=taker, n=name: _shares(g, t, n), SHARING_SECONDS)
                except WaitError as error:
                    self.totals.fail(str(error))

    def _tell(self, passed: float, seconds: float) -> None:
        totals, faults = self.totals, sum(self.chaos.counts.values())
        use = {name: series[-1] for name, series in self.samples.of.items()}
        held = "  ".join(f"{n} {u.memory / MIB:.0f} MiB {u.descriptors} fd {u.threads} thr" for n, u in use.items())
        self._say(
            f"{passed / 60:5.1f} of {seconds / 60:g} min  {totals.requests} requests, {totals.loaded} loaded, "
            f"{totals.computed} computed  {faults} faults  {totals.wrong_requests} wrong, "
            f"{len(totals.failures)} failures  {held}"
        )

    @staticmethod
    def _say(line: str) -> None:
        print(time.strftime("%H:%M:%S"), line, flush=True)


def _shares(giver: Traffic, taker: Traffic, name: str) -> bool:
    tokens = prompt(f"{name} {secrets.token_hex(4)}", SHARED_BLOCKS)
    giver.node.engine.serve(tokens)
    return taker.node.engine.serve(tokens) == Served(pool=SHARED_BLOCKS)


def report(soak: Soak, seconds: float, seed: str) -> bool:
    """Prints the table; whether all was as it must be."""
    totals, good = soak.totals, not soak.totals.failures
    print(f"\nsoak of {seconds / 60:.1f} min, seed {seed}")
    print(f"  requests            {totals.requests}, the longest {totals.longest:.1f} s")
    print(f"  blocks              {totals.loaded} loaded, {totals.computed} computed, {totals.host} in the host pools")
    print(f"  wrong bytes         {totals.wrong_requests} requests, {soak.audits.wrong} blocks held")
    print(f"  blocks audited      {soak.audits.right} right, {soak.audits.refused} refused by their tag")
    for name, count in sorted(soak.chaos.counts.items()):
        print(f"  {name:28} {count}")
    print("  use                 most memory      growth of memory  descriptors  threads  verdict")
    worst = [0.0, 0.0, 0.0]
    for name, series in sorted(soak.samples.of.items()):
        most = max(use.memory for use in series)
        memory, descriptors, threads = grown(series)
        bounded = most <= ARENA + OVERHEAD
        verdict = "within its bound" if bounded else "OVER ITS BOUND"
        if name not in MORTAL:
            flat = memory <= MEMORY_GROWTH and descriptors <= COUNT_GROWTH and threads <= COUNT_GROWTH
            worst = [max(pair) for pair in zip(worst, (memory / MIB, descriptors, threads), strict=True)]
            if seconds >= JUDGED_SECONDS:
                verdict += ", flat" if flat else ", GROWS"
                good = good and flat
        good = good and bounded
        print(
            f"  {name:19} {most / MIB:5.1f} of {(ARENA + OVERHEAD) / MIB:.0f} MiB {memory / MIB:+12.1f} MiB "
            f"{descriptors:+12.1f} {threads:+8.1f}  {verdict}"
        )
    for failure in totals.failures[:20]:
        print(f"  FAILURE: {failure}")
    print(f"  {'passed' if good else 'FAILED'}\n")
    print("| minutes | requests | blocks loaded, computed | faults | wrong bytes | most memory | growth over the run |")
    most = max(use.memory for series in soak.samples.of.values() for use in series) / MIB
    print(
        f"| {seconds / 60:.0f} | {totals.requests} | {totals.loaded}, {totals.computed} "
        f"| {sum(soak.chaos.counts.values())} of {len(soak.chaos.counts)} kinds "
        f"| {totals.wrong_requests + soak.audits.wrong} | {most:.0f} of {(ARENA + OVERHEAD) / MIB:.0f} MiB "
        f"| {worst[0]:.1f} MiB, {worst[1]:.1f} descriptors, {worst[2]:.1f} threads |"
    )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 60))
    parser.add_argument("--seed", default=os.environ.get("SOAK_SEED") or secrets.token_hex(4))
    options = parser.parse_args()
    print(f"soak of {options.minutes:g} min, seed {options.seed} (SOAK_SEED={options.seed} draws the same faults)")
    with tempfile.TemporaryDirectory(prefix="kvpool-soak-") as folder:
        soak = Soak(Path(folder), options.seed)
        began = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            soak.run(60 * options.minutes)
        finally:
            soak.chaos.ended.set()
            soak.pool.stop()
        good = report(soak, time.monotonic() - began, options.seed)
    sys.exit(not good)


if __name__ == "__main__":
    main()
