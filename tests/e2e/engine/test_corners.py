"""What two requests may not share, and what an engine may share no more: salts, adapters, weights that have changed.

The engines are real, one process each, without an HTTP server, so they can't be probed and share by their fields.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine.forged import Forge, ForgedEngine
from engine.measured import BLOCK, by_source, settle, small_prompt, until_sees, until_told
from replica import MIB, Pool, Replica, Tools, wait_for

LENGTH = 2 * BLOCK + 5
COMPUTED = by_source(computed=LENGTH)
LOADED = by_source(pool=2 * BLOCK, computed=5)


def prompt(seed: int) -> list[int]:
    return small_prompt(seed, LENGTH)


@dataclass(frozen=True)
class Place:
    """A replica's agent and its engine."""

    replica: Replica
    engine: ForgedEngine

    def field(self, name: str) -> Any:
        return self.replica.status()["format_fields"].get(name)

    def forget(self) -> None:
        self.engine.forget()

    def until_sees(self, other: "Place") -> None:
        """With what it has stored last."""
        settle(other.replica)
        until_sees(self.replica, other.replica)


@pytest.fixture(scope="module")
def pool(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tools, tmp_path_factory.mktemp("pool"), host_pool_bytes=32 * MIB, agent={"arenaBytes": 64 * MIB})
    yield made
    made.stop()


@pytest.fixture(scope="module")
def places(pool: Pool, forge: Forge, small_models: list[Path]) -> Iterator[list[Place]]:
    """A and B with adapters, C, which looks drafts up in the prompt, and D, which is asked for what it generates."""
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    options: dict[str, dict[str, Any]] = {
        "A": {"enable_lora": True, "max_lora_rank": 8},
        "B": {"enable_lora": True, "max_lora_rank": 8},
        "C": {"speculative_config": lookup},
        "D": {"client": {"decodeOutput": True}},
    }
    replicas = [pool.replica(name) for name in options]
    with ThreadPoolExecutor() as threads:
        list(threads.map(Replica.start_agent, replicas))
    made = [Place(r, ForgedEngine(forge, r, small_models[0], **options[r.name])) for r in replicas]
    try:
        for place in made:
            place.engine.until_ready()
        yield made
    finally:
        for place in made:
            place.engine.close()


def test_requests_of_different_salts_share_nothing_and_of_one_salt_everything(places: list[Place]) -> None:
    a, b = places[:2]
    tokens = prompt(1)
    first = a.engine.ask(tokens, salt="x")
    assert first.tokens == COMPUTED
    b.until_sees(a)
    for salt in ("y", ""):
        other = b.engine.ask(tokens, salt=salt)
        assert (other.tokens, other.answer) == (COMPUTED, first.answer)
    assert b.engine.ask(tokens, salt="x") == type(first)(LOADED, first.answer)
    assert b.replica.status()["probe"]["state"] == "not_run"


def test_adapters_are_known_by_their_content_and_not_by_name_and_path(
    places: list[Place], small_models: list[Path], tmp_path: Path
) -> None:
    a, b = places[:2]
    tokens, adapter = prompt(2), tmp_path / "adapter"

    def put(number: int) -> None:
        shutil.rmtree(adapter, ignore_errors=True)
        shutil.copytree(small_models[0] / f"adapter-{number}", adapter)

    plain = a.engine.ask(tokens)
    put(0)
    first = a.engine.ask(tokens, adapter=["name", 1, str(adapter)])
    b.until_sees(a)
    put(1)
    other = b.engine.ask(tokens, adapter=["name", 1, str(adapter)])
    assert [answer.tokens for answer in (plain, first, other)] == [COMPUTED] * 3
    assert len({repr(answer.answer) for answer in (plain, first, other)}) == 3
    # with the same content, the same blocks; and without an adapter, those of requests without one
    put(0)
    assert b.engine.ask(tokens, adapter=["name", 2, str(adapter)]) == type(first)(LOADED, first.answer)
    assert b.engine.ask(tokens) == type(first)(LOADED, plain.answer)


def test_what_an_engine_generates_is_told_of_only_where_the_pool_asks_for_it(places: list[Place]) -> None:
    a, b, c, d = places
    for seed, place, other, kept in ((20, a, b, 2), (21, d, c, 3)):
        tokens, before = small_prompt(seed, 3 * BLOCK - 4), settle(place.replica)["arena"]["blocks"]
        first = place.engine.ask(tokens)  # its answer of eight tokens fills the block in which the prompt ends
        assert settle(place.replica)["arena"]["blocks"] == before + kept
        other.until_sees(place)
        turn = [*tokens, *map(int, first.answer[0]), *small_prompt(seed + 10, 5)]
        assert len(turn) == 3 * BLOCK + 9
        computed = len(turn) - kept * BLOCK
        assert other.engine.ask(turn).tokens == by_source(pool=kept * BLOCK, computed=computed)


