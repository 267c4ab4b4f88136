"""Rows of a real vLLM's host pool go from arena to arena by RDMA, and another vLLM continues from what has come."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine.altering_member import HoldingMember, alter_row, rows_of
from engine.forged import Forge, ForgedEngine
from engine.measured import BLOCK, Outcome, by_source, moved, prompt, sees_only, settle
from engine.place import Place
from rdma import carry
from rdma.carry import Row, Rows
from replica import MIB, REPOSITORY, Pool, Tools, wait_for

from kvpool_agent.store.tag import tag_of

BLOCKS, TAIL = 3, 9
FOLDERS = ("agent", "operator", "tests/e2e", "examples/demo")
MINUTES = "6"


@pytest.fixture(scope="module")
def in_machine() -> list[str]:
    """What a command begins with that runs where two RDMA devices are."""
    if os.environ.get("KVPOOL_RDMA_DEVICES"):
        return []
    made = subprocess.run([sys.executable, REPOSITORY / "hack/prepare.py", "rdma"], stderr=subprocess.PIPE, text=True)
    if made.returncode:
        reason = made.stderr.strip().splitlines()[-1]
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return [sys.executable, str(REPOSITORY / "tests/e2e/rdma/machine.py"), "--minutes", MINUTES]


@contextmanager
def carrying(in_machine: list[str], folder: Path, rows: list[Row]) -> Iterator[subprocess.Popen[bytes]]:
    """Carries them by RDMA beside what happens meanwhile; `carried` then says what has come."""
    folder.mkdir()
    carry.write(folder / "rows", Rows(rows))
    files = ["--files", str(folder)] if in_machine else []
    command = [*in_machine, *files, sys.executable, carry.__file__, str(folder / "rows")]
    paths = os.pathsep.join(str(REPOSITORY / part) for part in FOLDERS)
    environment = dict(os.environ, PYTHONPATH=paths, KVPOOL_RDMA_FILES=str(folder))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def carried(process: subprocess.Popen[bytes], folder: Path) -> Rows:
    assert process.wait(60 * float(MINUTES) + 30) == 0, (folder / "log").read_text(errors="replace")[-3000:]
    return carry.read(folder / carry.CARRIED)


@contextmanager
def place(forge: Forge, tools: Tools, folder: Path, name: str) -> Iterator[Place]:
    """A replica that is alone in its pool."""
    pool = Pool(tools, folder, host_pool_bytes=64 * MIB, agent={"arenaBytes": 128 * MIB})
    engine = None
    try:
        replica = pool.replica(name)
        replica.start_agent()
        pool.members.write_text("")
        engine = ForgedEngine(forge, replica, tools.model).until_ready()
        yield Place(replica, engine)
    finally:
        if engine is not None:
            engine.close()
        pool.stop()


def ask(place: Place, tokens: list[int]) -> Outcome:
    """With the log-probabilities of the 20 likeliest tokens at each place."""
    return place.engine.ask(tokens, likeliest=20)


def stored(place: Place, tokens: list[int]) -> tuple[Outcome, list[bytes]]:
    """How it answers from its own cache, and the keys of the prompt's blocks at its agent."""
    known = {block.key for block in place.counted()}
    assert ask(place, tokens).tokens == by_source(computed=BLOCKS * BLOCK + TAIL)
    local = ask(place, tokens)
    assert local.tokens == by_source(device=BLOCKS * BLOCK, computed=TAIL)

    def chain() -> list[bytes]:
        new = [block for block in place.counted() if block.key not in known]
        return [block.key for block in sorted(new, key=lambda block: block.depth)]

    wait_for("its blocks", lambda: len(chain()) == BLOCKS, 20)
    return local, chain()


def test_an_engine_continues_from_rows_that_came_by_rdma_as_their_own_engine_does_and_not_from_an_altered_one(
    in_machine: list[str], forge: Forge, tools: Tools, tmp_path: Path
) -> None:
    prompts = [prompt(seed, BLOCKS * BLOCK + TAIL) for seed in (7100, 7101)]
    with place(forge, tools, tmp_path / "a", "A") as a:
        answers, chains = zip(*(stored(a, tokens) for tokens in prompts), strict=True)
        keys = [key for chain in chains for key in chain]
        contents = rows_of(a.replica.pool, a.address, a.fingerprint, keys)
        fingerprint, size = a.fingerprint, a.replica.status()["format_fields"]["row_bytes"]
    alter_row(contents[chains[1][1]])  # it has a right tag, and bytes that its engine never had
    rows = [Row(key, tag_of(key, memoryview(contents[key])), bytes(contents[key])) for key in keys]
    assert {len(row.content) for row in rows} == {size}
    total = (len(rows), len(rows) * size)
    with (
        carrying(in_machine, tmp_path / "carried", rows) as process,
        place(forge, tools, tmp_path / "b", "B") as b,
    ):
        came = carried(process, tmp_path / "carried")
        assert came == Rows(rows, by_rdma=total, by_all=total)
        assert b.fingerprint == fingerprint
        member = HoldingMember(b.replica.pool, fingerprint, {row.key: bytearray(row.content) for row in came.rows})
        try:
            b.replica.pool.members.write_text(f"{member.address}\n")
            sees_only(b.replica, member.address)
            found = [ask(b, tokens) for tokens in prompts]
            assert moved(settle(b.replica), "demand_in") == total
        finally:
            member.close()
    assert [one.tokens for one in found] == [by_source(pool=BLOCKS * BLOCK, computed=TAIL)] * 2
    assert [one.answer == local.answer for one, local in zip(found, answers, strict=True)] == [True, False]
