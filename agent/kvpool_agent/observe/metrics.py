"""The worker's metrics, made from its status at each scrape, so the two can't tell different stories."""

import itertools
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvpool_agent.directory.breakers import DISTRUSTED
from kvpool_agent.observe.costs import families, of_benefit
from kvpool_agent.policy import validity
from kvpool_contract.canary import Canary
from kvpool_contract.status import PLACES, AgentStatus, Capacity, Disk, Reuse, Store, Transport

STATES = ("Starting", "Warming", "Ready(warm)", "Ready(degraded)", "Draining")
CERTIFICATE_STATES = (validity.OK, validity.NONE, validity.SOON, validity.EXPIRED)
# told from the start: an alert looks at how much these grow, and what was not there does not grow
ALERTED = ("probe_mismatch", "tag_failures", "canary_differs")


class StatusCollector:
    """Families with the prefix kvpool_."""

    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        state = GaugeMetricFamily("kvpool_state", "1 for the agent's state, else 0", labels=["state"])
        for word in STATES:
            state.add_metric([word], float(status.state == word))
        yield state
        yield GaugeMetricFamily("kvpool_attached", "1 while an engine session is open", value=float(status.attached))
        yield CounterMetricFamily("kvpool_attaches", "Attaches granted", value=status.attaches)
        yield GaugeMetricFamily("kvpool_arena_limit_bytes", "Byte limit of the arena", value=status.arena.limit_bytes)
        yield GaugeMetricFamily("kvpool_arena_used_bytes", "Bytes of slots in use", value=status.arena.used_bytes)
        yield GaugeMetricFamily("kvpool_arena_blocks", "Blocks held", value=status.arena.blocks)
        yield CounterMetricFamily("kvpool_arena_evicted_blocks", "Blocks evicted", value=status.arena.evicted_blocks)
        yield GaugeMetricFamily(
            "kvpool_arena_orphan_blocks", "Blocks whose parent no member holds", value=status.arena.orphan_blocks
        )
        yield from _of_capacity(status.arena.capacity)
        yield from _of_reuse(status.reuse)
        yield GaugeMetricFamily(
            "kvpool_directory_entries", "Blocks announced to this member as a home", value=status.directory.entries
        )
        yield GaugeMetricFamily(
            "kvpool_directory_holders", "Members that keep their entries here", value=status.directory.holders
        )
        yield GaugeMetricFamily(
            "kvpool_learnt_addresses", "Addresses told by other members", value=status.directory.learnt_addresses
        )
        yield GaugeMetricFamily(
            "kvpool_head_filter",
            "1 while unknown prompts are told by their heads",
            value=float(status.directory.head_filter),
        )
        yield GaugeMetricFamily("kvpool_known_heads", "Heads that members hold", value=status.directory.heads)
        yield from _disk(status.disk)
        yield from _store(status.store)
        yield from families(status.costs)
        yield from _transport(status.transport)
        yield from of_benefit(status)
        yield from _canary(status.canary)
        hits = CounterMetricFamily(
            "kvpool_prompt_blocks", "Prompt blocks of finished requests", labels=["source", "place"]
        )
        hits.add_metric(["computed", ""], status.hits.computed_blocks)
        for source, found in (("local", status.hits.local_by_place), ("shared", status.hits.shared_by_place)):
            for place in PLACES:
                hits.add_metric([source, place], found.get(place, 0))
        yield hits
        misses = CounterMetricFamily("kvpool_missed_blocks", "Blocks looked up and not loaded", labels=["reason"])
        for reason, blocks in sorted(status.misses.items()):
            misses.add_metric([reason], blocks)
        yield misses
        moved = CounterMetricFamily("kvpool_transfer_bytes", "Bytes moved", labels=["transfer"])
        for what, transfer in sorted(status.transfers.items()):
            moved.add_metric([what], transfer.bytes)
        yield moved
        events = CounterMetricFamily("kvpool_events", "Things that happened, by word", labels=["event"])
        for word, count in sorted({**dict.fromkeys(ALERTED, 0), **status.counters}.items()):
            events.add_metric([word], count)
        yield events
        yield GaugeMetricFamily(
            "kvpool_certificate_expires_timestamp_seconds",
            "When this member's certificate ends, in seconds since the epoch; 0 without one",
            value=status.tls.not_after,
        )
        certificate = GaugeMetricFamily(
            "kvpool_certificate_state", "1 for the state of this member's certificate", labels=["state"]
        )
        for word in CERTIFICATE_STATES if status.tls.state else ():
            certificate.add_metric([word], float(status.tls.state == word))
        yield certificate
        warm = GaugeMetricFamily("kvpool_warm_blocks", "Blocks of the warm-up", labels=["step"])
        warm.add_metric(["planned"], status.warm.planned_blocks)
        warm.add_metric(["loaded"], status.warm.loaded_blocks)
        yield warm
        yield GaugeMetricFamily(
            "kvpool_added_seconds",
            "Seconds that the pool added to this start",
            value=status.warm.added_seconds,
        )
        yield GaugeMetricFamily(
            "kvpool_live_members", "Other members that answer", value=sum(p.live for p in status.peers)
        )
        yield GaugeMetricFamily(
            "kvpool_open_breakers",
            "Other members that are no source now, after failures",
            value=sum(p.breaker not in ("closed", DISTRUSTED) for p in status.peers),
        )


