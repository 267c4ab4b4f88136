"""An agent's configuration: one JSON document, versioned, made by the operator or by hand.

A field that this version does not know is ignored and counted, since an operator may be newer than its agents; a
field of the wrong kind is refused with one sentence that names it. Some fields are live: a running agent takes them
over. What the others shape (the arena's memory, the addresses) is made once, so they hold for new pods.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from kvpool_contract.external import Store, wrong_with
from kvpool_contract.identity import CertificateName, IdentityError
from kvpool_contract.prefixes import Prefix
from kvpool_contract.prefixes import wrong_with as wrong_with_prefixes
from kvpool_contract.tenants import MAX_CACHE_NAMESPACES, REQUEST_MODES, is_name

VERSION = 1
MIB = 2**20
DIGEST_DIGITS = 12
TCP = "TCP"
GDSF, LRU, S3FIFO = "GDSF", "LRU", "S3FIFO"
DEFAULT_EVICTION: Literal["GDSF"] = "GDSF"
DEFAULT_OWNED_PERCENT = 70
DEFAULT_MARGIN = 1.2
LIVE_FIELDS = (
    "prewarm", "readiness", "loading", "drain", "replication", "canary", "declaredPrefixes", "paused", "generation",
)  # fmt: skip


class ConfigError(ValueError):
    """The configuration can't be used; the message names the field and the fix."""


