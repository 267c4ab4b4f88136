"""Two cache namespaces for local members: `public`, the default one, and `acme`, with a key file of each. And a
gateway's claims."""

import base64
import hmac
from collections.abc import Sequence
from pathlib import Path

from local_member import FORMAT, POOL, LocalMember

from kvpool_agent.keyring import Keyring
from kvpool_agent.store.slab import Slab
from kvpool_contract.config import AgentConfig, CacheNamespace, Members, Tls
from kvpool_contract.tenants import slab_id

PUBLIC, ACME, NEXT = b"p" * 32, b"a" * 32, b"n" * 32
ACME_ID, PUBLIC_ID = slab_id(FORMAT, "acme"), slab_id(FORMAT, "public")


def keyring(folder: Path, name: str, **keys: Sequence[bytes]) -> Keyring:
    """An agent's keys, in a folder of its own; of those that it has none of the file is not there."""
    own = folder / name
    own.mkdir(exist_ok=True)
    for space, found in keys.items():
        (own / space).write_bytes(b"\n".join(map(base64.b64encode, found)))
    spaces = tuple(
        CacheNamespace(name=space, keyFile=str(own / space), memoryPercent=percent)
        for space, percent in (("public", 0), ("acme", 30))
    )
    members, tls = Members(file=str(folder / "members")), Tls(mode="Disabled")
    config = AgentConfig(version=1, pool=POOL, arenaBytes=1 << 20, members=members, tls=tls, cacheNamespaces=spaces)
    return Keyring(config)


def sign_claim(gateway_key: bytes, pool: str, name: str, expires: int) -> str:
    """The claim that a request is of this cache namespace, for requests that begin before `expires`."""
    mac = hmac.digest(gateway_key, f"kvpool1.{pool}.{name}.{expires}".encode(), "sha256").hex()
    return f"kvpool1.{name}.{expires}.{mac}"


def acme(member: LocalMember) -> Slab:
    return next(slab for slab in member.slabs.all if slab.space.name == "acme")
