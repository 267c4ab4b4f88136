"""The stand-in engine's models: their KV groups, the keys of a prompt's blocks, the bytes that computing gives."""

import hashlib
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpool_client.groups import FULL, GROUP_BYTES, STATE, WINDOW, Group

BLOCK_TOKENS = 4
HASH_BYTES = 32
KEY_BYTES = HASH_BYTES + GROUP_BYTES
HASH_SEED = hashlib.sha256(b"the stand-in's seed").digest()
FULL_ATTENTION = (Group(0, FULL, 0, BLOCK_TOKENS),)
# as Gemma's: two groups of window layers and one of full attention. The window takes two blocks and a bit of a third
HYBRID = (
    Group(0, WINDOW, 2 * BLOCK_TOKENS + 1, BLOCK_TOKENS),
    Group(1, FULL, 0, BLOCK_TOKENS),
    Group(2, WINDOW, 2 * BLOCK_TOKENS + 1, BLOCK_TOKENS),
)

# as Qwen3-Next's: recurrent layers, and some with full attention
RECURRENT = (Group(0, STATE, 1, BLOCK_TOKENS, whole=False), Group(1, FULL, 0, BLOCK_TOKENS))


def engine_keys(tokens: Sequence[int], group: Group = FULL_ATTENTION[0], salt: str = "") -> list[bytes]:
    """Keys of a prompt's whole blocks in a group: a hash chained over the prefix as vLLM does it, and the group."""
    keys, digest = [], HASH_SEED
    size = group.block_tokens
    for i in range(0, len(tokens) - size + 1, size):
        apart = (("cache_salt", salt),) if salt and not i else None
        digest = hashlib.sha256(pickle.dumps((digest, tuple(tokens[i : i + size]), apart), 5)).digest()
        keys.append(digest + group.number.to_bytes(4, "big"))
    return keys


def hash_fields(groups: Sequence[Group] = FULL_ATTENTION) -> dict[str, Any]:
    """What a format tells of these hashes."""
    return {
        "hash_algorithm": "sha256",
        "hash_seed": HASH_SEED.hex(),
        "tokens_per_hash": BLOCK_TOKENS,
        "engine_block_tokens": [group.block_tokens for group in groups],
    }


def block_bytes(key: bytes, size: int) -> bytes:
    """What computing a block yields: the same everywhere, another for every key."""
    return (key * (size // len(key) + 1))[:size]


def prompt(name: str, blocks: int) -> list[int]:
    """`blocks` whole blocks and one token more; two names share no block."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    return [seed + i for i in range(blocks * BLOCK_TOKENS + 1)]


def window_blocks(group: Group) -> int:
    """Blocks that a window reaches into when it ends with one; of states the last."""
    return -(-group.window // group.block_tokens)


def last_boundary(groups: Sequence[Group], tokens: int) -> int:
    """Up to which an engine looks for blocks: the last token is computed; with a window or a state, its own block must
    be one to compute, and with a state that lies at a block's end."""
    boundary = tokens - any(group.kind != FULL for group in groups)
    return min((boundary - boundary % group.block_tokens for group in groups if group.kind == STATE), default=boundary)


def likeliest(prompt: Sequence[int], wrong: Sequence[bytes]) -> dict[str, float]:
    """Log-probabilities of the likeliest next tokens of a prompt, of whose blocks these hold other bytes than computing
    gives."""
    digest = hashlib.sha512(repr(list(prompt)).encode() + b"".join(wrong)).digest()
    weights = {f"token_id:{place}": 1 + value for place, value in enumerate(digest[:20])}
    return {token: math.log(weight / sum(weights.values())) for token, weight in weights.items()}


def metrics_text(tokens: Mapping[str, int]) -> str:
    """The engine's page of metrics, as far as an agent reads it: prompt tokens by source."""
    cached = "\n".join(
        f'vllm:prompt_tokens_cached_by_source_total{{source="{source}"}} {float(tokens[source])}'
        for source in ("device", "host", "p2p")
    )
    computed = f'vllm:prompt_tokens_by_source_total{{source="local_compute"}} {float(tokens["local_compute"])}'
    return f"# TYPE vllm:prompt_tokens_by_source counter\n{computed}\n{cached}\n"


@dataclass
class Served:
    """Blocks of one request's prompt: computed here, found in the host pool, loaded from the pool; `equal`: all bytes
    loaded, and all that the host pool has of it in the end, are those that computing would have given; `rows`: blocks
    of all groups that were loaded for it; `first_token`: when that came, on the machine's monotonic clock in seconds, 0
    where computing takes no time."""

    computed: int = 0
    host: int = 0
    pool: int = 0
    equal: bool = True
    rows: int | None = None  # where the model has several groups
    first_token: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Job:
    """A transfer, by the names that the client knows it by."""

    job_id: int
    keys: Sequence[bytes]
    chunk_ids: Sequence[int]
    req_context: Any


@dataclass(eq=False)
class Request:
    """A request, with the names that the client knows it by."""

    req_id: str
    prompt: Sequence[int]
    groups: Sequence[Group]
    keys: list[list[bytes]]
    kv_transfer_params: dict[str, Any] | None = None
    offer_all: bool = False
    boundary: int = 0
    served: Served = field(default_factory=Served)

    @property
    def tokens(self) -> int:
        return len(self.prompt)

    @property
    def _offload_key_positions(self) -> dict[bytes, int]:
        return {
            key: (i + 1) * group.block_tokens
            for group, keys in zip(self.groups, self.keys, strict=True)
            for i, key in enumerate(keys)
        }


def is_canary(parameters: dict[str, Any] | None) -> bool:
    """Whether these are of a request by which an agent compares."""
    return "kvpool_canary" in (parameters or {})