def _canary(canary: Canary) -> Iterator[Metric]:
    """Nothing before the first comparison."""
    if canary.same + canary.differs:
        variation = GaugeMetricFamily(
            "kvpool_canary_variation", "Total variation between answers, as last compared", labels=["between"]
        )
        variation.add_metric(["hit"], canary.variation)
        variation.add_metric(["noise"], canary.noise)
        yield variation
    yield GaugeMetricFamily(
        "kvpool_distrusted_members",
        "Other members from which nothing is loaded, after their blocks changed an answer",
        value=len(canary.distrusted),
    )


def _reason(name: str, text: str, reason: str) -> Metric:
    """1 under the reason's word; no sample where there is none."""
    family = GaugeMetricFamily(name, text, labels=["reason"])
    if reason:
        family.add_metric([reason], 1.0)
    return family


def _disk(disk: Disk) -> Iterator[Metric]:
    """Nothing where no disk is configured."""
    if disk.state == "none":
        return
    yield GaugeMetricFamily("kvpool_disk_ready", "1 while there is a disk tier", value=float(disk.state == "ready"))
    yield _reason("kvpool_disk_reason", "1 for what is wrong with the disk", disk.reason)
    yield GaugeMetricFamily("kvpool_disk_limit_bytes", "Byte limit of the disk tier", value=disk.limit_bytes)
    yield GaugeMetricFamily("kvpool_disk_used_bytes", "Bytes of the disk tier's files", value=disk.used_bytes)
    yield GaugeMetricFamily("kvpool_disk_blocks", "Blocks that lie on the disk", value=disk.blocks)


def _store(store: Store) -> Iterator[Metric]:
    """Nothing where no external store is configured."""
    if not store.type:
        return
    yield GaugeMetricFamily(
        "kvpool_store_ready", "1 while the external store is used", value=float(store.state == "ready")
    )
    yield _reason("kvpool_store_reason", "1 for what is wrong with the external store", store.reason)
    yield GaugeMetricFamily(
        "kvpool_store_waiting_blocks", "Blocks to be written to the external store", value=store.waiting
    )


def _transport(transport: Transport) -> Iterator[Metric]:
    """Nothing where TCP alone was asked for."""
    if transport.type == "TCP":
        return
    yield GaugeMetricFamily(
        "kvpool_rdma_in_use", "1 while an RDMA device is open", value=float(transport.in_use == "RDMA")
    )
    yield _reason("kvpool_rdma_reason", "1 for why no RDMA device is open", transport.reason)
    pairs = GaugeMetricFamily("kvpool_rdma_queue_pairs", "Queue pairs of both directions", labels=["device"])
    for device in transport.devices:
        if not device.reason:
            pairs.add_metric([device.name], device.queue_pairs)
    yield pairs


def _of_capacity(capacity: Capacity) -> Iterator[Metric]:
    sizes = GaugeMetricFamily("kvpool_arena_bytes", "Bytes of the arena by what keeps them", labels=["part"])
    for part in ("effective", "leased", "reserved", "unusable"):
        sizes.add_metric([part], getattr(capacity, f"{part}_bytes"))
    yield sizes
    yield GaugeMetricFamily(
        "kvpool_arena_adjoining_blocks", "Blocks right behind their parent", value=capacity.adjoining_blocks
    )
    ghost = GaugeMetricFamily(
        "kvpool_ghost_blocks", "Prompt blocks asked for, and found by an arena of this and of twice the size",
        labels=["size"],
    )  # fmt: skip
    for size, blocks in (
        ("asked", capacity.asked_blocks),
        ("one", capacity.hit_blocks),
        ("two", capacity.double_hit_blocks),
    ):
        ghost.add_metric([size], blocks)
    yield ghost


def _of_reuse(reuse: Mapping[str, Reuse]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "kvpool_reuse_distance_blocks",
        "Prompt blocks that had been used before, by the bytes of distinct blocks used since: so many, or fewer",
        labels=["cache_namespace", "le"],
    )
    for name, found in reuse.items():
        for power, within in enumerate(itertools.accumulate(found.distances)):
            blocks.add_metric([name, str(found.block_bytes << power)], within)
        blocks.add_metric([name, "+Inf"], found.asked_blocks)
    yield blocks


def registry(status: Callable[[], AgentStatus]) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(StatusCollector(status))
    return made
