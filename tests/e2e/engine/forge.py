"""Engines that start in seconds: a process that has imported vLLM once and forks one for each connection.

    forge.py SOCKET, run by the engine's interpreter

The first line of a connection says what is made, with its whole environment; the answer is its process id, once it is
there:
    {"environment": {…}, "options": {…}}    an engine in one process without a server, which answers each line as
                                            offline_engine.py does and ends with its connection, or by a signal
    {"environment": {…}, "server": […], "folder": …, "log": …}
                                            vLLM's own API server with these arguments, in a session of its own; its
                                            engine core and its worker are processes of their own as ever, but forked
    {"environment": {…}, "script": […]}     a script with its arguments; the answer comes when it has ended
"""

import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any, TextIO

import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast
import vllm.utils.system_utils

# vLLM's own choice on a CPU is to spawn, which imports everything anew. Before others take it from there.
vllm.utils.system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
# Its core and its worker wait for each other in a busy loop for a second after each word, which costs two cores.
shm_broadcast.SpinCondition.__init__.__defaults__ = (0.02,)

import offline_engine  # noqa: E402
import prometheus_client.values  # noqa: E402
import vllm.entrypoints.launchers.api_server.entry  # noqa: E402
import vllm.entrypoints.openai.api_server  # noqa: E402
import vllm.model_executor.layers.quantization.online.base  # noqa: E402
import vllm.model_executor.models.gemma3  # noqa: E402
import vllm.model_executor.models.llama  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.engine.llm_engine  # noqa: E402
import vllm.v1.executor.multiproc_executor  # noqa: E402
import vllm.v1.metrics.prometheus  # noqa: E402
import vllm.v1.utils  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402 - what every start would import anew
from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: E402
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402


def tell(stream: TextIO, answer: object) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def serve(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as stream:
        made = json.loads(stream.readline())
        os.environ.clear()
        os.environ.update(made["environment"])
        sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        importlib.invalidate_caches()
        if "options" in made:
            without_server(made["options"], stream)
            return
        if "script" in made:
            sys.argv = made["script"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            tell(stream, os.getpid())
            return
        os.setsid()
        tell(stream, os.getpid())
    server(made)


def without_server(options: dict[str, Any], stream: TextIO) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if importlib.util.find_spec("kvpool_client"):  # bare engines have none
        # a front end that is not answered in 50 ms has its request apart, which a busy machine does to any of them
        importlib.import_module("kvpool_client.front").ANSWER_SECONDS = 30.0
    if options.pop("states_at_ends_of_steps", False):
        let_steps_end_with_states()
    offline_engine.Heads.watch()
    engine = offline_engine.LLM(**options)
    tell(stream, os.getpid())
    for line in stream:
        tell(stream, offline_engine.do(engine, **json.loads(line)))


def let_steps_end_with_states() -> None:
    """Lets Mamba2 layers say that they can't give a state out of the middle of a step, as other recurrent layers do, so
    that the scheduler ends steps there. They say that they can, and the CPU build has no code for it."""
    from vllm.model_executor.layers.mamba.abstract import MambaBase
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    MambaMixer2.get_kv_cache_spec = MambaBase.get_kv_cache_spec


def server(made: dict[str, Any]) -> None:
    os.chdir(made["folder"])
    with Path(made["log"]).open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv[1:] = made["server"]
    if "--api-server-count" in sys.argv:
        several_servers()
    else:
        vllm.entrypoints.launchers.api_server.entry.main()


def several_servers() -> None:
    """As the command `vllm serve` does, whose entry point asks for a package of another name than the CPU build's."""
    context = multiprocessing.get_context("fork")
    vllm.v1.utils.multiprocessing.get_context = lambda _method: context  # of its API servers, which it would spawn
    vllm.v1.metrics.prometheus.setup_multiprocess_prometheus()
    prometheus_client.values.ValueClass = prometheus_client.values.get_value_class()  # it was chosen at the import
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    validate_parsed_serve_args(arguments)
    ServeSubcommand.cmd(arguments)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # an engine collects several times while it starts, and none of what is imported
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(sys.argv[1])
        listening.listen(16)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                serve(connection)
                return
            connection.close()


if __name__ == "__main__":
    main()
