"""What the pod tells the client: one environment variable with JSON, written by the injector."""

import json
from dataclasses import dataclass

VARIABLE = "KVPOOL_CLIENT_CONFIG"
VERSION = 1


@dataclass(frozen=True)
class Settings:
    """socket: the engine port's path. host_pool_bytes: the engine's host tier. block_tokens: the most tokens that a
    block may have. allow_untested: try an engine version outside the tested window. cache_namespaces: whether requests
    may say which one they are of. decode_output: whether the engine hands over what it generates, too."""

    socket: str
    host_pool_bytes: int
    block_tokens: int = 256
    allow_untested: bool = False
    cache_namespaces: bool = False
    decode_output: bool = False


DEFAULT_SOCKET = "/run/kvpool/engine.sock"


def socket_of(text: str) -> str:
    """Where the agent listens, as far as a configuration that may be wrong can tell."""
    try:
        found = json.loads(text)["socket"]
    except (ValueError, TypeError, KeyError):
        return DEFAULT_SOCKET
    return found if isinstance(found, str) and found else DEFAULT_SOCKET


def parse(text: str) -> Settings:
    """Reads the variable's value; raises ValueError with one sentence that names the field."""
    try:
        fields = json.loads(text)
        version = fields["version"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{VARIABLE} is no JSON object with a version; let `kvpool inject` write it") from None
    if version != VERSION:
        raise ValueError(f"{VARIABLE} has version {version!r}, this client reads {VERSION}; inject the pod anew")
    settings = Settings(
        socket=fields.get("socket", ""),
        host_pool_bytes=fields.get("hostPoolBytes", 0),
        block_tokens=fields.get("blockTokens", 256),
        allow_untested=fields.get("allowUntested", False),
        cache_namespaces=fields.get("cacheNamespaces", False),
        decode_output=fields.get("decodeOutput", False),
    )
    if not isinstance(settings.socket, str) or not settings.socket:
        raise ValueError(f"{VARIABLE}: socket is missing; give the path of the engine port")
    for name, value in (("hostPoolBytes", settings.host_pool_bytes), ("blockTokens", settings.block_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{VARIABLE}: {name} is {value!r}; give a positive whole number")
    flags = {
        "allowUntested": settings.allow_untested,
        "cacheNamespaces": settings.cache_namespaces,
        "decodeOutput": settings.decode_output,
    }
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{VARIABLE}: {name} is {flag!r}; give true or false")
    return settings
