"""Traces of both formats are read as streams, plain or compressed; what can't be read is named; `kvpool plan`."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_lab.belady import belady_tokens
from kvpool_lab.recorded import Request, TraceError
from kvpool_lab.replay import replay
from kvpool_lab.sessions import SESSION_IDS
from kvpool_lab.traces import read

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 1, "input_length": 1024, "output_length": 5, "hash_ids": [1, 4]},
    {"timestamp": 2, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
]
# two sessions with one system prompt of two blocks, the second with a sub-agent
SESSIONS = [
    {
        "id": "a",
        "block_size": 64,
        "tool_tokens": 64,
        "system_tokens": 64,
        "requests": [[0, "", 256, 1, 0, [10, 4], 1, 1], [9, "", 320, 1, 3, [30, 2], 1, 1]],
    },
    {
        "id": "b",
        "block_size": 64,
        "tool_tokens": 64,
        "system_tokens": 64,
        "requests": [[0, "", 192, 1, 0, [10, 3], 1, 1], [3, "s", 256, 1, 2, [50, 1, 60, 1], 1, 1]],
    },
]


def written(path: Path, lines: list[Any], opened: Callable[..., Any] = open) -> Path:
    with opened(path, "wt") as file:
        file.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("name", "opened"), [("t.jsonl", open), ("t.jsonl.gz", gzip.open), ("t.jsonl.xz", lzma.open)])
def test_requests_of_mooncake(tmp_path: Path, name: str, opened: Callable[..., Any]) -> None:
    told: list[float] = []
    found = list(read(written(tmp_path / name, MOONCAKE, opened), 512, told.append))
    assert found == [
        Request(1100, [1, 2, 3], 512, 0.0),
        Request(1024, [1, 4], 512, 0.001),
        Request(1100, [1, 2, 3], 512, 0.002),
    ]
    assert [found[0].tokens_of(n) for n in range(4)] == [0, 512, 1024, 1100]
    assert told[-1] == 1.0


def test_sessions_are_decoded_from_their_differences_and_share_their_prompt_alone(tmp_path: Path) -> None:
    found = list(read(written(tmp_path / "s.jsonl", SESSIONS)))
    assert {request.block_tokens for request in found} == {64} and len(found) == 4
    prompt = found[0].blocks[:2]
    assert prompt[0] < 0 and all(request.blocks[:2] == prompt for request in found)
    a, b = 0, SESSION_IDS
    own = sorted(request.blocks[2:] for request in found)
    assert own == sorted([[a + 12, a + 13], [a + 12, a + 30, a + 31], [b + 12], [b + 50, b + 60]])


def test_requests_of_ragpulse_share_up_to_the_first_part_that_differs(tmp_path: Path) -> None:
    parts = {"sys_prompt": 64, "passage": 100, "history": 10, "web_search": 5, "user_input": 20}
    for number, (name, tokens) in enumerate(parts.items(), 1):
        number = {"web_search": 5, "user_input": 4}.get(name, number)
        file = tmp_path / f"{number}_{name}{'s' if name == 'passage' else ''}.jsonl"
        written(file, [{f"{name}_id": each, "token_length": tokens} for each in (1, 2)])
    rows = [
        {
            "timestamp": str(at),
            "session_id": "s",
            "hash_ids": {"sys_prompt": [1], "passages_ids": ids, "history": [], "web_search": [], "user_input": [1]},
        }
        for at, ids in ((3, [1, 2]), (4, [1, 1]), (5, [2, 1]))
    ]
    first, second, third = read(written(tmp_path / "0_trace.jsonl", rows), 64)
    assert (first.tokens, len(first.blocks), first.at, first.session) == (284, 5, 3.0, "s")
    # 64 of the system prompt, then 64 and 36 of the first passage: the third block has some of the second one
    assert [a == b for a, b in zip(first.blocks, second.blocks, strict=True)] == [True, True, False, False, False]
    assert [a == b for a, b in zip(first.blocks, third.blocks, strict=True)] == [True, False, False, False, False]
    (tmp_path / "2_passages.jsonl").unlink()
    with pytest.raises(TraceError, match=r"2_passages.jsonl is missing; it has the lengths"):
        list(read(tmp_path / "0_trace.jsonl"))


def test_azures_rows_share_nothing(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,600,44"]
    path = written(tmp_path / "a.csv", [*rows, "2023-11-16 18:15:47.6805900,500,1"])
    assert list(read(path)) == [Request(600, [0, 1], 512, 0.0), Request(500, [2], 512, 1.0)]
    with pytest.raises(TraceError, match="line 2: it is no row of times and lengths"):
        list(read(written(path, [rows[0], "yesterday,1,2"])))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "it holds no request"),
        ([{**MOONCAKE[0], "timestamp": "now"}], "line 1: timestamp 'now' is no number; write milliseconds"),
        ([{**MOONCAKE[0], "timestamp": float("nan")}], "line 1: timestamp nan is no number; write milliseconds"),
        (["{"], "line 1: it is not JSON"),
        (["[1]"], "line 1: it is no JSON object"),
        ([MOONCAKE[0], {"hash_ids": [1]}], "line 2: write input_length, a number, and hash_ids, a list of numbers"),
        ([{**MOONCAKE[0], "hash_ids": ["a"]}], "line 1: write input_length"),
        ([{**SESSIONS[0], "requests": [[0, ""]]}], "session 1: it is no session of this format"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, lines: list[Any], sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        list(read(written(tmp_path / "t.jsonl", lines)))


def test_a_file_that_is_not_there_or_cut_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="it can't be read"):
        list(read(tmp_path / "none.jsonl"))
    path = written(tmp_path / "t.jsonl.gz", MOONCAKE)
    whole = gzip.compress(path.read_bytes())
    for data in (whole[:-9], whole[:10] + b"\x07" + whole[11:]):  # behind its header a block of no known type
        path.write_bytes(data)
        with pytest.raises(TraceError, match="it can't be read"):
            list(read(path))


def test_a_replay_counts_tokens_of_leading_hits_after_the_warm_up() -> None:
    requests = [Request(1100, [1, 2, 3], 512), Request(1024, [1, 4], 512), Request(1100, [1, 2, 3], 512)]
    found = replay(requests, [("LRU", 3), ("LRU", 9)], warm_up=1)
    assert (found.requests, found.tokens, found.block_refs, found.blocks) == (2, 2124, 5, 4)
    assert found.ideal_tokens == 512 + 1100
    assert [(each.hit_tokens, each.evicted) for each in found.outcomes] == [(512 + 1024, 2), (512 + 1100, 0)]
    # 4 is never asked for again: the best policy does not take it in
    assert belady_tokens(requests, 3, warm_up=1) == 512 + 1100


@pytest.mark.parametrize(
    ("capacity", "sentence"),
    [
        ("x%", "--capacity x%: write percent of the distinct blocks, such as 5%"),
        ("8GB", "--capacity 8GB: '8GB' is no quantity"),
        ("1Ki", "it has no room for one block of 67108864 bytes; raise it"),
    ],
)
def test_a_capacity_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, capacity: str, sentence: str) -> None:
    path = written(tmp_path / "t.jsonl", MOONCAKE)
    done = CliRunner().invoke(main, ["plan", "--trace", str(path), "--capacity", capacity])
    assert done.exit_code == 2 and sentence in done.stderr


def test_the_plan_of_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", MOONCAKE)
    arguments = ["plan", "--trace", str(path), "--policy", "LRU", "--capacity", "75%", "--bytes-per-token", "1"]
    done = CliRunner().invoke(main, [*arguments, "-o", "json"])
    (row,) = json.loads(done.stdout)["capacities"]
    assert row == {
        "capacity": "75%",
        "blocks": 3,
        "bytes": 1536,
        "tokenHitRate": {"LRU": round(1536 / 3224, 4)},
        "evictedBlocks": {"LRU": 2},
    }
    text = CliRunner().invoke(main, arguments).stdout.splitlines()
    assert text[0] == "3 requests, 3224 prompt tokens in 8 blocks, 4 of them distinct; 0 s"
    (line,) = [line for line in text if line.startswith("75%")]
    assert line.split() == ["75%", "1536", "3", "47.6%", "95%"]
