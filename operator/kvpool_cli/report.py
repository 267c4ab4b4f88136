"""What the agents of a pool answered, for people (a table, and the reasons explained below it) and for
programs."""

import io
import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from kvpool_cli.members import UNREACHABLE, Answer
from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus

COLUMNS = ("MEMBER", "STATE", "WARM", "LOCAL", "SHARED", "COMPUTED", "SHARED IN", "ARENA", "FORMAT", "REASON")
NOTHING = "-"
FROM_PEERS = ("demand_in", "prewarm_in")  # what went out stands in the other side's row
FORMAT_DIGITS = 8
CLOSED = "closed"
WIDTH = 200


def as_json(answers: list[Answer]) -> str:
    """The documents as they came, each under its member's name."""
    rows = [
        {"member": answer.member, "status": json.loads(answer.document)}
        if answer.status
        else {"member": answer.member, "status": None, "reason": UNREACHABLE, "error": answer.error}
        for answer in answers
    ]
    return json.dumps(rows, indent=2) + "\n"


def as_table(answers: list[Answer]) -> str:
    """One row a member; below, every reason that stands in a row, explained once."""
    table = Table(box=None, pad_edge=False, header_style="")
    for title in COLUMNS:
        table.add_column(title, no_wrap=True)
    for answer in answers:
        table.add_row(*(_row(answer.member, answer.status) if answer.status else _silent(answer.member)))
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    reasons = dict.fromkeys((answer.status.reason if answer.status else UNREACHABLE) for answer in answers)
    explained = [explain(reason) for reason in reasons if reason]
    errors = [f"{answer.member}: {answer.error}" for answer in answers if answer.error]
    notes = [*explained, *errors, *(note for answer in answers for note in (*_of_probe(answer), *_of_peers(answer)))]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _row(member: str, status: AgentStatus) -> list[str]:
    hits, warm, arena = status.hits, status.warm, status.arena
    asked = hits.local_blocks + hits.shared_blocks + hits.computed_blocks
    received = sum(status.transfers[name].bytes for name in FROM_PEERS if name in status.transfers)
    return [
        member,
        status.state,
        _percent(warm.loaded_blocks, warm.planned_blocks),
        _percent(hits.local_blocks, asked),
        _percent(hits.shared_blocks, asked),
        _percent(hits.computed_blocks, asked),
        _size(received),
        f"{_size(arena.used_bytes)}/{_size(arena.limit_bytes)}",
        status.format[:FORMAT_DIGITS] or NOTHING,
        status.reason or NOTHING,
    ]


def _of_probe(answer: Answer) -> Iterator[str]:
    """An engine that shares without having shown that it computes what the others compute."""
    if answer.status and answer.status.probe.state == "not_run":
        yield f"{answer.member}: {explain('probe_not_run')} ({answer.status.probe.detail})"


def _of_peers(answer: Answer) -> Iterator[str]:
    """What keeps this member from using others as sources."""
    for peer in answer.status.peers if answer.status else ():
        name = f"{answer.member} → {peer.member or peer.address}"
        if peer.breaker != CLOSED:
            yield f"{name}: breaker {peer.breaker} after {peer.failures} failures in a row"
        if peer.differences:
            yield f"{name}: not the same format: {'; '.join(peer.differences)}"


def _silent(member: str) -> list[str]:
    return [member, *[NOTHING] * (len(COLUMNS) - 2), UNREACHABLE]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else NOTHING


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
