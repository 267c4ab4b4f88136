"""The keys of the cache namespaces that this agent holds, read from the files that they are mounted as.

Files are read again every second, so a new epoch holds without a restart; of a file that vanishes or can't be used the
last keys stay. In a pod that an earlier version has injected they lie in another folder than the configuration says; it
is looked into only where nothing is mounted in the present one, since the engine may write beside it. A key is here,
and in what is derived from it, and nowhere else: no log, status or error tells of it.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvpool_contract.config import AgentConfig, CacheNamespace
from kvpool_contract.tenants import (
    FORMER_KEYS_FOLDER,
    KEYS_FOLDER,
    MAX_KEY_FILE,
    KeyFileError,
    key_for,
    parse_keys,
)

log = logging.getLogger("kvpool.keys")

LOOK_SECONDS = 1.0


class Space:
    """A cache namespace as this agent has it. `names`: the keys of block names, by epoch, that of now first; one that
    is `keyed` has none until its file is there. `percent`: of the arena, 0 for the default one. `told_tokens`: others
    are told of no block that ends deeper in its prompt; 0: to the depth that goes for all."""

    def __init__(self, described: CacheNamespace | None = None) -> None:
        self.name = described.name if described is not None else ""
        self.percent = described.memoryPercent if described is not None else 0
        self.told_tokens = described.maxDepthTokens if described is not None else 0
        self.keyed = described is not None
        self.names: tuple[bytes, ...] = () if self.keyed else (b"",)
        self.files: tuple[bytes, ...] = ()  # the keys that its files are sealed under, in the same order
        self.proofs: tuple[bytes, ...] = ()  # the keys by which members prove to each other that they hold the key
        self.problem = ""

    @property
    def open(self) -> bool:
        """Whether blocks of it can be named."""
        return bool(self.names)

    def take(self, keys: Sequence[bytes]) -> None:
        """Goes over to these keys, that of the epoch of now first."""
        # what is proved comes first: nobody is taken to hold a key that names are made of already
        self.proofs = tuple(key_for(key, "entitlement") for key in keys)
        self.files = tuple(key_for(key, "files") for key in keys)
        self.names = tuple(key_for(key, "block names") for key in keys)


class Keyring:
    """Any thread may read; one looks. Without cache namespaces in the configuration there is one, without a key."""

    def __init__(self, config: AgentConfig | None = None, held: Iterable[str] | None = None) -> None:
        """held: the names of those that this pod may hold beside the default one; None: of all."""
        described = config.cacheNamespaces if config is not None else ()
        allowed = None if held is None else set(held)
        self.pool = config.pool if config is not None else ""
        self.mode = config.requestNamespace if config is not None else "Ignore"
        self._gateway_file = config.gatewayKeyFile if config is not None else ""
        self._gateway_problem = ""
        self.gateway_keys: tuple[bytes, ...] = ()
        chosen = [one for i, one in enumerate(described) if not i or allowed is None or one.name in allowed]
        self.spaces = [Space(one) for one in chosen] or [Space()]
        self._files = dict(zip((one.name for one in chosen), (one.keyFile for one in chosen), strict=True))
        # by what requests call them; those that other pods hold are known by name
        self.requested = {one.tenant or one.name: one.name for one in described}
        self._by_id: dict[bytes, Space] = {}
        self.default_id = secrets.token_bytes(16)  # of no slab, until there is one
        self.changed_at = float("-inf")  # on the monotonic clock, when a cache namespace's keys were others last
        self._stop = threading.Event()
        self._seen: dict[str, bytes] = {}
        self.look()

    @property
    def default(self) -> Space:
        return self.spaces[0]

    @property
    def keyed(self) -> bool:
        """Whether cache namespaces have keys here."""
        return self.default.keyed

    def of(self, slab_id: bytes) -> Space | None:
        """The cache namespace of a slab, by its id."""
        return self._by_id.get(slab_id) if self.keyed else self.default

    def register(self, slab_id: bytes, space: Space) -> None:
        """The slab with this id is here, and of this cache namespace."""
        self._by_id[slab_id] = space
        if space is self.default:
            self.default_id = slab_id

    def start(self) -> None:
        """Follows the files from now on."""
        if self.keyed:
            threading.Thread(target=self._run, name="kvpool-keys", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def look(self) -> None:
        """Reads the files."""
        for space in self.spaces:
            if space.keyed:
                keys, space.problem = self._read(self._files[space.name], space.problem, space.name)
                if keys is not None:
                    space.take(keys)
                    self.changed_at = time.monotonic()
                    log.info("cache namespace %s: %d keys in force", space.name, len(keys))
        if self._gateway_file:
            keys, self._gateway_problem = self._read(self._gateway_file, self._gateway_problem, "of the gateway")
            self.gateway_keys = keys if keys is not None else self.gateway_keys

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                log.exception("key files: a look failed")

    def _read(self, file: str, before: str, whose: str) -> tuple[tuple[bytes, ...] | None, str]:
        """The keys where they are others than before, and what is wrong with the file."""
        try:
            with _mounted(Path(file)).open("rb") as opened:
                data = opened.read(MAX_KEY_FILE)
            keys = None if data == self._seen.get(file) else parse_keys(data)
            self._seen[file] = data
        except (OSError, KeyFileError) as error:
            problem = str(error.strerror if isinstance(error, OSError) else error)
            if problem != before:
                log.warning("key file %s (%s): %s", file, whose, problem)
            return None, problem
        return keys, ""


def _mounted(file: Path) -> Path:
    """Where this key file lies in this pod."""
    if str(file.parent) == KEYS_FOLDER and not file.parent.is_dir():
        return Path(FORMER_KEYS_FOLDER, file.name)
    return file
