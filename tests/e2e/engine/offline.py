"""Starts and drives offline_engine.py beside a replica's agent: one engine process that needs no server."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.measured import Outcome
from replica import MIB, Replica

FOLDER = Path(__file__).parent


class OfflineEngine:
    """`until_ready` before the first question."""

    def __init__(self, replica: Replica, model: Path, **options: Any) -> None:
        pool = replica.pool
        chosen = {
            "model": str(model), "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 1024,
            "block_size": 32,
            "enforce_eager": True, "kv_cache_memory_bytes": 64 * MIB, "distributed_executor_backend": "uni",
            "disable_log_stats": False, **options,
        }  # fmt: skip
        own = {
            "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "PYTHONPATH": str(pool.client), "KVPOOL_CLIENT_CONFIG": json.dumps(replica.client_config()),
        }  # fmt: skip
        with (replica.folder / "engine.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(pool.tools.engine_python), str(FOLDER / "offline_engine.py"), json.dumps(chosen)],
                env={**os.environ, **own}, cwd=replica.folder / "empty", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self._replica = replica

    def until_ready(self) -> None:
        assert self._answer() == "ready"

    def ask(self, tokens: Sequence[int], **options: Any) -> Outcome:
        """A request at temperature 0; its adapter is (name, number, path)."""
        found = self.do("ask", tokens=list(tokens), **options)
        ids, chances = found["answer"]
        return Outcome(found["tokens"], (tuple(map(str, ids)), tuple(dict(map(tuple, place)) for place in chances)))

    def do(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the engine has ended: {self._replica.log('engine')}"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
