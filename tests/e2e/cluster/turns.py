"""A load beside what a test does to a pool of stand-in engines: one computes a prompt, the other loads it, by turns."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from standin_engine import prompt

from cluster.engines import Member
from cluster.kube import wait_for
from cluster.standins import Served, ask


@contextmanager
def load(members: list[Member], blocks: int) -> Iterator[list[Served]]:
    """Without end, in prompts of so many blocks that nobody has asked before. What each load brought."""
    found: list[Served] = []
    failures: list[Exception] = []
    ended = threading.Event()

    def turn(number: int) -> None:
        source, sink = members[number % 2], members[(number + 1) % 2]
        tokens = prompt(f"load-{number}", blocks)
        held = source.status().arena.blocks + blocks
        assert ask(source.pod.address, tokens) == Served(computed=blocks)
        wait_for("it is stored", lambda: source.status().arena.blocks >= held, 30, 0.05)
        wait_for("it is known", lambda: _seen(sink, source) >= held, 30, 0.05)
        found.append(ask(sink.pod.address, tokens))

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
        yield found
    finally:
        ended.set()
        thread.join(60)
    assert failures == []


def _seen(sink: Member, source: Member) -> int:
    return max((p.blocks for p in sink.status().peers if p.member == source.pod.uid and p.live), default=-1)
