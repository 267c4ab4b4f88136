"""`store`: a server outside the pool that keeps its hot blocks while none of its pods is there."""

import re
from typing import Annotated, Any, Final, Literal

from kvpool_contract.external import (
    BUCKET,
    CREDENTIALS_FOLDER,
    DEFAULT_REGION,
    DEFAULT_STORE_RATE,
    DEFAULT_TTL_SECONDS,
    FIX,
    MAX_URL,
    REGION,
    S3,
    VALKEY,
    wrong_with,
)
from kvpool_contract.external import Store as AgentStore
from kvpool_operator.desired.parts import Bytes, Part, PoolError, field
from kvpool_operator.desired.spaces import SECRET_NAME

NONE: Final = "None"
_URLS = {VALKEY: "^(valkey|redis)s?://[^@/?#]+(/[0-9]*)?$", S3: "^https?://[^@/?#]+/?$"}
_MAX_TTL_SECONDS = 31 * 86_400


class Store(Part, frozen=True):
    """An external store: a server where blocks that two requests contained are kept beside the pool, so that one which
    was scaled to zero begins with its hot set. It is asked last, for what no agent holds. Blocks of cacheNamespaces are
    sealed by AES-256-GCM under their keys; without any, whoever may read the server may read them. All names there
    begin with kvpool/NAMESPACE/POOL/."""

    type: Annotated[
        Literal["None", "Valkey", "S3"],
        field(
            "Valkey: a Valkey or Redis server. S3: a bucket of S3, or of a service that speaks its protocol. None: "
            "there is no external store."
        ),
    ] = "None"
    url: Annotated[
        str,
        field(
            "The server: of Valkey as valkey://HOST:PORT/DATABASE, or valkeys:// for TLS; of S3 as https://HOST, or "
            "http://HOST:PORT without TLS. Without credentials.",
            max_length=MAX_URL,
        ),
    ] = ""
    bucket: Annotated[str, field("S3's bucket. It has to be there.", max_length=63, pattern=f"^({BUCKET})?$")] = ""
    region: Annotated[
        str,
        field(
            "For which requests to S3 are signed; services other than AWS mostly take any.",
            max_length=63,
            pattern=f"^{REGION}$",
        ),
    ] = DEFAULT_REGION
    secret_name: Annotated[
        str,
        field(
            "Secret in the pods' namespace. For Valkey with the entry password and, where it is needed, username; for "
            "S3 with accessKeyId and secretAccessKey and, where it is needed, sessionToken: without a Secret the "
            "agent finds its key as AWS's clients do, such as by the role of the pod's service account. Beside them "
            "ca.crt: the authorities by which the server is trusted, where these aren't public ones. It is read anew "
            "with each connection.",
            max_length=253,
            pattern=SECRET_NAME,
        ),
    ] = ""
    ttl_seconds: Annotated[
        int,
        field(
            "How long a block is kept there from its last use on, or up to a quarter less.",
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


NO_URL = {VALKEY: f"type Valkey needs a url; {FIX[VALKEY]}", S3: f"type S3 needs a url; {FIX[S3]}"}
NO_TYPE = "url, bucket or secretName without type names a store that is not used; set type, or take them out"
NO_BUCKET = "type S3 needs a bucket; name it"
NOT_ITS_BUCKET = "only type S3 has a bucket; take it out, or set type: S3"
WRONG_URL = {
    kind: f"url is no address of a store of type {kind}; {fix}, without credentials" for kind, fix in FIX.items()
}


def _given(name: str) -> str:
    return f"(has(self.{name}) && self.{name} != '')"


def _is(kind: str) -> str:
    return f"(has(self.type) && self.type == '{kind}')"


_NONE = f"(!has(self.type) || self.type == '{NONE}')"
RULES = [
    *((f"!{_is(kind)} || {_given('url')}", NO_URL[kind]) for kind in (VALKEY, S3)),
    (f"!{_NONE} || (!{_given('url')} && !{_given('bucket')} && !{_given('secretName')})", NO_TYPE),
    (f"!{_is(S3)} || {_given('bucket')}", NO_BUCKET),
    (f"!{_is(VALKEY)} || !{_given('bucket')}", NOT_ITS_BUCKET),
    *(
        (f"!{_is(kind)} || !{_given('url')} || self.url.matches('{_URLS[kind]}')", WRONG_URL[kind])
        for kind in (VALKEY, S3)
    ),
]


def check_store(store: Store) -> None:
    """Raises PoolError, as the rules of the definition refuse."""
    if wrong := _wrong(store):
        raise PoolError(f"pool field spec.store: {wrong}")


def _wrong(store: Store) -> str:
    if store.type == NONE:
        return NO_TYPE if store.url or store.bucket or store.secret_name else ""
    if not store.url:
        return NO_URL[store.type]
    if store.type == S3 and not store.bucket:
        return NO_BUCKET
    if store.type == VALKEY and store.bucket:
        return NOT_ITS_BUCKET
    usable = re.fullmatch(_URLS[store.type], store.url) and not wrong_with(agent_store(store, "", ""))
    return "" if usable else WRONG_URL[store.type]


def agent_store(store: Store, k8s_namespace: str, pool: str) -> AgentStore:
    """As agents are told of it."""
    if store.type == NONE:
        return AgentStore()
    return AgentStore(
        type=store.type,
        url=store.url,
        bucket=store.bucket,
        region=store.region,
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
