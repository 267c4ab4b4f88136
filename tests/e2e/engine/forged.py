"""Starts forge.py and drives the engines that it forks, one beside a replica's agent each."""

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.measured import Outcome
from replica import MIB, Replica, Tools, wait_for

FOLDER = Path(__file__).parent
ANSWER_SECONDS = 120.0
NO_BLOCK = [3, 5, 7]  # a prompt in whose steps an engine without a server tells what ended after the last one's


class Forge:
    """One process; `close` ends it, and with it no engine."""

    def __init__(self, tools: Tools, client: Path, folder: Path) -> None:
        self.path, self.log = folder / "forge.sock", folder / "forge.log"
        own = {
            "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": str(client),
        }  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(tools.engine_python), str(FOLDER / "forge.py"), str(self.path)],
                env={**os.environ, **own}, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        wait_for("the forge", self.path.is_socket, 120)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class ForgedEngine:
    """`until_ready` before the first question."""

    def __init__(self, forge: Forge, replica: Replica, model: Path, **options: Any) -> None:
        self._forge = forge
        chosen = {
            "model": str(model), "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 1024,
            "block_size": 32, "enforce_eager": True, "kv_cache_memory_bytes": 64 * MIB,
            "distributed_executor_backend": "uni", "disable_log_stats": False, **options,
        }  # fmt: skip
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        wait_for("the forge listens", lambda: self._socket.connect_ex(str(forge.path)) == 0, 60)
        self._stream = self._socket.makefile("rw")
        environment = {"KVPOOL_CLIENT_CONFIG": json.dumps(replica.client_config())}
        self._send({"environment": environment, "options": chosen})
        self.pid = 0

    def until_ready(self) -> "ForgedEngine":
        self.pid = self._answer()
        return self

    def begin(self, tokens: Sequence[int]) -> None:
        """Asks and does not wait for the answer."""
        self._send({"what": "ask", "tokens": list(tokens)})

    def answer(self) -> Outcome:
        found = self._answer()
        ids, chances = found["answer"]
        return Outcome(found["tokens"], (tuple(map(str, ids)), tuple(dict(map(tuple, place)) for place in chances)))

    def ask(self, tokens: Sequence[int]) -> Outcome:
        """A request at temperature 0; ends when the agent has heard of its end."""
        self.begin(tokens)
        found = self.answer()
        self.begin(NO_BLOCK)
        self.answer()
        return found

    def forget(self) -> None:
        """Empties the device cache and the host tier."""
        self._send({"what": "reset", "external": True})
        assert self._answer()

    def signal(self, number: int) -> None:
        """Ends the process; returns when it is gone."""
        os.kill(self.pid, number)
        wait_for("the engine's end", lambda: not Path(f"/proc/{self.pid}").exists(), 30, 0.01)
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, line: object) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def _answer(self) -> Any:
        line = self._stream.readline()
        assert line, f"the engine has ended: {self._forge.log.read_text(errors='replace')[-3000:]}"
        return json.loads(line)
