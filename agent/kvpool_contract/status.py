"""An agent's status, as its worker serves it at /status: versioned JSON, read by the command line and the operator.

Counters count since the worker started. Tokens come from the engine's own metrics, blocks from kvpool's account of
each request at its end.
"""

import time

import msgspec

from kvpool_contract.arena_status import Arena as Arena
from kvpool_contract.arena_status import Capacity as Capacity
from kvpool_contract.arena_status import HugePages as HugePages
from kvpool_contract.calibration import Calibrated
from kvpool_contract.canary import Canary
from kvpool_contract.external import STORE

VERSION = 1


class Event(msgspec.Struct, frozen=True):
    """One line of the agent's event log: seconds since the epoch, a word, and its details."""

    at: float
    word: str
    detail: dict[str, float | int | str] = {}


class Peer(msgspec.Struct, frozen=True):
    """A member as this agent sees it. `live`: it shook hands within the last two seconds; `incarnation`: which life of
    its worker answered last. `breaker`: closed, open (no source after `failures` in a row), half_open (tried again) or
    distrusted (no source any more, see Canary). `differences`: how its format is another one than this agent's, a line
    for each field. `not_by_rdma`: why its blocks last came by TCP though this agent has RDMA; empty where not."""

    address: str
    live: bool
    member: str = ""
    state: str = ""
    format: str = ""
    blocks: int = 0
    error: str = ""
    breaker: str = "closed"
    failures: int = 0
    differences: list[str] = []
    incarnation: str = ""
    not_by_rdma: str = ""


# where a block lay that a request found: in the engine's device or host cache (ENGINE: its client does not say which),
# in the agent's arena before the request came, or at another member, on the disk or in the external store until it came
DEVICE, HOST, ENGINE, ARENA, PEER, DISK = _HERE = ("device", "host", "engine", "arena", "peer", "disk")
PLACES = (*_HERE, STORE)


class Hits(msgspec.Struct, frozen=True):
    """Prompt blocks of finished requests: computed here, found and once computed here (local), found and computed
    by another replica (shared); and of those found how many by place (PLACES)."""

    computed_blocks: int = 0
    local_blocks: int = 0
    shared_blocks: int = 0
    local_by_place: dict[str, int] = {}
    shared_by_place: dict[str, int] = {}


class EngineTokens(msgspec.Struct, frozen=True):
    """The engine's own counters of prompt tokens by source: computed, and cached on device, on host, by kvpool."""

    computed: int = 0
    device: int = 0
    host: int = 0
    pool: int = 0


class Transfer(msgspec.Struct, frozen=True):
    """Blocks and bytes of one purpose and direction."""

    blocks: int = 0
    bytes: int = 0


class Warm(msgspec.Struct, frozen=True):
    """The warm-up: what was planned and what is in, its seconds, its bytes per second, the highest bytes of any
    one second, and `added_seconds` = ready − max(engine healthy, attached), what kvpool cost this start."""

    planned_blocks: int = 0
    loaded_blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    bytes_per_second: float = 0.0
    peak_bytes_per_second: float = 0.0
    added_seconds: float = 0.0


class NearIdentical(msgspec.Struct, frozen=True):
    """`prompts` of `shortest` to `longest` tokens whose first `same_tokens` were found, no two of which are the same
    in the `block_tokens` behind those."""

    prompts: int
    same_tokens: int
    block_tokens: int
    shortest: int
    longest: int


class Reuse(msgspec.Struct, frozen=True):
    """How far apart the uses of a cache namespace's blocks lie, in blocks of `block_bytes`. Of the finished requests'
    `asked_blocks` prompt blocks, `distances[i]` came when more than 2^(i-1) and up to 2^i distinct blocks, itself
    among them, had been used since the last use; the rest for the first time, or after more than 16 arenas of others.
    Estimates from a sample for distances of more than 8192 blocks, or beyond the arena's size. `near_identical`:
    prompts that were computed lately and seem to be the same but for something small."""

    block_bytes: int = 0
    asked_blocks: int = 0
    distances: list[int] = []
    near_identical: list[NearIdentical] = []


class CacheNamespace(msgspec.Struct, frozen=True):
    """A cache namespace that this agent may hold: keys in force (0: none, then it shares nothing), what is wrong with
    its key file, and its part of the arena: bytes of slots, of those in use, blocks."""

    name: str
    keys: int = 0
    problem: str = ""
    limit_bytes: int = 0
    used_bytes: int = 0
    blocks: int = 0


