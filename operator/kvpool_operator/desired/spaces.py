"""Cache namespaces in a pool's spec: their types, what must hold of them, and which of them a pod may hold.

Keys are only named here. Those that no Secret of the user's holds lie in one Secret of the controller's in each
Kubernetes namespace, an entry for each cache namespace; a pod mounts the entries that it may have and no other.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from kvpool_contract.config import CacheNamespace as AgentCacheNamespace
from kvpool_contract.tenants import KEYS_FOLDER, MAX_CACHE_NAMESPACES, NAME_PATTERN, is_name
from kvpool_operator.desired.parts import Part, PoolError, field

KEYS_SECRET = "kvpool-keys"  # noqa: S105 (a name)
GATEWAY_KEY_FILE = "gateway.key"
MAX_PERCENT = 95
MAX_SELECTED = 16
SECRET_NAME = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$"  # noqa: S105
LABEL_VALUE = 63
LabelValue = Annotated[str, msgspec.Meta(max_length=LABEL_VALUE)]


class KeySecretRef(Part, frozen=True):
    """An entry of a Secret in the pods' namespace: one key a line, each 32 bytes in base64, as `openssl rand -base64
    32` writes it. The first one is in force; one more may stand below it, see docs/tenants.md."""

    name: Annotated[str, field("Name of the Secret.", max_length=253, pattern=SECRET_NAME)] = ""
    key: Annotated[str, field("Entry of the Secret.", max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "key"


class PodSelector(Part, frozen=True):
    """The pods of the pool with all of these labels; without any, all pods of the pool."""

    match_labels: Annotated[dict[str, LabelValue], field("Labels of the pod.", max_length=MAX_SELECTED)] = (
        msgspec.field(default_factory=dict)
    )


class Quota(Part, frozen=True):
    """What a cache namespace may take."""

    memory_percent: Annotated[
        int,
        field(
            "Percent of the arena, held for it alone. 0 for the first one, which has the rest.", ge=0, le=MAX_PERCENT
        ),
    ] = 0


class SpacePublication(Part, frozen=True):
    """What members tell each other of in a cache namespace, where that is another thing than in the pool."""

    max_depth_tokens: Annotated[
        int,
        field(
            "As publication.maxDepthTokens of the pool, in its place for this cache namespace. 0: as the pool says.",
            ge=0,
            le=2**31,
        ),
    ] = 0


class CacheNamespace(Part, frozen=True):
    """A partition of the pool with a key of its own: what is stored in one is found in no other."""

    name: Annotated[str, field("Its name.", max_length=63, pattern=NAME_PATTERN)]
    tenant: Annotated[
        str,
        field("What requests call it. Empty: by its name.", max_length=63, pattern=rf"^$|{NAME_PATTERN}"),
    ] = ""
    pod_selector: Annotated[
        PodSelector | None,
        field("Pods that get its key. The first one has none: it is every pod's."),
    ] = None
    key_secret_ref: KeySecretRef = msgspec.field(default_factory=KeySecretRef)
    quota: Quota = msgspec.field(default_factory=Quota)
    publication: SpacePublication = msgspec.field(default_factory=SpacePublication)


CacheNamespaces = Annotated[
    list[CacheNamespace],
    field(
        "Partitions of the pool. The first one is the default; without any there is one, without a key. A key that no "
        f"keySecretRef names is made by the controller, in the Secret {KEYS_SECRET}.",
        max_length=MAX_CACHE_NAMESPACES,
    ),
]
RequestNamespace = Annotated[
    Literal["Ignore", "Signed", "TrustGateway"],
    field(
        "How requests say their cache namespace. Ignore: not at all, all are of the default one. Signed: by a claim "
        "under the key of gatewayKeySecretRef. TrustGateway: by the tenant's name; only where nobody but the gateway "
        "reaches the engines."
    ),
]


def check_spaces(spaces: Sequence[CacheNamespace], mode: str, gateway: KeySecretRef) -> None:
    """Raises PoolError, as the rules of the definition refuse."""
    called: list[str] = []
    for i, space in enumerate(spaces):
        path = f"pool field spec.cacheNamespaces[{i}]"
        for name in (space.name, *([space.tenant] if space.tenant else [])):
            if not is_name(name):
                raise PoolError(f"{path}: {name!r} is no name; use up to 63 lower-case letters, digits and '-'")
        called += dict.fromkeys((space.name, space.tenant or space.name))
        if i and (space.pod_selector is None or not space.quota.memory_percent):
            raise PoolError(f"{path}: {OTHERS}")
        if not i and (space.pod_selector is not None or space.quota.memory_percent):
            raise PoolError(f"{path}: {FIRST}")
    if len(set(called)) != len(called):
        raise PoolError(f"pool field spec.cacheNamespaces: {TWICE}")
    if sum(space.quota.memory_percent for space in spaces) > MAX_PERCENT:
        raise PoolError(f"pool field spec.cacheNamespaces: {TOO_MUCH}")
    if mode != "Ignore" and not spaces:
        raise PoolError(f"pool field spec.requestNamespace: {NOTHING_TO_CHOOSE}")
    if (mode == "Signed") != bool(gateway.name):
        raise PoolError(f"pool field spec.gatewayKeySecretRef: {GATEWAY}")


FIRST = "the first one is every pod's and has what the others leave; take podSelector and quota out of it"
OTHERS = "one that is not the first needs a podSelector ({} for all pods) and a quota.memoryPercent; add both"
TWICE = "two have the same name or tenant; give each others"
TOO_MUCH = f"the quotas are above {MAX_PERCENT} percent in all; lower one"
NOTHING_TO_CHOOSE = "there are no cacheNamespaces to choose; add some, or set requestNamespace: Ignore"
GATEWAY = "it goes with requestNamespace Signed; name the Secret of the gateway's key there, and nowhere else"
_NAMES = "self.cacheNamespaces.filter(m, m.name == n.name || m.tenant == n.name"
_TENANTS = " || (n.tenant != '' && (m.name == n.tenant || m.tenant == n.tenant)))"
_RULES = [
    (
        "self.cacheNamespaces.size() == 0 || (!has(self.cacheNamespaces[0].podSelector) && "
        "self.cacheNamespaces[0].quota.memoryPercent == 0)",
        f"cacheNamespaces: {FIRST}",
    ),
    (
        "self.cacheNamespaces.filter(n, !has(n.podSelector) || n.quota.memoryPercent == 0).size() <= 1",
        f"cacheNamespaces: {OTHERS}",
    ),
    (f"self.cacheNamespaces.all(n, {_NAMES}{_TENANTS}.size() == 1)", f"cacheNamespaces: {TWICE}"),
    (
        f"self.cacheNamespaces.map(n, n.quota.memoryPercent).sum() <= {MAX_PERCENT}",
        f"cacheNamespaces: {TOO_MUCH}",
    ),
    (
        "self.requestNamespace == 'Ignore' || self.cacheNamespaces.size() > 0",
        f"requestNamespace: {NOTHING_TO_CHOOSE}",
    ),
    (
        "(self.requestNamespace == 'Signed') == (self.gatewayKeySecretRef.name != '')",
        f"gatewayKeySecretRef: {GATEWAY}",
    ),
]
# A definition whose default of the spec, {}, breaks a rule is refused, and rules look at it as it stands.
_THERE = "!has(self.cacheNamespaces) || !has(self.requestNamespace) || !has(self.gatewayKeySecretRef)"
RULES = [(f"{_THERE} || ({rule})", message) for rule, message in _RULES]


# -- what follows from them --------------------------------------------------------------------------


def agent_spaces(spaces: Sequence[CacheNamespace]) -> tuple[AgentCacheNamespace, ...]:
    """As agents are told of them."""
    return tuple(
        AgentCacheNamespace(
            name=space.name,
            keyFile=f"{KEYS_FOLDER}/{space.name}",
            tenant=space.tenant,
            memoryPercent=space.quota.memory_percent,
            maxDepthTokens=space.publication.max_depth_tokens,
        )
        for space in spaces
    )


def held_by(spaces: Sequence[CacheNamespace], labels: Mapping[str, str]) -> list[CacheNamespace]:
    """Those whose keys a pod with these labels gets; the default one first."""
    return [
        space
        for i, space in enumerate(spaces)
        if not i or (space.pod_selector is not None and space.pod_selector.match_labels.items() <= dict(labels).items())
    ]


def entry_of(pool: str, cache_namespace: str) -> str:
    """The entry of the managed Secret that holds this one's key."""
    return f"{pool}.{cache_namespace}"


def managed_entries(pool: str, spaces: Sequence[CacheNamespace]) -> list[str]:
    """The entries that the controller must see to."""
    return [entry_of(pool, space.name) for space in spaces if not space.key_secret_ref.name]


def key_sources(pool: str, held: Sequence[CacheNamespace], gateway: KeySecretRef) -> list[dict[str, Any]]:
    """The sources of a projected volume with these keys, each of which may come later."""
    named = [
        (space.key_secret_ref.name, space.key_secret_ref.key, space.name)
        if space.key_secret_ref.name
        else (KEYS_SECRET, entry_of(pool, space.name), space.name)
        for space in held
    ]
    if gateway.name:
        named.append((gateway.name, gateway.key, GATEWAY_KEY_FILE))
    return [
        {"secret": {"name": secret, "items": [{"key": entry, "path": path}], "optional": True}}
        for secret, entry, path in named
    ]
