"""The KVCachePool, `kvpool.io/v1alpha1`, as strict types: what is not here does not exist.

A misspelt field that is silently ignored is a pool that silently does something else, so unknown fields are
refused, and every refusal is one sentence that names the field and the fix.
"""

import re
from typing import Annotated, Any

import msgspec

from kvpool_contract.names import API_GROUP, pool_object_name
from kvpool_operator.desired.quantity import QuantityError, parse_quantity

API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "KVCachePool"
MIB, GIB = 2**20, 2**30

# The pool's Service carries the name and a suffix, and Service names are labels of at most 63 characters that
# begin with a letter.
MAX_NAME = 63 - len(pool_object_name(""))
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class PoolError(ValueError):
    """The pool can't be used; the message names the field and the fix."""


class Bytes(int):
    """A count of bytes, written as a Kubernetes quantity."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class HostPool(_Part, frozen=True):
    """The engine's own host tier in its /dev/shm, where blocks are staged on their way in and out."""

    size: Bytes = Bytes(4 * GIB)


class Engine(_Part, frozen=True):
    """`container`: the engine's container where it can't be told by itself. `port`: its HTTP port.
    `block_tokens`: tokens of a shared block at most. `allow_untested`: join engine versions outside the
    tested window."""

    container: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    host_pool: HostPool = msgspec.field(default_factory=HostPool)
    block_tokens: Annotated[int, msgspec.Meta(ge=16)] = 256
    allow_untested: bool = False


class MemoryTier(_Part, frozen=True):
    """The agent's arena: a hard limit of bytes of shared memory."""

    size: Bytes = Bytes(8 * GIB)


class Tiers(_Part, frozen=True):
    memory: MemoryTier = msgspec.field(default_factory=MemoryTier)


class Prewarm(_Part, frozen=True):
    """Bounds of a newcomer's warm-up: bytes in all, bytes per second, streams at a time; and of a source, to all
    newcomers together: the same bytes per second, `source_max_streams` at a time. Live."""

    max_bytes: Bytes = Bytes(2 * GIB)
    max_bytes_per_second: Bytes = Bytes(500 * MIB)
    max_streams: Annotated[int, msgspec.Meta(ge=1)] = 4
    source_max_streams: Annotated[int, msgspec.Meta(ge=1)] = 2


class Readiness(_Part, frozen=True):
    """A newcomer is ready at `target_percent` of its hot set, or `deadline_seconds` after its engine's first
    attach, or when a healthy engine has not attached for `attach_grace_seconds`."""

    target_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 95
    deadline_seconds: Annotated[float, msgspec.Meta(ge=0)] = 240.0
    attach_grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = 30.0


class Loading(_Part, frozen=True):
    """`deadline_seconds`: after this much of a request's waiting, what has come is used and the rest
    computed. `max_bytes_per_second`: what a member takes in for requests, and gives to those of others; 0: no
    bound. Live."""

    deadline_seconds: Annotated[float, msgspec.Meta(ge=0.05)] = 10.0
    max_bytes_per_second: Bytes = Bytes(0)


class Resources(_Part, frozen=True):
    """Requests and limits of the agent's container, each entry in place of the computed one."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Agent(_Part, frozen=True):
    """`image`: the agent's image, which also brings the engine's plug-in."""

    image: str = ""
    resources: Resources = msgspec.field(default_factory=Resources)


class PoolSpec(_Part, frozen=True):
    engine: Engine = msgspec.field(default_factory=Engine)
    tiers: Tiers = msgspec.field(default_factory=Tiers)
    prewarm: Prewarm = msgspec.field(default_factory=Prewarm)
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    loading: Loading = msgspec.field(default_factory=Loading)
    agent: Agent = msgspec.field(default_factory=Agent)
    paused: bool = False  # live: nothing is loaded nor stored, pods are ready at once


class Metadata(_Part, frozen=True):
    """`namespace` is also that of every pod of the pool."""

    name: str
    namespace: str = "default"


class KVCachePool(_Part, frozen=True):
    api_version: str
    kind: str
    metadata: Metadata
    spec: PoolSpec = msgspec.field(default_factory=PoolSpec)


def read_pool(document: object) -> KVCachePool:
    """The pool that a decoded YAML or JSON document describes; raises PoolError with one sentence."""
    if not isinstance(document, dict) or document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise PoolError(f"pool: this is no {KIND} of {API_VERSION}; begin with these as kind and apiVersion")
    try:
        pool = msgspec.convert(document, KVCachePool, dec_hook=_decode)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at `$")
        raise PoolError(_explain(sentence, path.rstrip("`").lstrip("."))) from None
    _check(pool)
    return pool


def _decode(shape: type, value: object) -> object:
    if shape is not Bytes:
        raise NotImplementedError(f"no decoder for {shape}")
    try:
        return Bytes(parse_quantity(value))
    except QuantityError as error:
        raise ValueError(str(error)) from None


def _explain(sentence: str, path: str) -> str:
    where = path or "the document"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", sentence):
        field = f"{path}.{unknown[1]}" if path else unknown[1]
        known = ", ".join(_known_fields(path))
        return f"pool field {field}: this version does not know it; {where} has {known}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", sentence):
        return f"pool field {path + '.' if path else ''}{missing[1]}: it is missing; add it"
    if "; " in sentence:  # a quantity's own sentence says the fix already
        return f"pool field {where}: {sentence}"
    return f"pool field {where}: {sentence[0].lower()}{sentence[1:]}; correct the value"


def _known_fields(path: str) -> list[str]:
    shape: Any = KVCachePool
    for name in filter(None, path.split(".")):
        shape = next(f.type for f in msgspec.structs.fields(shape) if f.encode_name == name)
    return [f.encode_name for f in msgspec.structs.fields(shape)]


def _check(pool: KVCachePool) -> None:
    name, namespace, spec = pool.metadata.name, pool.metadata.namespace, pool.spec
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise PoolError(
            f"pool field metadata.name: {name!r} can't name the pool's Service; use at most {MAX_NAME} "
            f"lower-case letters, digits and '-', a letter first and no '-' last"
        )
    if not _NAMESPACE.fullmatch(namespace) or len(namespace) > 63:
        raise PoolError(
            f"pool field metadata.namespace: {namespace!r} is no namespace; use at most 63 lower-case "
            f"letters, digits and '-'"
        )
    for path, size, least in (
        ("engine.hostPool.size", spec.engine.host_pool.size, MIB),
        ("tiers.memory.size", spec.tiers.memory.size, MIB),
        ("prewarm.maxBytesPerSecond", spec.prewarm.max_bytes_per_second, 1),
    ):
        if size < least:
            raise PoolError(f"pool field spec.{path}: {size} bytes are below {least}; raise it")
    for path, entries in (
        ("requests", spec.agent.resources.requests),
        ("limits", spec.agent.resources.limits),
    ):
        for resource, quantity in entries.items():
            try:
                parse_quantity(quantity)
            except QuantityError as error:
                raise PoolError(f"pool field spec.agent.resources.{path}.{resource}: {error}") from None
