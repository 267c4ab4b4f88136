"""The KVCachePool, `kvpool.io/v1alpha1`, as strict types: what is not here does not exist.

A misspelt field that is silently ignored is a pool that silently does something else, so unknown fields are
refused, and every refusal is one sentence that names the field and the fix. Those of a stored pool are ignored: the API
server has refused what its definition does not know, and fills in the defaults of one that is newer than this process.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from kvpool_contract.names import API_GROUP, pool_object_name
from kvpool_operator.desired.canary import Canary
from kvpool_operator.desired.loading import Loading
from kvpool_operator.desired.parts import GIB, IMMUTABLE, LIVE, MIB, NEW_PODS, Bytes, Part, PoolError, field
from kvpool_operator.desired.publication import Publication, check_publication
from kvpool_operator.desired.quantity import QuantityError, format_quantity, parse_milli, parse_quantity
from kvpool_operator.desired.spaces import CacheNamespaces, KeySecretRef, RequestNamespace, check_spaces
from kvpool_operator.desired.store import Store, check_store
from kvpool_operator.desired.tiers import Tiers, check_disk
from kvpool_operator.desired.transport import Transport, check_tls

__all__ = ["IMMUTABLE", "LIVE", "NEW_PODS", "Bytes", "KVCachePool", "PoolError", "PoolSpec", "read_pool"]

API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "KVCachePool"
MAX_RESOURCES, MAX_SECRETS = 16, 8
MAX_QUANTITY = 2**60  # sums of some of them still fit into the API server's 64 bits

# The pool's Service carries the name and a suffix, and Service names are labels of at most 63 characters that
# begin with a letter.
MAX_NAME = 63 - len(pool_object_name(""))
_NAME, _NAMESPACE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?"), re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class HostPool(Part, frozen=True):
    """The engine's own host tier in its /dev/shm, where blocks are staged on their way in and out."""

    size: Annotated[Bytes, field("Bytes of shared memory.", least=MIB)] = Bytes(4 * GIB)
    adjust_resources: Annotated[
        bool,
        field(
            "Add these bytes to the memory limit and request of the engine's container, and of the pod where it has "
            "its own. false: they stay as they are, and must have room for the host pool already."
        ),
    ] = True


class Engine(Part, frozen=True):
    """The engine that the agent runs beside."""

    container: Annotated[
        str,
        field(
            "Name of the engine's container. Empty: the one container of the pod that runs vLLM.",
            max_length=63,
        ),
    ] = ""
    port: Annotated[int, field("Port of the engine's HTTP server.", ge=1, le=65535)] = 8000
    host_pool: HostPool = msgspec.field(default_factory=HostPool)
    block_tokens: Annotated[
        int,
        field(
            "Tokens of a shared block at most. Smaller blocks share more of short prompts and cost more calls.",
            ge=16,
            le=65536,
        ),
    ] = 256
    allow_untested: Annotated[
        bool, field("Join engine versions outside the tested window; otherwise they start without the pool.")
    ] = False


class Prewarm(Part, frozen=True):
    """Bounds of a newcomer's warm-up: the blocks that most requests of the pool contained are fetched from other
    replicas before the pod turns ready."""

    max_bytes: Annotated[Bytes, field("Bytes of the hot set at most. 0: newcomers fetch nothing.", LIVE, least=0)] = (
        Bytes(2 * GIB)
    )
    max_bytes_per_second: Annotated[
        Bytes,
        field(
            "Bytes per second that a newcomer fetches at most, from all sources together; and that a source gives at "
            "most, to all newcomers together.",
            LIVE,
            least=1,
        ),
    ] = Bytes(500 * MIB)
    max_streams: Annotated[int, field("Sources that a newcomer fetches from at a time.", LIVE, ge=1, le=256)] = 4
    source_max_streams: Annotated[int, field("Newcomers that a source serves at a time.", LIVE, ge=1, le=256)] = 2


class Readiness(Part, frozen=True):
    """When a newcomer turns ready. Whatever comes first counts, and ready is never taken back."""

    target_percent: Annotated[
        int, field("Ready when this much of the hot set is in, in percent of its blocks.", LIVE, ge=1, le=100)
    ] = 95
    deadline_seconds: Annotated[
        float,
        field(
            "Ready, and shown as degraded, this long after the engine's first attach. Keep it below the "
            "progressDeadlineSeconds of the Deployment.",
            LIVE,
            ge=0,
            le=86400,
        ),
    ] = 240.0
    attach_grace_seconds: Annotated[
        float,
        field(
            "Ready, and shown as degraded, when the engine has been healthy this long and has not attached.",
            LIVE,
            ge=0,
            le=86400,
        ),
    ] = 30.0
    on_deadline: Annotated[
        Literal["Degrade", "Block"],
        field(
            "Degrade: at the deadline the pod is ready, whatever has come. Block: the deadline begins anew with each "
            "block of the hot set that comes in, so that a warm-up which goes on holds the pod back for as long as it "
            "takes; one that stands still for deadlineSeconds, or has no source left, ends as with Degrade.",
            LIVE,
        ),
    ] = "Degrade"