class Disk(msgspec.Struct, frozen=True):
    """The disk tier. `state`: none (not configured), opening (its files are being looked through), ready or degraded:
    no disk tier now, `reason` says why, it is tried again. Ready with a reason: disk_full, it keeps to what it has.
    Its byte limit, bytes of its files, blocks and files; whether these are sealed under keys of cache namespaces."""

    state: str = "none"
    reason: str = ""
    limit_bytes: int = 0
    used_bytes: int = 0
    blocks: int = 0
    files: int = 0
    sealed: bool = False


class Store(msgspec.Struct, frozen=True):
    """The external store. `type`: Valkey, empty where there is none. `state`: opening (it was not reached yet), ready
    or degraded: it is left alone and asked again after a pause, `reason` and `detail` say why. Ready with a reason:
    store_full, nothing is written for a minute. `waiting`: blocks that are to be written."""

    type: str = ""
    state: str = "none"
    reason: str = ""
    detail: str = ""
    waiting: int = 0


class Declared(msgspec.Struct, frozen=True):
    """Declared prefixes. `resolved`: those that are known, as `blocks` of the default cache namespace, which others may
    be told of; `reason` and `detail`: why not all are, none while the engine has not been asked."""

    prefixes: int = 0
    resolved: int = 0
    blocks: int = 0
    reason: str = ""
    detail: str = ""


class Directory(msgspec.Struct, frozen=True):
    """This member as a home: blocks that others have announced to it, members whose lease runs; and the addresses that
    it keeps because other members have told them. `head_filter`: whether its engine may take a prompt for unknown by
    the first blocks of chains that members hold; `heads` of them are known, as of `heads_number`, and each client has
    been told as much as `heads_told`, 0 for nothing."""

    entries: int = 0
    holders: int = 0
    learnt_addresses: int = 0
    head_filter: bool = False
    heads: int = 0
    heads_number: int = 0
    heads_told: int = 0


class ConfigInForce(msgspec.Struct, frozen=True):
    """The configuration that holds now. `hash`: of the document last taken over, the first 12 hex digits of its
    SHA-256; `generation`: as that document says. `reason`: config_invalid while the file can't be used, with the
    sentence in `problem`; the last one stays. `needs_new_pods`: changed fields that running agents don't take over."""

    hash: str = ""
    generation: int = 0
    reason: str = ""
    problem: str = ""
    needs_new_pods: list[str] = []


class Probe(msgspec.Struct, frozen=True):
    """What the engine's probe has shown. `state`: pending, same or close (as computed by `member`), alone (no other
    member has computed the prompt), not_run (`detail` says why), mismatch; empty before an engine has attached.
    `blocks`: the block keys of the prompt."""

    state: str = ""
    detail: str = ""
    member: str = ""
    blocks: list[str] = []


class Tls(msgspec.Struct, frozen=True):
    """This member's certificate. `mode`: as configured; Disabled: all bytes go in clear, and the rest is empty.
    `state`: ok, no_certificate, expires_soon or expired; `reason` and `detail`: what is wrong, also while the state is
    ok; `name`: the URI in it; `not_after`: seconds since the epoch. `bundle`: digest of the authorities by which peers
    are trusted, `authority`: of the one that has issued the certificate (kvpool_contract.identity.bundle_digest)."""

    mode: str = ""
    state: str = ""
    reason: str = ""
    detail: str = ""
    name: str = ""
    not_after: float = 0.0
    bundle: str = ""
    authority: str = ""
    renewals: int = 0
    failures: dict[str, int] = {}


class Quantiles(msgspec.Struct, frozen=True):
    """Of what was measured lately: 5th, 50th and 95th percentile, within 2 %; and how often it was, ever."""

    p05: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    count: int = 0


class Recompute(msgspec.Struct, frozen=True):
    """What computing costs the engine, in seconds: start + linear x n + pairs x n x (held + n / 2) for n tokens after
    `held` that its cache has, times a factor that is `p50` for the usual request and `p95` for the slow one. Fitted to
    `count` requests, a calibration's among them, the longest of which computed `longest` tokens."""

    start: float = 0.0
    linear: float = 0.0
    pairs: float = 0.0
    count: int = 0
    longest: int = 0
    p50: float = 0.0
    p95: float = 0.0


class Path(msgspec.Struct, frozen=True):
    """One way of bringing blocks in: seconds until the first byte, bytes per second from then on, transfers."""

    queue: Quantiles = Quantiles()
    rate: Quantiles = Quantiles()
    moved: int = 0