@dataclass(frozen=True, kw_only=True)
class Members:
    """Where the addresses of the pool's members come from. Exactly one is set.

    dns: `host:port` of a name that resolves to every member, ready or not.
    file: a file with one `host:port` a line, read again when it changes.
    """

    dns: str = ""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The engine beside this agent: the port of its HTTP server on the loopback address."""

    port: int = 8000


@dataclass(frozen=True, kw_only=True)
class Prewarm:
    """Bounds of the warm-up of a newcomer: bytes in all, bytes per second, streams at a time; and of a source, to all
    newcomers together: the same bytes per second, `sourceMaxStreams` at a time."""

    maxBytes: int = 2048 * MIB  # noqa: N815
    maxBytesPerSecond: int = 500 * MIB  # noqa: N815
    maxStreams: int = 4  # noqa: N815
    sourceMaxStreams: int = 2  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """When the agent turns ready: at `targetPercent` of the hot set, or `deadlineSeconds` after the first attach,
    or when a healthy engine has not attached for `attachGraceSeconds`. `onDeadline` Block: the deadline counts from the
    last block that came, so that only a warm-up that stands still ends by it."""

    targetPercent: int = 95  # noqa: N815
    deadlineSeconds: float = 240.0  # noqa: N815
    attachGraceSeconds: float = 30.0  # noqa: N815
    onDeadline: Literal["Degrade", "Block"] = "Degrade"  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Loading:
    """`mode`: Measured (what takes longer than computing it, times `margin`, is computed), Always (load whatever can be
    had) or Never. `deadlineSeconds`: from a request's lookup to the moment when what has come is used and the rest
    computed. `maxBytesPerSecond`: what this agent takes in for requests, and what it gives to those of others; 0: no
    bound. `calibrationSeconds`: for so long at most a new engine is asked what computing costs; 0: it is not."""

    mode: Literal["Measured", "Always", "Never"] = "Measured"
    margin: float = DEFAULT_MARGIN
    deadlineSeconds: float = 10.0  # noqa: N815
    maxBytesPerSecond: int = 0  # noqa: N815
    calibrationSeconds: float = 0.0  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Drain:
    """What an agent does that is told to end: for `maxSeconds` at most it hands to other members what it alone holds
    of the hot blocks, at `maxBytesPerSecond` at most; 0 seconds: nothing. Members take it at the same rate."""

    maxSeconds: float = 0.0  # noqa: N815
    maxBytesPerSecond: int = 500 * MIB  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Replication:
    """Second copies of the hottest blocks that one member alone holds: the bytes per second that a member gives for
    them, and takes, at most; 0: none are made."""

    maxBytesPerSecond: int = 0  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Canary:
    """One request in `intervalSeconds` at most that goes on from other members' blocks is computed as well, and the
    answers compared; 0: none is."""

    intervalSeconds: float = 0.0  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What other members are told of: with `policy` Always all that this agent holds, with Declared what lies wholly
    inside one of the `declaredPrefixes`, with Never nothing, though it loads from others. `maxDepthTokens`: of a prompt
    no block that ends beyond so many tokens; 0: no bound."""

    policy: Literal["Always", "Declared", "Never"] = "Always"
    maxDepthTokens: int = 0  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Tls:
    """How members prove who they are. `Managed`: by a certificate that the signer at `signer` (host:port) issues for
    the pod's token; `Files`: by one that lies in a folder, with its key and the authorities; `Disabled`: not at all,
    and all bytes go in clear, which must be asked for. `cluster` and `k8sNamespace`: what a peer's certificate must
    name beside the pool."""

    mode: Literal["Managed", "Files", "Disabled"]
    signer: str = ""
    cluster: str = ""
    k8sNamespace: str = ""  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class CacheNamespace:
    """A partition of the pool with a key of its own. `keyFile`: where the key is mounted, see kvpool_contract.tenants;
    `tenant`: what requests call it (empty: by its name). `memoryPercent`: its part of the arena; the first one has what
    the others leave, and says 0. `maxDepthTokens`: as Publication's, in its place for this one; 0: that one."""

    name: str
    keyFile: str  # noqa: N815
    tenant: str = ""
    memoryPercent: int = 0  # noqa: N815
    maxDepthTokens: int = 0  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk tier: the folder where its volume is mounted (empty: no disk tier), and the bytes of that volume, of
    which it takes nine tenths at most; 0: as many as the volume has."""

    path: str = ""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Rdma:
    """`devices`: names of the RDMA devices to use; none: every one that the container can open. `allowUnencrypted`:
    whether blocks may go by RDMA, in clear, where all else between members is encrypted."""

    devices: tuple[str, ...] = ()
    allowUnencrypted: bool = False  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How blocks come from other members. `Auto`: by RDMA where both ends can, else by TCP; `TCP`; `RDMA`: as Auto, and
    where it can't be used something is wrong, which the operator shows."""

    type: Literal["Auto", "TCP", "RDMA"] = "Auto"
    rdma: Rdma = field(default_factory=Rdma)


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Everything that an agent is told. `arenaBytes` is a hard limit. `eviction`: GDSF, LRU or S3FIFO, and
    `ownedPercent`: the part of the arena that copies of other members' blocks can't take from own ones. `hugePages`:
    the kernel is asked for transparent ones for the arena. `paused`: nothing is loaded nor stored, and the agent is
    ready at once. `generation`: of the object that the document was made from, for whoever wrote it.
    `declaredPrefixes`: of publication.policy Declared.
    `cacheNamespaces`: the first is the default one; with none there is one, and it has no key. `requestNamespace`: how
    requests say theirs: Ignore, Signed (by who holds the key in `gatewayKeyFile`), TrustGateway."""

    version: int
    pool: str
    arenaBytes: int  # noqa: N815
    members: Members
    tls: Tls
    eviction: Literal["GDSF", "LRU", "S3FIFO"] = DEFAULT_EVICTION
    ownedPercent: int = DEFAULT_OWNED_PERCENT  # noqa: N815
    hugePages: bool = False  # noqa: N815
    disk: Disk = field(default_factory=Disk)
    store: Store = field(default_factory=Store)
    transport: Transport = field(default_factory=Transport)
    engine: Engine = field(default_factory=Engine)
    prewarm: Prewarm = field(default_factory=Prewarm)
    readiness: Readiness = field(default_factory=Readiness)
    loading: Loading = field(default_factory=Loading)
    drain: Drain = field(default_factory=Drain)
    replication: Replication = field(default_factory=Replication)
    canary: Canary = field(default_factory=Canary)
    publication: Publication = field(default_factory=Publication)
    declaredPrefixes: tuple[Prefix, ...] = ()  # noqa: N815
    paused: bool = False
    generation: int = 0
    cacheNamespaces: tuple[CacheNamespace, ...] = ()  # noqa: N815
    requestNamespace: str = "Ignore"  # noqa: N815
    gatewayKeyFile: str = ""  # noqa: N815


@dataclass(frozen=True)
class Decoded:
    """A configuration, and the paths of the fields that this version does not know."""

    config: AgentConfig
    unknown_fields: tuple[str, ...]


def decode_config(data: bytes) -> Decoded:
    """Reads a configuration; raises ConfigError with one sentence."""
    try:
        document = msgspec.json.decode(data)
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise ConfigError(
                f"configuration version: this agent reads {VERSION}, found {version!r}; "
                f"update the older of operator and agent"
            )
        config = msgspec.convert(document, AgentConfig)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `$")
        where = path.rstrip("`").lstrip(".") or "the document"
        raise ConfigError(f"configuration field {where}: {sentence}; correct it in the pool's spec") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"configuration is not JSON: {error}; write the file anew") from None
    _check(config)
    return Decoded(config, tuple(_unknown(document, AgentConfig, "")))


def encode_config(config: AgentConfig) -> str:
    """The document for a ConfigMap or a file: stable order, readable."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def encode_fixed(config: AgentConfig) -> str:
    """The part that no running agent takes over: as long as it is the same, no pod has to be made anew."""
    fixed = {name: value for name, value in dataclasses.asdict(config).items() if name not in LIVE_FIELDS}
    return json.dumps(fixed, sort_keys=True, separators=(",", ":"))


