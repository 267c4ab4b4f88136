"""Pools that nobody can use, each with the field that its refusal names and the words that say what to do.

One table for the API server and for the strict types, so that neither takes what the other refuses. `admission` are
words of the API server's refusal, `offline` the whole sentence of the command line and of the condition ConfigValid.
"""

from dataclasses import dataclass, field
from typing import Any

from kvpool_contract.prefixes import MAX_TEXT, TOO_LONG
from kvpool_operator.desired.publication import NO_PREFIXES, NOT_DECLARED, ONE_SOURCE
from kvpool_operator.desired.spaces import FIRST, GATEWAY, NOTHING_TO_CHOOSE, OTHERS, TOO_MUCH, TWICE
from kvpool_operator.desired.store import NO_BUCKET, NO_TYPE, NO_URL, NOT_ITS_BUCKET, WRONG_URL

NAME = "metadata.name"
NO_NAME = (
    "pool field metadata.name: {!r} can't name the pool's Service; use at most 56 lower-case letters, digits and "
    "'-', a letter first and no '-' last"
)
QUANTITY = "is no quantity; write a number with a unit, such as 500Mi or 4Gi"
NO_TEXT = "is neither text nor a whole number; write it as text, such as '500m' or '2Gi'"
UNKNOWN = "unknown field"
PUBLIC = {"name": "public"}
ACME = {"name": "acme", "podSelector": {}, "quota": {"memoryPercent": 10}}
OTHER = {**ACME, "name": "umbrella"}


@dataclass(frozen=True)
class BadPool:
    """`field`: its path; `spec` or `name`: what is wrong in an otherwise good pool."""

    field: str
    offline: str
    admission: str
    spec: dict[str, Any] = field(default_factory=dict)
    name: str = "chat"

    def document(self) -> dict[str, Any]:
        return {
            "apiVersion": "kvpool.io/v1alpha1",
            "kind": "KVCachePool",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": self.spec,
        }

    def __str__(self) -> str:
        return f"{self.field}={self.spec or self.name}"[:60]