class Drain(Part, frozen=True):
    """What a pod that is deleted hands over: the hot blocks that its agent alone holds go to agents that stay."""

    max_seconds: Annotated[
        float,
        field(
            "How long the agent stays for it after the engine has ended; the pod's terminationGracePeriodSeconds is "
            "raised by as much when the pod is made. 0: nothing is handed over.",
            LIVE,
            ge=0,
            le=600,
        ),
    ] = 20.0
    max_bytes_per_second: Annotated[
        Bytes,
        field(
            "Bytes per second that a leaving member gives at most, to all others together, and that one which stays "
            "takes at most.",
            LIVE,
            least=1,
        ),
    ] = Bytes(500 * MIB)


class Replication(Part, frozen=True):
    """Second copies of the hottest blocks that one member alone holds, so that none of them is lost with it."""

    max_bytes_per_second: Annotated[
        Bytes,
        field(
            "Bytes per second that a member gives for them at most, and that one takes at most. 0: none are made.",
            LIVE,
            least=0,
        ),
    ] = Bytes(0)


_Quantities = dict[str, str | int | float]


class Resources(Part, frozen=True):
    """Requests and limits of the agent's container."""

    requests: Annotated[
        _Quantities, field("Requests, each in place of the computed one.", max_length=MAX_RESOURCES)
    ] = msgspec.field(default_factory=dict)
    limits: Annotated[_Quantities, field("Limits, each in place of the computed one.", max_length=MAX_RESOURCES)] = (
        msgspec.field(default_factory=dict)
    )


class ImagePullSecret(Part, frozen=True):
    """A Secret in the pods' namespace."""

    name: Annotated[str, field("Name of the Secret.", max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]


class UpdateStrategy(Part, frozen=True):
    """What becomes of agents that run when `agent.image`, or the chart's, changes."""

    type: Annotated[
        Literal["OnDelete", "InPlace"],
        field(
            "OnDelete: a pod has the agent that it was made with. InPlace: the controller gives one pod after another "
            "the new image; the engine runs on, and its pod is unready until its hot set is in again. It needs the "
            "chart's agent.inPlaceUpdates.",
            LIVE,
        ),
    ] = "OnDelete"


class Agent(Part, frozen=True):
    """The agent's container."""

    image: Annotated[
        str,
        field("The agent's image, which also brings the engine's plug-in.", max_length=512),
    ] = ""
    image_pull_secrets: Annotated[
        list[ImagePullSecret],
        field(
            "Secrets for the agent's image, added to those of the pod. In a manifest that `kvpool inject` joins, name "
            "those of the pod's ServiceAccount as well: it gives its own only to pods that name none.",
            max_length=MAX_SECRETS,
        ),
    ] = msgspec.field(default_factory=list)
    resources: Resources = msgspec.field(default_factory=Resources)
    update_strategy: UpdateStrategy = msgspec.field(default_factory=UpdateStrategy)


class PoolSpec(Part, frozen=True):
    """The pool as it is wanted."""

    engine: Engine = msgspec.field(default_factory=Engine)
    tiers: Tiers = msgspec.field(default_factory=Tiers)
    store: Store = msgspec.field(default_factory=Store)
    prewarm: Prewarm = msgspec.field(default_factory=Prewarm)
    readiness: Readiness = msgspec.field(default_factory=Readiness)
    loading: Loading = msgspec.field(default_factory=Loading)
    drain: Drain = msgspec.field(default_factory=Drain)
    replication: Replication = msgspec.field(default_factory=Replication)
    canary: Canary = msgspec.field(default_factory=Canary)
    publication: Publication = msgspec.field(default_factory=Publication)
    cache_namespaces: CacheNamespaces = msgspec.field(default_factory=list)
    request_namespace: RequestNamespace = "Ignore"
    gateway_key_secret_ref: KeySecretRef = msgspec.field(default_factory=KeySecretRef)
    transport: Transport = msgspec.field(default_factory=Transport)
    agent: Agent = msgspec.field(default_factory=Agent)
    paused: Annotated[
        bool, field("Nothing is loaded nor stored, and pods are ready at once, until it is false again.", LIVE)
    ] = False


class Metadata(Part, frozen=True):
    """`namespace` is also that of every pod of the pool. Labels and annotations are their writer's."""

    name: str
    namespace: str = "default"
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class KVCachePool(Part, frozen=True):
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


def read_stored_pool(body: Mapping[str, Any]) -> KVCachePool:
    """The pool of an object as the API server keeps it, with metadata and a status of the server's own; fields of a
    newer definition are ignored. Raises PoolError."""
    metadata = {key: body["metadata"][key] for key in ("name", "namespace") if key in body["metadata"]}
    frame = {key: body.get(key) for key in ("apiVersion", "kind")}
    return read_pool({**frame, "metadata": metadata, "spec": _known_part(body.get("spec") or {}, PoolSpec)})


def _known_part(document: Any, shape: Any) -> Any:
    """What this version knows of a document."""
    if not isinstance(document, Mapping) or not isinstance(shape, type) or not issubclass(shape, msgspec.Struct):
        return document
    shapes = {f.encode_name: f.type for f in msgspec.structs.fields(shape)}
    return {name: _known_part(value, shapes[name]) for name, value in document.items() if name in shapes}


def _decode(shape: type, value: object) -> object:
    if shape is not Bytes:
        raise NotImplementedError(f"no decoder for {shape}")
    try:
        return Bytes(_bounded(value))
    except QuantityError as error:
        raise ValueError(str(error)) from None


def _bounded(value: object) -> int:
    """Bytes of a quantity in a pool, as the API server takes it; raises QuantityError."""
    if isinstance(value, float):
        raise QuantityError(f"{value!r} is neither text nor a whole number; write it as text, such as '500m' or '2Gi'")
    count = parse_quantity(value)
    if count > MAX_QUANTITY:
        raise QuantityError(f"{value!r} is above {format_quantity(MAX_QUANTITY)}; lower it")
    return count


def _explain(sentence: str, path: str) -> str:
    where = path or "the document"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", sentence):
        field = f"{path}.{unknown[1]}" if path else unknown[1]
        known = ", ".join(_known_fields(path))
        return f"pool field {field}: this version does not know it; {where} has {known}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", sentence):
        return f"pool field {path + '.' if path else ''}{missing[1]}: it is missing; add it"
    if invalid := re.fullmatch(r"Invalid enum value (.*)", sentence):
        return f"pool field {where}: {invalid[1]} is none of {', '.join(_words(path))}; use one of them"
    if "; " in sentence:  # a quantity's own sentence says the fix already
        return f"pool field {where}: {sentence}"
    return f"pool field {where}: {sentence[0].lower()}{sentence[1:]}; correct the value"