def test_resets_are_survived_and_sharing_goes_on(places: list[Place]) -> None:
    a, b = places[:2]
    tokens = prompt(3)
    first = a.engine.ask(tokens)
    assert a.engine.do("reset", external=False)
    host = a.engine.ask(tokens)
    assert (host.tokens, host.answer) == (by_source(host=2 * BLOCK, computed=5), first.answer)
    settle(a.replica)
    until_told(a.replica)
    a.forget()
    assert a.engine.ask(tokens) == type(first)(LOADED, first.answer)
    b.until_sees(a)
    assert b.engine.ask(tokens) == type(first)(LOADED, first.answer)


def test_an_engine_that_looks_drafts_up_in_the_prompt_shares_with_one_that_does_not_draft(places: list[Place]) -> None:
    c, d = places[2:]
    tokens = prompt(4)
    first = d.engine.ask(tokens)
    assert first.tokens == COMPUTED
    c.until_sees(d)
    drafting = c.engine.ask(tokens)
    assert (drafting.tokens, drafting.answer[0]) == (LOADED, first.answer[0])
    back = prompt(5)
    first = c.engine.ask(back)
    d.until_sees(c)
    plain = d.engine.ask(back)
    assert (plain.tokens, plain.answer[0]) == (LOADED, first.answer[0])


def test_an_engine_without_prefix_caching_serves_bare_and_says_so(
    pool: Pool, forge: Forge, small_models: list[Path]
) -> None:
    replica = pool.replica("bare")
    replica.start_agent()
    engine = ForgedEngine(forge, replica, small_models[0], enable_prefix_caching=False).until_ready()
    try:
        for _ in range(2):
            assert engine.ask(prompt(6)).tokens == COMPUTED
        wait_for("its word", lambda: any(e["word"] == "bare" for e in replica.status()["events"]), 20)
        status = replica.status()
        told = [event["detail"] for event in status["events"] if event["word"] == "bare"]
        assert (told, status["attached"], status["attaches"]) == ([{"reason": "prefix_caching_off"}], False, 0)
    finally:
        engine.close()


def test_a_sleep_that_keeps_the_weights_changes_nothing_and_one_that_drops_them_ends_sharing(
    places: list[Place],
) -> None:
    c, d = places[2:]
    tokens = prompt(6)
    first = d.engine.ask(tokens)
    before = settle(d.replica)
    until_told(d.replica)
    d.engine.do("sleep", level=1)
    d.engine.do("wake")
    again = d.engine.ask(tokens)
    assert again.answer == first.answer
    assert again.tokens["computed"] == 5
    after = d.replica.status()
    assert (after["format"], after["incarnation"]) == (before["format"], before["incarnation"])
    c.until_sees(d)
    assert c.engine.ask(tokens).tokens == LOADED
    c.engine.do("sleep", level=2)
    c.engine.do("wake")
    # not even what the engine itself has kept is taken for the new weights' own
    assert c.engine.ask(tokens).tokens == COMPUTED
    wait_for("another format", lambda: c.field("weights_epoch") not in ("", None), 20)


def test_new_weights_in_place_load_and_publish_nothing_of_the_old_ones_and_share_under_their_version(
    places: list[Place], small_models: list[Path]
) -> None:
    a, b = places[:2]
    tokens = prompt(7)
    old = a.engine.ask(tokens)
    before = settle(a.replica)
    assert before["arena"]["blocks"] > 2

    def update(place: Place) -> None:
        place.engine.do("call", method="reload_weights", arguments={"weights_path": str(small_models[1])})

    update(a)
    new = a.engine.ask(tokens)
    assert new.tokens == COMPUTED
    assert new.answer != old.answer
    wait_for("a format without a common name", lambda: len(a.field("weights_epoch") or "") == 32, 20)
    # the old weights' blocks are still b's, and not a's any more
    b.until_sees(a)
    assert b.engine.ask(tokens).answer == old.answer
    assert b.field("weights_epoch") == ""
    # both at the same version
    a.engine.do("version", version="2")
    update(b)
    b.engine.do("version", version="2")
    assert a.engine.ask(tokens) == type(new)(COMPUTED, new.answer)
    assert b.engine.ask(prompt(9)).tokens == COMPUTED
    for place in (a, b):
        wait_for("the version's format", lambda place=place: place.field("weights_epoch") == "v:2", 20)
    assert a.replica.status()["format"] == b.replica.status()["format"] != before["format"]
    # what they computed before their agents had made way is offered again with the next request
    assert a.engine.ask(tokens) == type(new)(by_source(device=2 * BLOCK, computed=5), new.answer)
    wait_for("two blocks", lambda: a.replica.status()["arena"]["blocks"] == 2, 20)
    b.until_sees(a)
    assert b.engine.ask(tokens) == type(new)(LOADED, new.answer)
