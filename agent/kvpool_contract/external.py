"""The external store of a pool, as an agent is told of it: where blocks outlive all of its pods.

Credentials are files, so that they are mounted from a Secret and changed without a restart: of Valkey and Redis
`username` and `password`, of S3 `accessKeyId`, `secretAccessKey` and `sessionToken`, each of which may be missing; and
`ca.crt`, the authorities by which the server is trusted where they are not the system's.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urlsplit

STORE = "store"  # as a source of blocks, beside members' addresses
CREDENTIALS_FOLDER = "/kvpool/store"
USERNAME_FILE, PASSWORD_FILE, STORE_AUTHORITIES_FILE = "username", "password", "ca.crt"
ACCESS_KEY_FILE, SECRET_KEY_FILE, SESSION_TOKEN_FILE = "accessKeyId", "secretAccessKey", "sessionToken"
VALKEY, S3 = "Valkey", "S3"
SCHEMES = {VALKEY: ("valkey", "valkeys", "redis", "rediss"), S3: ("http", "https")}
FIX = {
    VALKEY: "write valkey://HOST:PORT, or valkeys:// for TLS",
    S3: "write https://HOST, or http://HOST:PORT without TLS",
}
DEFAULT_PORT = 6379
DEFAULT_REGION = "us-east-1"
BUCKET = "[a-z0-9][-.a-z0-9]{1,61}[a-z0-9]"
REGION = "[a-z0-9][-a-z0-9]{0,62}"
DEFAULT_TTL_SECONDS = 86_400
DEFAULT_STORE_RATE = 200 * 2**20
MAX_URL = 512


@dataclass(frozen=True, kw_only=True)
class Store:
    """`type`: empty where there is none. `url`: of the server, without credentials. `bucket`, `region`: of S3 alone.
    `prefix`: of all names in it. `credentialsFolder`: where they are mounted, empty: none. `ttlSeconds`: after which an
    unused block is gone. `maxBytesPerSecond`: that this agent writes at most."""

    type: Literal["", "Valkey", "S3"] = ""
    url: str = ""
    bucket: str = ""
    region: str = DEFAULT_REGION
    prefix: str = ""
    credentialsFolder: str = ""  # noqa: N815
    ttlSeconds: int = DEFAULT_TTL_SECONDS  # noqa: N815
    maxBytesPerSecond: int = DEFAULT_STORE_RATE  # noqa: N815


def place(url: str) -> tuple[SplitResult, str, int] | None:
    """The parts of a store's URL, its host and port; None where it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (parts, host, port or DEFAULT_PORT) if host and len(url) <= MAX_URL else None


def wrong_with(store: Store) -> tuple[str, str] | None:
    """The field of a store that can't be used, and a sentence with the fix; None where all can."""
    if not store.type:
        return None
    found = place(store.url)
    if found is None or found[0].scheme not in SCHEMES[store.type] or found[0].query or found[0].fragment:
        return "url", f"{store.url!r} is no address of such a store; {FIX[store.type]}"
    if found[0].username or found[0].password:
        return "url", "it holds credentials; put them into files, and take them out of it"
    path = found[0].path.strip("/")
    if store.type == VALKEY and path and not path.isdigit():
        return "url", f"{found[0].path!r} is no number of a database; write /0, or nothing"
    if store.type == S3 and path:
        return "url", f"{found[0].path!r} is more than an address; take it out, and write the bucket into bucket"
    if store.type == S3 and not re.fullmatch(BUCKET, store.bucket):
        return "bucket", f"{store.bucket!r} is no name of a bucket; correct it"
    if not re.fullmatch(REGION, store.region):
        return "region", f"{store.region!r} is no name of a region; correct it, or leave it out"
    if store.ttlSeconds < 1:
        return "ttlSeconds", f"{store.ttlSeconds} is below 1; raise it"
    if store.maxBytesPerSecond < 1:
        return "maxBytesPerSecond", f"{store.maxBytesPerSecond} is below 1; raise it"
    return None
