"""Requests on a stand-in engine for as long as a test does something else, every loaded byte compared."""

import sys
import threading
from collections.abc import Callable

from agent_pool import Node
from standin_engine import Served


class Load:
    """Serves on a node's engine from a thread of its own until it ends; fails there if a byte was wrong.

    pause_seconds: before each prompt. most: prompts that it serves.
    """

    def __init__(
        self, node: Node, prompts: Callable[[int], list[int]], pause_seconds: float = 0.0, most: int = sys.maxsize
    ) -> None:
        self.node, self.prompts, self.pause_seconds, self.most = node, prompts, pause_seconds, most
        self.served: list[Served] = []
        self.errors: list[BaseException] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self.errors == []
        assert self.served and all(one.equal for one in self.served)

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.pause_seconds) and len(self.served) < self.most:
                self.node.engine.forget()
                self.served.append(self.node.engine.serve(self.prompts(len(self.served))))
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            self.errors.append(error)