def _words(path: str) -> tuple[str, ...]:
    """What a field of words may say."""
    parent, _, name = path.rpartition(".")
    kind = next(f.type for f in msgspec.structs.fields(_shape(parent)) if f.encode_name == name)
    return get_args(get_args(kind)[0])


def _known_fields(path: str) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(_shape(path))]


def _shape(path: str) -> Any:
    """The struct at a path."""
    shape: Any = KVCachePool
    for step in filter(None, path.split(".")):
        name, listed, _ = step.partition("[")
        shape = next(f.type for f in msgspec.structs.fields(shape) if f.encode_name == name)
        if listed:  # an annotated list of structs
            (shape,) = get_args(get_args(shape)[0])
    return shape


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
    _check_sizes(spec, "spec")
    check_disk(spec.tiers.disk)
    check_store(spec.store)
    check_publication(spec.publication)
    check_spaces(spec.cache_namespaces, spec.request_namespace, spec.gateway_key_secret_ref)
    check_tls(spec.transport.tls)
    for path, entries in (
        ("requests", spec.agent.resources.requests),
        ("limits", spec.agent.resources.limits),
    ):
        for resource, quantity in entries.items():
            try:
                _bounded(quantity)
            except QuantityError as error:
                raise PoolError(f"pool field spec.agent.resources.{path}.{resource}: {error}") from None
    limits = spec.agent.resources.limits
    if "memory" in limits and parse_quantity(limits["memory"]) < spec.tiers.memory.size:
        raise PoolError(
            f"pool field spec.agent.resources.limits.memory: {limits['memory']} has no room for the arena of "
            f"tiers.memory.size; raise it, or lower that"
        )
    for resource, quantity in spec.agent.resources.requests.items():
        if resource in limits and parse_milli(quantity) > parse_milli(limits[resource]):
            raise PoolError(
                f"pool field spec.agent.resources.requests.{resource}: {quantity} is above its limit of "
                f"{limits[resource]}; lower it or raise the limit"
            )


def _check_sizes(part: msgspec.Struct, path: str) -> None:
    """Every count of bytes is at least what its field says."""
    for each in msgspec.structs.fields(type(part)):
        value, inner = getattr(part, each.name), f"{path}.{each.encode_name}"
        if isinstance(value, msgspec.Struct):
            _check_sizes(value, inner)
        elif isinstance(value, Bytes):
            (meta,) = (m for m in get_args(each.type) if isinstance(m, msgspec.Meta))
            least = (meta.extra or {})["least"]
            if value < least:
                raise PoolError(f"pool field {inner}: {value} bytes are below {least}; raise it")
