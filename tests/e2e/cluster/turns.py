"""A load beside what a test does to a pool of stand-in engines: one computes a prompt, the other loads it, by turns."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from standin_engine import prompt

from cluster.engines import Member
from cluster.kube import wait_for
from cluster.standins import Served, ask, wait_known


@dataclass
class Loads:
    """How many loads were whole; of each other one its number, what it brought, and the misses that it was told."""

    whole: int = 0
    others: list[tuple[int, Served, dict[str, int]]] = field(default_factory=list)


@contextmanager
def load(members: list[Member], blocks: int) -> Iterator[Loads]:
    """Without end, in prompts of so many blocks that nobody has asked before."""
    loads = Loads()
    failures: list[Exception] = []
    ended = threading.Event()

    def turn(number: int) -> None:
        source, sink = members[number % 2], members[(number + 1) % 2]
        tokens = prompt(f"load-{number}", blocks)
        stored = _stored(source) + blocks
        assert ask(source.pod.address, tokens) == Served(computed=blocks)
        wait_for("it is stored", lambda: _stored(source) >= stored, 60, 0.05)
        held = source.status().arena.blocks
        wait_for("it is known", lambda: _seen(sink, source) >= held, 60, 0.05)
        wait_known(sink, tokens)
        before = sink.status().misses
        if (served := ask(sink.pod.address, tokens)) == Served(pool=blocks):
            loads.whole += 1
            return
        after = sink.status().misses
        loads.others.append((number, served, {why: n - before.get(why, 0) for why, n in after.items()}))

    def run() -> None:
        number = 0
        while not ended.is_set():
            try:
                turn(number)
            except Exception as error:  # noqa: BLE001 (told below)
                failures.append(error)
                return
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield loads
    finally:
        ended.set()
        thread.join(60)
    assert failures == []


def _stored(member: Member) -> int:
    """Blocks that its own engine has computed; what others hand to it isn't counted."""
    moved = member.status().transfers.get("store_in")
    return moved.blocks if moved else 0


def _seen(sink: Member, source: Member) -> int:
    return max((p.blocks for p in sink.status().peers if p.member == source.pod.uid and p.live), default=-1)
