"""`store`: a server outside the pool that keeps its hot blocks while none of its pods is there."""

import re
from typing import Annotated, Any, Literal

from kvpool_contract.external import CREDENTIALS_FOLDER, DEFAULT_STORE_RATE, DEFAULT_TTL_SECONDS, MAX_URL, wrong_with
from kvpool_contract.external import Store as AgentStore
from kvpool_operator.desired.parts import Bytes, Part, PoolError, field
from kvpool_operator.desired.spaces import SECRET_NAME

NONE = "None"
_URL = "^(valkey|redis)s?://[^@/?#]+(/[0-9]*)?$"
_MAX_TTL_SECONDS = 31 * 86_400


class Store(Part, frozen=True):
    """An external store: a server where blocks that two requests contained are kept beside the pool, so that one which
    was scaled to zero begins with its hot set. It is asked last, for what no agent holds. Blocks of cacheNamespaces are
    sealed by AES-256-GCM under their keys; without any, whoever may read the server may read them. All names there
    begin with kvpool/NAMESPACE/POOL/."""

    type: Annotated[
        Literal["None", "Valkey"],
        field("Valkey: a Valkey or Redis server. None: there is no external store."),
    ] = "None"
    url: Annotated[
        str,
        field(
            "The server, as valkey://HOST:PORT/DATABASE, or valkeys:// for TLS; without credentials.",
            max_length=MAX_URL,
        ),
    ] = ""
    secret_name: Annotated[
        str,
        field(
            "Secret in the pods' namespace with the entry password and, where they are needed, username and ca.crt: "
            "the authorities by which the server is trusted. It is read anew with each connection.",
            max_length=253,
            pattern=SECRET_NAME,
        ),
    ] = ""
    ttl_seconds: Annotated[
        int,
        field(
            "How long the server keeps a block from its last use on, or up to a quarter less.",
            ge=60,
            le=_MAX_TTL_SECONDS,
        ),
    ] = DEFAULT_TTL_SECONDS
    max_bytes_per_second: Annotated[Bytes, field("Bytes per second that an agent writes there at most.", least=1)] = (
        Bytes(DEFAULT_STORE_RATE)
    )

    @property
    def wanted(self) -> bool:
        return self.type != NONE


NO_URL = "type Valkey needs a url; write valkey://HOST:PORT"
NO_TYPE = "url or secretName without type names a store that is not used; set type: Valkey, or take them out"
WRONG_URL = "url is no address of such a store; write valkey://HOST:PORT, or valkeys:// for TLS, without credentials"
_GIVEN = "(has(self.url) && self.url != '')"
_SECRET = "(has(self.secretName) && self.secretName != '')"  # noqa: S105 (a rule)
_NONE = "(!has(self.type) || self.type == 'None')"
RULES = [
    (f"{_NONE} || {_GIVEN}", NO_URL),
    (f"!{_NONE} || (!{_GIVEN} && !{_SECRET})", NO_TYPE),
    (f"!{_GIVEN} || self.url.matches('{_URL}')", WRONG_URL),
]


def check_store(store: Store) -> None:
    """Raises PoolError, as the rules of the definition refuse."""
    if store.wanted and not store.url:
        raise PoolError(f"pool field spec.store: {NO_URL}")
    if not store.wanted and (store.url or store.secret_name):
        raise PoolError(f"pool field spec.store: {NO_TYPE}")
    if store.wanted and (not re.fullmatch(_URL, store.url) or wrong_with(agent_store(store, "", ""))):
        raise PoolError(f"pool field spec.store: {WRONG_URL}")


def agent_store(store: Store, k8s_namespace: str, pool: str) -> AgentStore:
    """As agents are told of it."""
    if store.type == NONE:
        return AgentStore()
    return AgentStore(
        type="Valkey",
        url=store.url,
        prefix=f"kvpool/{k8s_namespace}/{pool}/",
        credentialsFolder=CREDENTIALS_FOLDER if store.secret_name else "",
        ttlSeconds=store.ttl_seconds,
        maxBytesPerSecond=int(store.max_bytes_per_second),
    )


def store_volume(store: Store, name: str) -> dict[str, Any] | None:
    """The volume with its credentials, which may come later; None where it has none."""
    if not store.secret_name:
        return None
    return {"name": name, "secret": {"secretName": store.secret_name, "optional": True}}