def digest_of(document: bytes) -> str:
    """Names a document: an agent shows it, and whoever wrote the document compares."""
    return hashlib.sha256(document).hexdigest()[:DIGEST_DIGITS]


def take_over(now: AgentConfig, found: AgentConfig) -> tuple[AgentConfig, tuple[str, ...]]:
    """What a running agent makes of a changed configuration: the one that is in force from now on, and the paths of
    the changed fields that hold for new pods alone."""
    in_force = dataclasses.replace(now, **{name: getattr(found, name) for name in LIVE_FIELDS})
    return in_force, tuple(_changed(in_force, found, ""))


def _changed(now: Any, found: Any, path: str) -> list[str]:
    differing: list[str] = []
    for one in dataclasses.fields(now):
        before, after = getattr(now, one.name), getattr(found, one.name)
        if dataclasses.is_dataclass(before):
            differing += _changed(before, after, f"{path}{one.name}.")
        elif before != after:
            differing.append(path + one.name)
    return differing


def _check(config: AgentConfig) -> None:
    def at_least(path: str, value: float, least: float) -> None:
        if value < least:
            raise ConfigError(f"configuration field {path}: {value} is below {least}; raise it")

    if bool(config.members.dns) == bool(config.members.file):
        raise ConfigError("configuration field members: set exactly one of members.dns and members.file")
    if config.members.dns and not config.members.dns.rpartition(":")[2].isdigit():
        raise ConfigError(f"configuration field members.dns: {config.members.dns!r} has no port; write host:port")
    _check_tls(config)
    if not config.pool:
        raise ConfigError("configuration field pool: it is empty; name the pool")
    at_least("arenaBytes", config.arenaBytes, MIB)
    at_least("ownedPercent", config.ownedPercent, 0)
    at_least("disk.bytes", config.disk.bytes, 0)
    if config.disk.path and not config.disk.path.startswith("/"):
        raise ConfigError(f"configuration field disk.path: {config.disk.path!r} is no whole path; begin it with /")
    if wrong := wrong_with(config.store):
        raise ConfigError(f"configuration field store.{wrong[0]}: {wrong[1]}")
    at_least("prewarm.maxBytes", config.prewarm.maxBytes, 0)
    at_least("prewarm.maxBytesPerSecond", config.prewarm.maxBytesPerSecond, 1)
    at_least("prewarm.maxStreams", config.prewarm.maxStreams, 1)
    at_least("prewarm.sourceMaxStreams", config.prewarm.sourceMaxStreams, 1)
    at_least("readiness.targetPercent", config.readiness.targetPercent, 1)
    at_least("readiness.deadlineSeconds", config.readiness.deadlineSeconds, 0)
    at_least("readiness.attachGraceSeconds", config.readiness.attachGraceSeconds, 0)
    at_least("loading.deadlineSeconds", config.loading.deadlineSeconds, 0.05)
    at_least("loading.margin", config.loading.margin, 1)
    at_least("loading.maxBytesPerSecond", config.loading.maxBytesPerSecond, 0)
    at_least("loading.calibrationSeconds", config.loading.calibrationSeconds, 0)
    at_least("drain.maxSeconds", config.drain.maxSeconds, 0)
    at_least("drain.maxBytesPerSecond", config.drain.maxBytesPerSecond, 1)
    at_least("replication.maxBytesPerSecond", config.replication.maxBytesPerSecond, 0)
    at_least("canary.intervalSeconds", config.canary.intervalSeconds, 0)
    at_least("publication.maxDepthTokens", config.publication.maxDepthTokens, 0)
    if wrong_prefixes := wrong_with_prefixes(config.declaredPrefixes):
        raise ConfigError(f"configuration field declaredPrefixes: {wrong_prefixes}")
    percents = {"readiness.targetPercent": config.readiness.targetPercent, "ownedPercent": config.ownedPercent}
    for path, percent in percents.items():
        if percent > 100:
            raise ConfigError(f"configuration field {path}: it is above 100; lower it")
    if not 0 < config.engine.port < 65536:
        raise ConfigError(f"configuration field engine.port: {config.engine.port} is no port; use 1 to 65535")
    _check_tenants(config)


