"""Errors of the kind that the fuzz targets exist for, planted one at a time: lengths that are believed. A fuzzer, and
the replay of its corpus, that finds none of them says nothing about the rest.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

from fuzz_parts import KEY_BYTES

from kvpool_agent.peer import frames
from kvpool_agent.policy.heat import HotBlock
from kvpool_agent.supervisor import Probes
from kvpool_client import wire


def _keys_without_a_check(tail: bytes) -> list[bytes]:
    return [tail[i : i + KEY_BYTES] for i in range(0, len(tail), KEY_BYTES)]


def _rows_without_a_check(message: frames.Found, tail: bytes, keys: int) -> list[list[bool]]:
    width = (keys + 7) // 8
    rows = [tail[i * width : (i + 1) * width] for i in range(len(message.holders))]
    return [[digit == "1" for digit in reversed(f"{int.from_bytes(row, 'little'):0{keys}b}")] for row in rows]


def _hot_without_a_check(tail: bytes) -> list[HotBlock]:
    size = frames._HOT.size
    entries = [frames._HOT.unpack_from(tail, at) for at in range(0, len(tail), size)]
    return [HotBlock(key, parent if linked else b"", depth, heat) for key, parent, depth, heat, linked in entries]


def _split_without_a_check(tail: bytes, size: int) -> list[bytes]:
    return [tail[i : i + size] for i in range(0, len(tail), size)]


_answer = Probes.answer


def _answer_to_a_prefix(self: Probes, request: bytes) -> tuple[str, str]:
    known = next((path for path in (b"GET /startedz", b"GET /readyz", b"GET /livez") if request.startswith(path)), b"")
    return _answer(self, known + b" HTTP/1.1\r\n" if known else request)


PLANTS: dict[str, Callable[[], Any]] = {
    "peer": lambda: mock.patch.object(frames, "unpack_keys", _keys_without_a_check),
    "asker": lambda: mock.patch.multiple(frames, unpack_held=_rows_without_a_check, unpack_hot=_hot_without_a_check),
    "engine": lambda: mock.patch.object(wire, "split", _split_without_a_check),
    "probes": lambda: mock.patch.object(Probes, "answer", _answer_to_a_prefix),
}