class Costs(msgspec.Struct, frozen=True):
    """Measured here. `lookup`: seconds to find out who holds a request's blocks. `paths`: by a member's address, or
    disk. `install`: seconds between the bytes in the arena and the request's first step, for the largest loads."""

    recompute: Recompute = Recompute()
    lookup: Quantiles = Quantiles()
    install: Quantiles = Quantiles()
    paths: dict[str, Path] = {}


class RdmaDevice(msgspec.Struct, frozen=True):
    """An RDMA device. `state`: ready or failed (it is tried again), with `reason` and `detail`. `address`: of its GID;
    MTU in bytes; queue pairs of both directions; bytes registered now, and seconds that the whole arena took."""

    name: str
    state: str
    reason: str = ""
    detail: str = ""
    address: str = ""
    mtu: int = 0
    queue_pairs: int = 0
    registered_bytes: int = 0
    registration_seconds: float = 0.0


class Transport(msgspec.Struct, frozen=True):
    """How blocks come from other members. `type`: as configured. `in_use`: RDMA while a device is open, to members that
    have one, too (see peers); TCP, else, and `reason` and `detail` say why not RDMA where that was asked for."""

    type: str = "TCP"
    in_use: str = "TCP"
    reason: str = ""
    detail: str = ""
    devices: list[RdmaDevice] = []


class Benefit(msgspec.Struct, frozen=True):
    """What sharing has saved lately (an hour ago weighs a 64th), in seconds; below 0 it cost more than it saved.
    `waiting`: of requests until their first token, `gpu`: of the engine; `loads`: requests that loaded from other
    replicas, ever. The terms, see kvpool_agent.policy.benefit: waiting = saved - loading - waited - stalled - written -
    displaced. `load_slows`, `store_slows`: the part of their time that decoding steps lose beside loads and stores."""

    waiting: float = 0.0
    gpu: float = 0.0
    loads: int = 0
    saved: float = 0.0
    loading: float = 0.0
    waited: float = 0.0
    stalled: float = 0.0
    written: float = 0.0
    displaced: float = 0.0
    load_slows: float = 0.0
    store_slows: float = 0.0


class AgentStatus(msgspec.Struct, frozen=True):
    """The whole document. `state` is Starting, Warming, Ready(warm), Ready(degraded) with a `reason`, or Draining while
    a member that leaves hands over what it holds; `attached` says whether an engine session is open; `misses` counts
    blocks by reason. `first_token`: by cache namespace (empty where the pool has none) and by what a request was (cold,
    local, remote, fallback): seconds from its arrival at the engine to its first token; `reuse`: by cache namespace."""

    version: int
    pool: str
    member: str
    incarnation: str
    state: str
    reason: str
    attached: bool
    attaches: int
    engine_healthy: bool
    format: str
    format_fields: dict[str, object]
    arena: Arena
    warm: Warm
    hits: Hits
    engine_tokens: EngineTokens
    transfers: dict[str, Transfer]
    misses: dict[str, int]
    counters: dict[str, int]
    peers: list[Peer]
    unknown_config_fields: list[str]
    started_at: float
    events: list[Event]
    probe: Probe = Probe()
    directory: Directory = Directory()
    config: ConfigInForce = ConfigInForce()
    tls: Tls = Tls()
    cache_namespaces: list[CacheNamespace] = []
    disk: Disk = Disk()
    store: Store = Store()
    costs: Costs = Costs()
    transport: Transport = Transport()
    benefit: Benefit = Benefit()
    first_token: dict[str, dict[str, Quantiles]] = {}
    reuse: dict[str, Reuse] = {}
    declared: Declared = Declared()
    canary: Canary = Canary()
    calibrated: Calibrated = Calibrated()


class StatusError(ValueError):
    """The document is not a status that this version reads."""


def encode_status(status: AgentStatus) -> bytes:
    return msgspec.json.encode(status)


def decode_status(data: bytes) -> AgentStatus:
    """Reads a status document; raises StatusError with one sentence. Unknown fields are ignored."""
    try:
        status = msgspec.json.decode(data, type=AgentStatus)
    except msgspec.DecodeError as error:
        raise StatusError(f"the agent's status can't be read: {error}; update the older of command and agent") from None
    if status.version != VERSION:
        raise StatusError(
            f"the agent's status has version {status.version}, this command reads {VERSION}; "
            f"update the older of the two"
        )
    return status


def now() -> float:
    return time.time()