def _check_tenants(config: AgentConfig) -> None:
    spaces = config.cacheNamespaces
    if len(spaces) > MAX_CACHE_NAMESPACES:
        raise ConfigError(f"configuration field cacheNamespaces: {len(spaces)} entries; use {MAX_CACHE_NAMESPACES}")
    called: set[str] = set()
    for i, space in enumerate(spaces):
        path = f"configuration field cacheNamespaces[{i}]"
        for name in dict.fromkeys((space.name, space.tenant or space.name)):
            if not is_name(name) or name in called:
                raise ConfigError(
                    f"{path}: {name!r} is taken, or no name; use up to 63 lower-case letters, digits and '-', "
                    f"for each name and tenant others"
                )
            called.add(name)
        if not space.keyFile:
            raise ConfigError(f"{path}.keyFile: it is empty; name the file that the key is mounted as")
        if not (1 <= space.memoryPercent <= 95 if i else space.memoryPercent == 0):
            raise ConfigError(f"{path}.memoryPercent: {space.memoryPercent}; use 0 for the first, 1 to 95 for others")
        if space.maxDepthTokens < 0:
            raise ConfigError(f"{path}.maxDepthTokens: {space.maxDepthTokens} is below 0; raise it")
    if sum(space.memoryPercent for space in spaces) > 95:
        raise ConfigError("configuration field cacheNamespaces: their memoryPercent is above 95 in all; lower it")
    if config.requestNamespace not in REQUEST_MODES:
        raise ConfigError(
            f"configuration field requestNamespace: {config.requestNamespace!r} is none of {', '.join(REQUEST_MODES)}"
        )
    if (config.requestNamespace == "Signed") != bool(config.gatewayKeyFile):
        raise ConfigError("configuration field gatewayKeyFile: it goes with requestNamespace Signed; set both or none")
    if config.requestNamespace != "Ignore" and not spaces:
        raise ConfigError("configuration field requestNamespace: there are no cacheNamespaces to choose; add some")


def _check_tls(config: AgentConfig) -> None:
    tls = config.tls
    if tls.mode == "Managed" and not tls.signer.rpartition(":")[2].isdigit():
        raise ConfigError(f"configuration field tls.signer: {tls.signer!r} has no port; write host:port")
    if tls.mode != "Disabled":
        try:
            CertificateName(tls.cluster, tls.k8sNamespace, config.pool or "pool").encode()
        except IdentityError as error:
            raise ConfigError(f"configuration field tls: {error}; set tls.cluster and tls.k8sNamespace") from None


def _unknown(document: Any, shape: type, path: str) -> list[str]:
    found: list[str] = []
    known = {f.name: f.type for f in dataclasses.fields(shape)}
    for name, value in document.items():
        if name not in known:
            found.append(path + name)
        elif isinstance(value, dict):
            inner = known[name]
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                found += _unknown(value, inner, f"{path}{name}.")
        elif name == "cacheNamespaces":
            for i, one in enumerate(value):
                found += _unknown(one, CacheNamespace, f"{path}{name}[{i}].")
    return found
