"""The client as a scheduler's thread has it, over a session that takes every frame."""

import types
from dataclasses import dataclass, field
from typing import Any

from kvpool_client.groups import FULL, WINDOW, Group
from kvpool_client.scheduler_side import HostPool, SchedulerSide

KEYS = [bytes([i]) * 32 + bytes(4) for i in range(20)]
FULL_ATTENTION = [Group(0, FULL, 0, 4)]
HYBRID = [Group(0, WINDOW, 8, 4), Group(1, FULL, 0, 4)]
ROWS = 8


@dataclass
class Request:
    req_id: str
    _offload_key_positions: dict[bytes, int]
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class Session:
    """Takes frames; attached from the start."""

    posted: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    attached: object = object()
    full: bool = False
    wanted: object = None

    def post(self, header: dict[str, Any], tail: bytes = b"") -> bool:
        if not self.full:
            self.posted.append((header, tail))
        return not self.full

    def resume(self) -> None:
        self.wanted = True

    def pause(self, attach_header: dict[str, Any]) -> None:
        self.wanted, self.attached = attach_header, None

    def verbs(self) -> list[str]:
        return [header["verb"] for header, _ in self.posted]


def attached(groups: list[Group]) -> SchedulerSide:
    made = SchedulerSide("/nowhere", {}, HostPool(ROWS, 4096, 0, 0), groups)
    made.on_attached(types.SimpleNamespace(load_seconds=10.0))
    return made


def request(side: SchedulerSide, name: str, keys: list[bytes]) -> Request:
    made = Request(name, {key: 4 * (i + 1) for i, key in enumerate(keys)})
    side.new_request(made)
    return made


def job(number: int, keys: list[bytes], context: Request) -> Any:
    return types.SimpleNamespace(
        job_id=number, keys=keys, chunk_ids=[i % ROWS for i in range(len(keys))], req_context=context
    )
