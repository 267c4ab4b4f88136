"""Starts forge.py and drives what it forks: engines without a server, and API servers beside replicas' agents."""

import json
import os
import select
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.measured import ENGINE_KNOWS, Outcome
from replica import MIB, Pool, Replica, Tools, wait_for

FOLDER = Path(__file__).parent
ANSWER_SECONDS = 120.0
NO_COMPILER = {"TORCHDYNAMO_DISABLE": "1"}  # seconds of each first request for two small functions of the sampler
NO_BLOCK = [3, 5, 7]  # a prompt in whose steps an engine without a server tells what ended after the last one's


class Forge:
    """One process; `close` ends it, and with it no engine."""

    def __init__(self, tools: Tools, folder: Path) -> None:
        self.path, self.log = folder / "forge.sock", folder / "forge.log"
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", **NO_COMPILER,
        }  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(tools.engine_python), str(FOLDER / "forge.py"), str(self.path)],
                env=self.environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        wait_for("the forge", self.path.is_socket, 120)

    def ask_for(self, what: dict[str, Any]) -> socket.socket:
        """The connection over which the forge, or what it forks, will answer."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_SECONDS)
        wait_for("the forge listens", lambda: connection.connect_ex(str(self.path)) == 0, 60)
        connection.sendall(json.dumps(what).encode() + b"\n")
        return connection

    def run(self, script: Path, *arguments: object) -> None:
        """Ends when the script has."""
        with self.ask_for({"environment": self.environment, "script": [str(script), *map(str, arguments)]}) as waiting:
            assert waiting.makefile().readline(), self.log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class ForgedEngine:
    """An engine in one process without a server (vLLM's executor `uni`). `until_ready` before the first question."""

    def __init__(
        self, forge: Forge, replica: Replica, model: Path, client: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """client: fields of the plug-in's configuration; options: of the engine."""
        self._forge = forge
        chosen = {
            "model": str(model), "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 1024,
            "block_size": 32, "enforce_eager": True, "kv_cache_memory_bytes": 64 * MIB,
            "distributed_executor_backend": "uni", "disable_log_stats": False, **options,
        }  # fmt: skip
        environment = {
            **forge.environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": str(replica.pool.client),
            "KVPOOL_CLIENT_CONFIG": json.dumps({**replica.client_config(), **(client or {})}),
        }  # fmt: skip
        self._socket = forge.ask_for({"environment": environment, "options": chosen})
        self._stream = self._socket.makefile("rw")
        ENGINE_KNOWS[replica] = lambda: int(self.do("heads"))
        self.pid = 0

    def until_ready(self) -> "ForgedEngine":
        self.pid = self._answer()
        return self

    def begin(self, tokens: Sequence[int], **options: Any) -> None:
        """Asks and does not wait for the answer. An adapter is (name, number, path)."""
        self._send({"what": "ask", "tokens": list(tokens), **options})

    def answer(self) -> Outcome:
        found = self._answer()
        ids, chances = found["answer"]
        return Outcome(found["tokens"], (tuple(map(str, ids)), tuple(dict(map(tuple, place)) for place in chances)))

    def ask(self, tokens: Sequence[int], **options: Any) -> Outcome:
        """A request at temperature 0; ends when the agent has heard of its end."""
        self.begin(tokens, **options)
        found = self.answer()
        self.begin(NO_BLOCK)
        self.answer()
        return found

    def do(self, what: str, **arguments: Any) -> Any:
        """See offline_engine.py."""
        self._send({"what": what, **arguments})
        return self._answer()

    def forget(self) -> None:
        """Empties the device cache and the host tier."""
        assert self.do("reset", external=True)

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


class ForgedProcess:
    """What a replica asks of its engine's process, for one that is no child of ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: str | None = None
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> str | None:
        return self._ended(0)

    def wait(self, timeout: float) -> None:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("forged engine", timeout)

    def _ended(self, seconds: float) -> str | None:
        if self.returncode is None and select.select([self._descriptor], [], [], seconds)[0]:
            self.returncode = "a status that the forge alone knows"
            os.close(self._descriptor)
        return self.returncode


class ForgedReplica(Replica):
    """A replica whose API server is forked."""

    forge: Forge

    def _spawn(self, what: str, command: Sequence[str], environment: dict[str, str]) -> Any:
        if what != "engine":
            return super()._spawn(what, command, environment)
        assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
        with self.forge.ask_for(
            {
                "environment": {**environment, **NO_COMPILER}, "server": command[3:],
                "folder": str(self.folder / "empty"), "log": str(self.folder / "engine.log"),
            }
        ) as connection:  # fmt: skip
            return ForgedProcess(json.loads(connection.makefile().readline()))


class ForgedPool(Pool):
    """A pool whose replicas' API servers are forked."""

    forge: Forge

    def replica(self, name: str, **options: Any) -> ForgedReplica:
        made = ForgedReplica(self, name, **options)
        made.forge = self.forge
        self.replicas.append(made)
        return made


def forged_pool(forge: Forge, tools: Tools, folder: Path, **options: Any) -> ForgedPool:
    made = ForgedPool(tools, folder, **options)
    made.forge = forge
    return made
