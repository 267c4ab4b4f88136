"""Engines that start in seconds: a process that has imported vLLM once and forks one for each connection.

    forge.py SOCKET, run by the engine's interpreter

The first line of a connection is {"environment": {…}, "options": {…}}; from then on it is answered as
offline_engine.py answers, with the engine's process id first. An engine ends with its connection, or by a signal.
"""

import json
import os
import signal
import socket
import sys

import offline_engine
import vllm.model_executor.models.llama
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401 - what every start would import anew


def serve(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as stream:
        made = json.loads(stream.readline())
        os.environ.update(made["environment"])
        engine = offline_engine.LLM(**made["options"])

        def tell(answer: object) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        tell(os.getpid())
        for line in stream:
            tell(offline_engine.do(engine, **json.loads(line)))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(sys.argv[1])
        listening.listen(16)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
                serve(connection)
                return
            connection.close()


if __name__ == "__main__":
    main()
