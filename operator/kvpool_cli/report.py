"""What the agents of a pool answered, for people (a table, and the reasons explained below it) and for
programs."""

import io
import itertools
import json
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from kvpool_cli.members import Answer
from kvpool_contract.reasons import explain
from kvpool_contract.status import AgentStatus
from kvpool_operator.desired.objects import pool_field
from kvpool_operator.desired.status import UNREACHABLE
from kvpool_operator.view.figures import NOTHING, percent, size

COLUMNS = ("MEMBER", "STATE", "WARM", "LOCAL", "SHARED", "COMPUTED", "SHARED IN", "ARENA", "FORMAT", "REASON")
FROM_PEERS = ("demand_in", "prewarm_in")  # what went out stands in the other side's row
FORMAT_DIGITS = 8
CLOSED, DISTRUSTED = "closed", "distrusted"
# why a pool of the type Auto does without RDMA: nothing to tell
PLAIN = ("rdma_looking", "rdma_no_device", "rdma_no_pyverbs", "rdma_unencrypted")
NOTABLE_GAIN, LEAST_ASKED = 0.05, 1000
NOTABLE_REUSE = 0.02  # of the prompt blocks: more within twice the distance
NOTABLE_ORPHANS = 0.1  # of the blocks that a member holds
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
    notes = [*explained, *errors, *(note for answer in answers for note in _notes(answer))]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _row(member: str, status: AgentStatus) -> list[str]:
    hits, warm, arena = status.hits, status.warm, status.arena
    asked = hits.local_blocks + hits.shared_blocks + hits.computed_blocks
    received = sum(status.transfers[name].bytes for name in FROM_PEERS if name in status.transfers)
    return [
        member,
        status.state,
        percent(warm.loaded_blocks, warm.planned_blocks),
        percent(hits.local_blocks, asked),
        percent(hits.shared_blocks, asked),
        percent(hits.computed_blocks, asked),
        size(received),
        f"{size(arena.used_bytes)}/{size(arena.limit_bytes)}",
        status.format[:FORMAT_DIGITS] or NOTHING,
        status.reason or NOTHING,
    ]


def _notes(answer: Answer) -> Iterator[str]:
    """What there is to say of a member besides its row: nothing of one that is as it should be."""
    if answer.status is not None:
        for parts in (
            _of_configuration,
            _of_certificate,
            _of_probe,
            _of_canary,
            _of_calibration,
            _of_arena,
            _of_reuse,
            _of_near_identical,
            _of_disk,
            _of_store,
            _of_declared,
            _of_transport,
            _of_benefit,
        ):
            yield from (f"{answer.member}: {note}" for note in parts(answer.status))
        yield from _of_peers(answer.member, answer.status)


def _of_configuration(status: AgentStatus) -> Iterator[str]:
    """What of its configuration is not in force."""
    if status.config.reason:
        yield f"{explain(status.config.reason)} ({status.config.problem})"
    if status.config.needs_new_pods:
        fields = ", ".join(dict.fromkeys(pool_field(path) for path in status.config.needs_new_pods))
        yield f"it runs with former values of {fields}; make its pod anew"
    if status.unknown_config_fields:
        fields = ", ".join(status.unknown_config_fields)
        yield f"it does not know the configuration fields {fields}; update its image"


def _of_certificate(status: AgentStatus) -> Iterator[str]:
    """What is wrong with its certificate, or with another one that it has seen."""
    if status.tls.reason:
        detail = f" ({status.tls.detail})" if status.tls.detail else ""
        yield explain(status.tls.reason) + detail
    if status.tls.mode == "Disabled":
        yield "TLS is disabled: it talks to other members in clear"


def _of_probe(status: AgentStatus) -> Iterator[str]:
    """An engine that has not shown that it computes what the others compute."""
    probe = status.probe
    if probe.state in ("not_run", "pending", "mismatch"):
        details = ", ".join(each for each in (probe.member and f"beside {probe.member}", probe.detail) if each)
        word = f"probe_{probe.state}"
        said = word if status.reason == word else explain(word)  # a row's reason is explained already
        yield said + (f" ({details})" if details else "")


def _of_canary(status: AgentStatus) -> Iterator[str]:
    """Loads that could not be compared with computing, or have changed an answer."""
    canary = status.canary
    if canary.distrusted:
        yield f"{explain('canary_differs')} ({', '.join(canary.distrusted)})"
    elif canary.state == "not_run":
        yield f"{explain('canary_not_run')} ({canary.detail})"


def _of_calibration(status: AgentStatus) -> Iterator[str]:
    """An engine of which nobody could learn before its first request what computing costs."""
    if status.calibrated.ended_by == "no_answer":
        yield f"{explain('calibration_no_answer')} ({status.calibrated.detail})"


