"""The tag of a block: xxh3-128 over its key and its bytes.

Made when a block is stored, checked wherever its bytes cross a boundary, while they are hot in the cache. It finds
broken transfers and reused memory, not an attacker.
"""

import xxhash


def tag_of(key: bytes, data: memoryview) -> bytes:
    """16 bytes. The lock of the interpreter is dropped while it runs."""
    state = xxhash.xxh3_128(key)
    state.update(data)
    return state.digest()
