"""Keys of cache namespaces, and what is made of them: key files, keys for one use each, claims that a gateway signs.

A key file holds one key a line, in base64, 32 bytes at least: what `openssl rand -base64 32` writes. The first key is
that of the epoch of now and names new blocks; with a second one, that of the epoch before or of the one to come,
blocks are looked for as well. No message of this module tells anything of a key.

A claim says which cache namespace a request is of: `kvpool1.NAME.EXPIRES.MAC`, EXPIRES in seconds since 1970, MAC the
HMAC-SHA256 in hex, under the gateway's key, over `kvpool1.POOL.NAME.EXPIRES`.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

from kvpool_contract.names import FINGERPRINT_BYTES

# Where an agent's keys are mounted: not below /run/kvpool, which the engine mounts, too, and may write to; there, as
# FORMER_KEYS_FOLDER, they lay in pods that an earlier version has injected.
KEYS_FOLDER, FORMER_KEYS_FOLDER = "/kvpool/keys", "/var/run/kvpool/keys"
MAX_CACHE_NAMESPACES = 16
MAX_EPOCHS = 2
MIN_KEY_BYTES, MAX_KEY_BYTES = 32, 64
MAX_KEY_FILE = 4096
MAX_CLAIM = 512
MAX_CLAIM_SECONDS = 3600  # that a claim may be valid for from now on: who steals one has it no longer
REQUEST_MODES = ("Ignore", "Signed", "TrustGateway")
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_NAME = re.compile(NAME_PATTERN)
_CLAIM = "kvpool1"


class KeyFileError(ValueError):
    """The file holds no keys; one sentence, without any of its content."""


class ClaimError(ValueError):
    """The claim doesn't hold; `word` says why: claim_malformed, claim_expired, claim_too_long, claim_forged."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def is_name(text: str) -> bool:
    """Whether this can name a cache namespace or its tenant."""
    return _NAME.fullmatch(text) is not None


def parse_keys(data: bytes) -> tuple[bytes, ...]:
    """The keys of a key file, that of the epoch of now first. Raises KeyFileError."""
    lines = data.split()
    if not 1 <= len(lines) <= MAX_EPOCHS:
        raise KeyFileError(f"it has {len(lines)} keys; write one key a line, {MAX_EPOCHS} at most")
    keys = []
    for line in lines:
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            raise KeyFileError("a line is no base64; write what `openssl rand -base64 32` prints") from None
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise KeyFileError(f"a key has {len(key)} bytes; use {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
        keys.append(key)
    if len(set(keys)) != len(keys):
        raise KeyFileError("both keys are the same; write a new one first")
    return tuple(keys)


def key_for(key: bytes, use: str) -> bytes:
    """A key of 32 bytes for one use alone, so that what is done with it says nothing of the others."""
    return hmac.digest(key, f"kvpool cache namespace: {use}".encode(), "sha256")


def slab_id(fingerprint: bytes, cache_namespace: str) -> bytes:
    """What members call the blocks of a format and a cache namespace with a key, whatever the key's epoch."""
    digest = hashlib.blake2b(fingerprint, digest_size=FINGERPRINT_BYTES, person=b"kvpool slab")
    digest.update(cache_namespace.encode())
    return digest.digest()


def check_claim(gateway_keys: Sequence[bytes], pool: str, claim: str, now: float) -> str:
    """The name that the claim proves, under one of the keys. Raises ClaimError. now: seconds since 1970."""
    version, name, expires, mac = (claim.split(".") + [""] * 4)[:4]
    well_formed = claim.count(".") == 3 and version == _CLAIM and is_name(name) and mac.isascii()
    if len(claim) > MAX_CLAIM or not well_formed or not (expires.isascii() and expires.isdigit()) or len(expires) > 12:
        raise ClaimError("claim_malformed")
    until = int(expires)
    right = [hmac.compare_digest(_mac(key, pool, name, until), mac) for key in gateway_keys]
    if not any(right):
        raise ClaimError("claim_forged")
    if until <= now:
        raise ClaimError("claim_expired")
    if until > now + MAX_CLAIM_SECONDS:
        raise ClaimError("claim_too_long")
    return name


def _mac(gateway_key: bytes, pool: str, name: str, expires: int) -> str:
    return hmac.new(gateway_key, f"{_CLAIM}.{pool}.{name}.{expires}".encode(), hashlib.sha256).hexdigest()
