"""An engine behind several API servers shares as any other does, and so does each of several data-parallel ranks."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.forged import Forge, forged_pool
from engine.measured import BLOCK, ask, by_source, moved, prompt, settle, until_sees
from replica import MIB, Pool, Replica, Tools, get, wait_for

MAKE = Path(__file__).parent / "make_hybrid_model.py"
BLOCKS, LENGTH = 3, 3 * BLOCK + 7
ROWS = 3 + 2 * 2  # full attention, and of each of two windows the last two blocks
PROMPTS = 6


@pytest.fixture(scope="module")
def pool(forge: Forge, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A: one engine core behind two API servers. B: two data-parallel ranks behind one."""
    folder = tmp_path_factory.mktemp("front")
    forge.run(MAKE, tools.model, folder / "model")
    made = forged_pool(
        forge, dataclasses.replace(tools, model=folder / "model"), folder / "pool",
        host_pool_bytes=64 * MIB, device_bytes=64 * MIB, agent={"arenaBytes": 128 * MIB},
    )  # fmt: skip
    try:
        for name, servers, ranks in (("A", 2, 1), ("B", 1, 2)):
            made.engine_arguments = ("--api-server-count", str(servers), "--data-parallel-size", str(ranks))
            made.replica(name).start_agent()
            made.replicas[-1].start_engine()
        for replica in made.replicas:
            replica.wait_engine()
            replica.wait_ready()
            wait_for("the probe", lambda one=replica: one.status()["probe"]["state"] not in ("", "pending"), 60)
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def stopped(pids: set[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def servers_that_answer(replica: Replica, tokens: list[int]) -> set[int]:
    """The processes that two connections, open at the same time and each with a completion, have come to: whoever has
    taken the first is stopped while the second is made, since it might take that one too."""
    body = json.dumps({"model": "smol", "prompt": tokens, "max_tokens": 1})
    log = (replica.folder / "engine.log").read_text(errors="replace")
    pids = {int(pid) for pid in re.findall(r"ApiServer_\d+ pid=(\d+)", log)}
    found: set[int] = set()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            made = stack.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", replica.engine_port, timeout=60))
            )
            with stopped(found):
                made.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = made.getresponse()
                answer.read()
            assert answer.status == 200
            ends = f":{replica.engine_port:04X} 0100007F:{made.sock.getsockname()[1]:04X} "
            (line,) = (line for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line)
            socket = f"socket:[{line.split()[9]}]"
            (pid,) = (pid for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if str(fd.readlink()) == socket)
            found.add(pid)
    return found


def computed_by_rank(replica: Replica) -> dict[str, int]:
    text = get(f"{replica.engine_url}/metrics").decode()
    found = re.findall(r'^vllm:prompt_tokens_total{engine="(\d+)"[^}]*} ([0-9.e+]+)$', text, re.MULTILINE)
    return {rank: int(float(tokens)) for rank, tokens in found}


def test_several_api_servers_and_data_parallel_ranks_share_as_one_engine_does(pool: Pool) -> None:
    a, b = pool.replicas
    status = b.status()
    # each rank has a session of its own, and half of the bytes
    attached = [event["detail"] for event in status["events"] if event["word"] == "attached"]
    assert [one["rows"] * one["row_bytes"] // (32 * MIB - one["row_bytes"]) for one in attached] == [1, 1]
    assert a.status()["attaches"] == 1
    assert status["format"] == a.status()["format"]

    prompts = [prompt(9000 + n, LENGTH) for n in range(PROMPTS)]
    first = [ask(a, tokens) for tokens in prompts]
    assert [one.tokens for one in first] == [by_source(computed=LENGTH)] * PROMPTS
    assert len(servers_that_answer(a, prompts[0])) == 2
    local = [ask(a, tokens) for tokens in prompts]
    assert [one.tokens for one in local] == [by_source(device=BLOCKS * BLOCK, computed=7)] * PROMPTS
    until_sees(b, a)
    before = settle(b)
    sources: Counter[str] = Counter()
    for tokens, same in zip(prompts * 2, local * 2, strict=True):
        found = ask(b, tokens)
        (source,) = (source for source, count in found.tokens.items() if count == BLOCKS * BLOCK)
        assert found.tokens == by_source(**{source: BLOCKS * BLOCK, "computed": 7})
        assert found.answer == same.answer
        sources[source] += 1
    # each rank loads a prompt once, and it comes to their common arena once
    assert PROMPTS <= sources["pool"] == 2 * PROMPTS - sources["device"]
    after = settle(b)
    assert moved(after, "demand_in")[0] - moved(before, "demand_in")[0] == PROMPTS * ROWS
    ranks = computed_by_rank(b)
    assert set(ranks) == {"0", "1"}
    assert all(ranks.values())
    # and what a rank computes is loaded elsewhere
    assert ask(b, prompt(9100, LENGTH)).tokens == by_source(computed=LENGTH)
    until_sees(a, b)
    assert ask(a, prompt(9100, LENGTH)).tokens == by_source(pool=BLOCKS * BLOCK, computed=7)
    assert after["misses"] == {}
    assert settle(a)["misses"] == {"never_published": PROMPTS * BLOCKS}
    # one rank was probed, with a row of each group; whoever was alone at first has been compared by now
    probes = [replica.status()["probe"] for replica in (a, b)]
    assert [(probe["state"], len(probe["blocks"])) for probe in probes] == [("same", 3)] * 2