def _at(path: str, value: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    part, names = spec, path.split(".")
    for name in names[:-1]:
        part = part.setdefault(name, {})
    part[names[-1]] = value
    return spec


def _bad(path: str, value: Any, offline: str, admission: str) -> BadPool:
    return BadPool(f"spec.{path}", f"pool field spec.{path}: {offline}", admission, _at(path, value))


def _unknown(path: str, value: Any, known: str) -> BadPool:
    where = ".".join(["spec", *path.split(".")[:-1]])
    return _bad(path, value, f"this version does not know it; {where} has {known}", UNKNOWN)


def _below(path: str, value: Any, count: int, least: int, text: str) -> BadPool:
    return _bad(path, value, f"{count} bytes are below {least}; raise it", f"it is below {text}; raise it")


def _wrong(path: str, value: Any, offline: str, admission: str) -> BadPool:
    return _bad(path, value, f"{offline}; correct the value", admission)


BAD_POOLS = [
    *(
        BadPool(NAME, NO_NAME.format(name), "use at most 56 lower-case letters, digits and '-'", name=name)
        for name in ("a" * 57, "1chat", "a.b")
    ),
    _unknown(
        "engin",
        {},
        "engine, tiers, store, prewarm, readiness, loading, drain, replication, canary, publication, cacheNamespaces, "
        "requestNamespace, gatewayKeySecretRef, transport, agent, paused",
    ),
    _wrong("tiers.memory.ownedPercent", 101, "expected `int` <= 100", "should be less than or equal to 100"),
    _bad(
        "tiers.memory.eviction",
        "FIFO",
        "'FIFO' is none of GDSF, LRU, S3FIFO; use one of them",
        'supported values: "GDSF", "LRU", "S3FIFO"',
    ),
    _unknown("tiers.ssd", {"size": "1Gi"}, "memory, disk"),
    _unknown("engine.hostpool", {}, "container, port, hostPool, blockTokens, allowUntested"),
    _unknown("prewarm.maxStream", 2, "maxBytes, maxBytesPerSecond, maxStreams, sourceMaxStreams"),
    _unknown("transport.kind", "TCP", "type, rdma, tls"),
    _bad("transport.type", "UDP", "'UDP' is none of Auto, TCP, RDMA; use one of them", "Unsupported value"),
    _bad(
        "transport.rdma.memlock",
        "Root",
        "'Root' is none of Node, IPCLock; use one of them",
        "Unsupported value",
    ),
    _bad(
        "transport.tls.mode",
        "Off",
        "'Off' is none of Managed, Secret, Disabled; use one of them",
        "Unsupported value",
    ),
    BadPool(
        "spec.transport.tls",
        "pool field spec.transport.tls.secretRef.name: mode Secret needs it; name the Secret",
        "mode Secret needs secretRef.name; name the Secret",
        {"transport": {"tls": {"mode": "Secret"}}},
    ),
    BadPool(
        "spec.transport.tls",
        "pool field spec.transport.tls.secretRef.name: mode Managed uses none; remove it, or set mode: Secret",
        "only mode Secret uses secretRef.name; remove it, or set mode: Secret",
        {"transport": {"tls": {"secretRef": {"name": "s"}}}},
    ),
    _wrong(
        "transport.tls.secretRef.name",
        "A_B",
        "expected `str` matching regex '^$|^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$'",
        "should match",
    ),
    _bad("tiers.memory.size", "8GB", f"'8GB' {QUANTITY}", QUANTITY),
    _bad("tiers.memory.size", "", f"'' {QUANTITY}", QUANTITY),
    _bad("tiers.memory.size", "8 Gi", f"'8 Gi' {QUANTITY}", QUANTITY),
    _bad("tiers.memory.size", "-8Gi", f"'-8Gi' {QUANTITY}", QUANTITY),
    _bad("tiers.memory.size", True, f"True {QUANTITY}", "must be of type integer,string"),
    _bad("tiers.memory.size", ["8Gi"], f"['8Gi'] {QUANTITY}", "must be of type integer,string"),
    _bad("tiers.memory.size", "99999Ei", "'99999Ei' is above 1Ei; lower it", "it is above 1Ei; lower it"),
    _bad("tiers.memory.size", 2**60 + 1, f"{2**60 + 1} is above 1Ei; lower it", "it is above 1Ei; lower it"),
    _bad("tiers.memory.size", 2000000.5, f"2000000.5 {NO_TEXT}", "must be of type integer,string"),
    _below("tiers.memory.size", 1000, 1000, 2**20, "1Mi"),
    _below("tiers.memory.size", "1023Ki", 1023 * 1024, 2**20, "1Mi"),
    _below("engine.hostPool.size", "1k", 1000, 2**20, "1Mi"),
    _bad("engine.hostPool.size", "4gib", f"'4gib' {QUANTITY}", QUANTITY),
    _bad("prewarm.maxBytes", "2 GB", f"'2 GB' {QUANTITY}", QUANTITY),
    _below("prewarm.maxBytesPerSecond", 0, 0, 1, "1"),
    _wrong("prewarm.maxStreams", 0, "expected `int` >= 1", "should be greater than or equal to 1"),
    _wrong("prewarm.maxStreams", 257, "expected `int` <= 256", "should be less than or equal to 256"),
    _wrong("engine.port", 0, "expected `int` >= 1", "should be greater than or equal to 1"),
    _wrong("engine.port", 65536, "expected `int` <= 65535", "should be less than or equal to 65535"),
    _wrong("engine.port", "8000", "expected `int`, got `str`", "must be of type integer"),
    _wrong("engine.container", "c" * 64, "expected `str` of length <= 63", "may not be more than 63 bytes"),
    _wrong("engine.blockTokens", 8, "expected `int` >= 16", "should be greater than or equal to 16"),
    _wrong("engine.allowUntested", "yes", "expected `bool`, got `str`", "must be of type boolean"),
    _wrong("readiness.targetPercent", 0, "expected `int` >= 1", "should be greater than or equal to 1"),
    _wrong("readiness.targetPercent", 101, "expected `int` <= 100", "should be less than or equal to 100"),
    _wrong("readiness.targetPercent", "95", "expected `int`, got `str`", "must be of type integer"),
    _wrong("readiness.deadlineSeconds", -1, "expected `float` >= 0.0", "should be greater than or equal to 0"),
    _bad(
        "readiness.onDeadline",
        "Wait",
        "'Wait' is none of Degrade, Block; use one of them",
        'supported values: "Degrade", "Block"',
    ),
    _wrong("readiness.attachGraceSeconds", 86401, "expected `float` <= 86400.0", "less than or equal to 86400"),
    _wrong("loading.margin", 0.5, "expected `float` >= 1.0", "should be greater than or equal to 1"),
    _wrong("loading.deadlineSeconds", 0.01, "expected `float` >= 0.05", "should be greater than or equal to 0.05"),
    _wrong("loading.calibrationSeconds", -1, "expected `float` >= 0.0", "should be greater than or equal to 0"),
    _wrong("loading.deadlineSeconds", 3601, "expected `float` <= 3600.0", "should be less than or equal to 3600"),
    BadPool(
        "spec.tiers.disk",
        "pool field spec.tiers.disk: storageClassName and podVolume exclude each other; set one of them",
        "storageClassName and podVolume exclude each other; set one of them",
        _at("tiers.disk", {"size": "1Gi", "storageClassName": "fast", "podVolume": "models"}),
    ),
    BadPool(
        "spec.tiers.disk",
        "pool field spec.tiers.disk: storageClassName claims a volume without size; set size",
        "storageClassName claims a volume without size; set size",
        _at("tiers.disk", {"storageClassName": "fast"}),
    ),
    _bad("store.type", "Redis", "'Redis' is none of None, Valkey, S3; use one of them", "Unsupported value"),
    *(
        BadPool("spec.store", f"pool field spec.store: {sentence}", sentence, {"store": store})
        for sentence, store in (
            (NO_URL["Valkey"], {"type": "Valkey"}),
            (NO_URL["S3"], {"type": "S3", "bucket": "caches"}),
            (NO_TYPE, {"url": "valkey://cache:6379"}),
            (NO_TYPE, {"bucket": "caches"}),
            (NO_BUCKET, {"type": "S3", "url": "https://s3"}),
            (NOT_ITS_BUCKET, {"type": "Valkey", "url": "valkey://cache:6379", "bucket": "caches"}),
            (WRONG_URL["Valkey"], {"type": "Valkey", "url": "valkey://user:secret@cache:6379"}),
            (WRONG_URL["Valkey"], {"type": "Valkey", "url": "https://s3"}),
            (WRONG_URL["S3"], {"type": "S3", "bucket": "caches", "url": "https://s3/caches"}),
            (WRONG_URL["S3"], {"type": "S3", "bucket": "caches", "url": "valkey://cache:6379"}),
        )
    ),
    _wrong(
        "store.bucket",
        "Caches",
        "expected `str` matching regex '^([a-z0-9][-.a-z0-9]{1,61}[a-z0-9])?$'",
        "should match",
    ),
    _wrong("store.region", "eu west", "expected `str` matching regex '^[a-z0-9][-a-z0-9]{0,62}$'", "should match"),
    _wrong("store.ttlSeconds", 59, "expected `int` >= 60", "should be greater than or equal to 60"),
    _wrong("agent.image", "i" * 513, "expected `str` of length <= 512", "may not be more than 512 bytes"),
    _wrong(
        "agent.imagePullSecrets",
        [{"name": f"s{n}"} for n in range(9)],
        "expected `array` of length <= 8",
        "must have at most 8 items",
    ),
    BadPool(
        "spec.agent.imagePullSecrets[0]",
        "pool field spec.agent.imagePullSecrets[0].nam: this version does not know it; "
        "spec.agent.imagePullSecrets[0] has name",
        UNKNOWN,
        _at("agent.imagePullSecrets", [{"nam": "s"}]),
    ),
    BadPool(
        "spec.agent.imagePullSecrets[0].name",
        "pool field spec.agent.imagePullSecrets[0].name: it is missing; add it",
        "Required value",
        _at("agent.imagePullSecrets", [{}]),
    ),
    BadPool(
        "spec.agent.resources.limits",
        f"pool field spec.agent.resources.limits.cpu: 'two' {QUANTITY}",
        QUANTITY,
        _at("agent.resources.limits.cpu", "two"),
    ),
    BadPool(
        "spec.agent.resources.limits",
        f"pool field spec.agent.resources.limits.cpu: 0.5 {NO_TEXT}",
        "must be of type integer,string",
        _at("agent.resources.limits.cpu", 0.5),
    ),
    BadPool(
        "spec.agent.resources.requests",
        "pool field spec.agent.resources.requests.memory: '99999Ei' is above 1Ei; lower it",
        "it is above 1Ei; lower it",
        _at("agent.resources.requests.memory", "99999Ei"),
    ),
    _wrong(
        "agent.resources.limits",
        {f"r{n}": 1 for n in range(17)},
        "expected `object` of length <= 16",
        "must have at most 16 items",
    ),
    BadPool(
        "spec.agent.resources",
        "pool field spec.agent.resources.requests.cpu: 2 is above its limit of 1500m; lower it or raise the limit",
        "a request is above its limit; lower it or raise the limit",
        _at("agent.resources", {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}),
    ),
    *(
        BadPool(
            "spec",
            f"pool field spec.agent.resources.limits.memory: {limit} has no room for the arena of tiers.memory.size; "
            f"raise it, or lower that",
            "agent.resources.limits.memory has no room for the arena of tiers.memory.size; raise it, or lower that",
            {"agent": {"resources": {"limits": {"memory": limit}}}, "tiers": {"memory": size}},
        )
        for limit, size in (("8191Mi", {}), (2**30 - 1, {"size": "1Gi"}))
    ),
    *(
        BadPool("spec", f"pool field spec.{path}: {sentence}", f"{path.partition('[')[0]}: {sentence}", spec)
        for path, sentence, spec in (
            ("cacheNamespaces[0]", FIRST, {"cacheNamespaces": [PUBLIC | {"podSelector": {}}]}),
            ("cacheNamespaces[0]", FIRST, {"cacheNamespaces": [PUBLIC | {"quota": {"memoryPercent": 1}}]}),
            ("cacheNamespaces[1]", OTHERS, {"cacheNamespaces": [PUBLIC, {"name": "acme", "podSelector": {}}]}),
            ("cacheNamespaces[1]", OTHERS, {"cacheNamespaces": [PUBLIC, {**ACME, "podSelector": None}]}),
            ("cacheNamespaces", TWICE, {"cacheNamespaces": [PUBLIC, ACME, ACME]}),
            ("cacheNamespaces", TWICE, {"cacheNamespaces": [PUBLIC, {**ACME, "tenant": "public"}]}),
            (
                "cacheNamespaces",
                TOO_MUCH,
                {"cacheNamespaces": [PUBLIC, ACME | {"quota": {"memoryPercent": 90}}, OTHER]},
            ),
            ("requestNamespace", NOTHING_TO_CHOOSE, {"requestNamespace": "TrustGateway"}),
            ("gatewayKeySecretRef", GATEWAY, {"cacheNamespaces": [PUBLIC], "requestNamespace": "Signed"}),
            ("gatewayKeySecretRef", GATEWAY, {"gatewayKeySecretRef": {"name": "gateway"}}),
        )
    ),
    BadPool(
        "spec.cacheNamespaces[0].name",
        "pool field spec.cacheNamespaces[0].name: expected `str` matching regex "
        "'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'; correct the value",
        "should match",
        {"cacheNamespaces": [{"name": "Acme"}]},
    ),
    _bad(
        "requestNamespace",
        "Trust",
        "'Trust' is none of Ignore, Signed, TrustGateway; use one of them",
        'supported values: "Ignore", "Signed", "TrustGateway"',
    ),
    *(
        BadPool("spec.publication", f"pool field spec.publication: {said}", said, {"publication": publication})
        for said, publication in (
            (NO_PREFIXES, {"policy": "Declared"}),
            (NOT_DECLARED, {"prefixes": [{"text": "a"}]}),
            (ONE_SOURCE, {"policy": "Declared", "prefixes": [{"text": "a"}, {}]}),
            (ONE_SOURCE, {"policy": "Declared", "prefixes": [{"text": "a", "tokenIds": [1]}]}),
            (
                f"prefixes: {TOO_LONG}",
                {"policy": "Declared", "prefixes": [{"text": "a" * MAX_TEXT}, {"text": "a"}]},
            ),
        )
    ),
    BadPool(
        "spec.publication.prefixes[0].configMapKeyRef.key",
        "pool field spec.publication.prefixes[0].configMapKeyRef.key: it is missing; add it",
        "Required value",
        {"publication": {"policy": "Declared", "prefixes": [{"configMapKeyRef": {"name": "prompts"}}]}},
    ),
    _wrong("prewarm", "none", "expected `object`, got `str`", "must be of type object"),
]
