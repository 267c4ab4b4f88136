"""Requests on a stand-in engine for as long as a test does something else, every loaded byte compared."""

import threading
from collections.abc import Callable

from agent_pool import Node
from standin_engine import Served

PAUSE_SECONDS = 0.01  # between requests: several loads without any would take the cores from what they are a load for


class Load:
    """Serves on a node's engine from a thread of its own until it ends; fails there if a byte was wrong."""

    def __init__(self, node: Node, prompts: Callable[[int], list[int]]) -> None:
        self.node, self.prompts = node, prompts
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
            while not self._ended.wait(PAUSE_SECONDS):
                self.node.engine.forget()
                self.served.append(self.node.engine.serve(self.prompts(len(self.served))))
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            self.errors.append(error)