def _of_arena(status: AgentStatus) -> Iterator[str]:
    arena = status.arena
    if arena.huge_pages.reason:
        yield explain(arena.huge_pages.reason)
    if arena.orphan_blocks > NOTABLE_ORPHANS * arena.blocks:
        yield f"{arena.orphan_blocks} of {arena.blocks} blocks are orphans: no member holds the block before them"
    seen = arena.capacity
    if seen.double_hit_blocks - seen.hit_blocks > NOTABLE_GAIN * max(seen.asked_blocks, LEAST_ASKED):
        one, two = percent(seen.hit_blocks, seen.asked_blocks), percent(seen.double_hit_blocks, seen.asked_blocks)
        yield f"an arena of twice the size would have held {two} of the prompt blocks asked for, one of this size {one}"


def _of_reuse(status: AgentStatus) -> Iterator[str]:
    """Of how many blocks it takes to hold what comes again, as far as it is worth telling."""
    for name, reuse in status.reuse.items():
        within = list(itertools.accumulate(reuse.distances))
        if reuse.asked_blocks < LEAST_ASKED or not within:
            continue
        told = [
            f"{percent(count, reuse.asked_blocks)} within {size(reuse.block_bytes << power)}"
            for power, count in enumerate(within)
            if count >= NOTABLE_GAIN * reuse.asked_blocks
            and count - (within[power - 1] if power else 0) >= NOTABLE_REUSE * reuse.asked_blocks
        ]
        if told:
            of = f" in {name}" if name else ""
            yield f"prompt blocks that come again, by the bytes of blocks used since{of}: {', '.join(told)}"


def _of_near_identical(status: AgentStatus) -> Iterator[str]:
    """Prompts that can't be shared for what is perhaps a date in each of them."""
    for name, reuse in status.reuse.items():
        of = f" in {name}" if name else ""
        for each in reuse.near_identical:
            length = f"{each.shortest} to {each.longest}" if each.shortest < each.longest else f"{each.longest}"
            yield (
                f"{each.prompts} of the last prompts{of} were computed though they are nearly as long as each other "
                f"({length} tokens): each differs from the others between token {each.same_tokens} and token "
                f"{each.same_tokens + each.block_tokens}; kvpool why-miss says of two of them what differs there"
            )


def _of_disk(status: AgentStatus) -> Iterator[str]:
    if status.disk.reason:
        yield f"the disk tier is {status.disk.state}: {explain(status.disk.reason)}"


def _of_store(status: AgentStatus) -> Iterator[str]:
    store = status.store
    if store.reason:
        detail = f" ({store.detail})" if store.detail else ""
        yield f"the external store is {store.state}: {explain(store.reason)}{detail}"


def _of_declared(status: AgentStatus) -> Iterator[str]:
    declared = status.declared
    if declared.prefixes:
        yield (
            f"of {declared.prefixes} declared prefixes {declared.resolved} are known, as {declared.blocks} blocks"
            + (f": {explain(declared.reason)} ({declared.detail})" if declared.reason else "")
        )


def _of_transport(status: AgentStatus) -> Iterator[str]:
    """Why blocks don't come by RDMA, where that was asked for or a device is there, and where one has failed."""
    transport = status.transport
    detail = f" ({transport.detail})" if transport.detail else ""
    if transport.reason and (transport.type == "RDMA" or transport.reason not in PLAIN):
        yield f"blocks come by TCP: {explain(transport.reason)}{detail}"
    for device in transport.devices if transport.in_use == "RDMA" else ():
        if device.reason:
            yield f"RDMA device {device.name}: {explain(device.reason)}" + (f" ({device.detail})" * bool(device.detail))
        else:
            yield f"blocks come by RDMA, too: {device.name} at {device.address}"


def _of_benefit(status: AgentStatus) -> Iterator[str]:
    """What sharing has saved lately, and how long requests waited for their first token by what they were."""
    benefit = status.benefit
    if benefit.loads:
        yield (
            f"sharing has saved {benefit.waiting:+.1f} s of waiting and {benefit.gpu:+.1f} s of the engine's time "
            f"lately (computing {benefit.saved:.1f} s, loading {benefit.loading:.1f} s; waited in vain "
            f"{benefit.waited:.1f} s, decoding slowed by loads {benefit.stalled:.1f} s and by stores "
            f"{benefit.written:.1f} s, computed again {benefit.displaced:.1f} s)"
        )
    for name, kinds in status.first_token.items():
        told = [f"{kind} {q.p50:.3g} s, 95 % {q.p95:.3g} s ({q.count})" for kind, q in kinds.items() if q.count]
        if benefit.loads and told:
            yield f"first token{f' in {name}' if name else ''}: {'; '.join(told)}"


def _of_peers(member: str, status: AgentStatus) -> Iterator[str]:
    """What keeps this member from using others as sources."""
    for peer in status.peers:
        name = f"{member} → {peer.member or peer.address}"
        if peer.breaker not in (CLOSED, DISTRUSTED):
            yield f"{name}: breaker {peer.breaker} after {peer.failures} failures in a row"
        if peer.not_by_rdma:
            yield f"{name}: by TCP, not by RDMA: {peer.not_by_rdma}"
        if peer.differences:
            yield f"{name}: not the same format: {'; '.join(peer.differences)}"


def _silent(member: str) -> list[str]:
    return [member, *[NOTHING] * (len(COLUMNS) - 2), UNREACHABLE]
