"""Secrets that were planted, or read where they lie, looked for in what may be shown to anybody."""

import base64
import json
from collections.abc import Iterable


def forms(secret: bytes) -> Iterable[bytes]:
    """Ways in which a secret may be written; in base64 wherever in a longer text it begins."""
    yield secret
    yield from (secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode())
    yield json.dumps(list(secret))[1:-1].encode()
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret)
        yield text[4 if shift else 0 : -4]


def search(said: dict[str, bytes], planted: dict[str, bytes]) -> list[tuple[str, str]]:
    """(name of a secret, where it was found)."""
    return [
        (name, place)
        for name, secret in planted.items()
        for place, text in said.items()
        if any(form in text for form in forms(secret))
    ]
