"""Declared prefixes in an agent: what others may be told of, and how text, ids and names come together."""

import base64
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from standin_http import token_ids
from standin_model import BLOCK_TOKENS, HASH_BYTES, engine_keys, hash_fields

from kvpool_agent.account import Account
from kvpool_agent.flows.answer import OwnBlocks
from kvpool_agent.flows.declare import Declarations, TokenizeError, tokenize
from kvpool_agent.flows.finished import finish_request
from kvpool_agent.flows.probe import CACHE_SALT
from kvpool_agent.flows.probe import prompt as probe_prompt
from kvpool_agent.flows.reading import Reading
from kvpool_agent.keyring import Keyring
from kvpool_agent.peer import frames
from kvpool_agent.peer.dial import Identity
from kvpool_agent.store.arena import Arena
from kvpool_agent.store.feed import Change
from kvpool_agent.store.heads import name_of
from kvpool_agent.store.memory import ArenaMemory
from kvpool_agent.store.slab import Slab, Slabs, slab_options
from kvpool_client.front import Verdict, fold
from kvpool_client.groups import FULL, Group
from kvpool_contract.config import AgentConfig, CacheNamespace, Engine, Members, Publication, Tls
from kvpool_contract.names import format_fingerprint
from kvpool_contract.prefixes import Prefix
from kvpool_contract.status import Declared

SLOT = 4096
FORMAT = {"engine": "standin", "block_tokens": BLOCK_TOKENS, **hash_fields()}
TEXT = "a prefix of 24 letters.."
OTHER_IDS = tuple(range(300, 300 + 2 * BLOCK_TOKENS + 3))


def key(name: str) -> bytes:
    return name.encode().ljust(16, b".")


# -- what others may be told of ----------------------------------------------------------------------


def filled(**options: Any) -> Arena:
    """A chain of three blocks, and one that begins a chain of its own."""
    arena = Arena(8, **options)
    for name, parent in (("a", b""), ("b", key("a")), ("c", key("b")), ("x", b"")):
        (slot,) = arena.reserve(1, 0.0)
        arena.commit(key(name), parent, slot, bytes(16), foreign=False)
    return arena


def told(arena: Arena) -> str:
    return "".join(sorted(key[:1].decode() for key in arena.keys(told=True)))


def test_nothing_is_told_before_something_is_declared_and_then_that_alone() -> None:
    arena = filled(declared_alone=True)
    names = [key(name) for name in "abcx"]
    assert (told(arena), arena.told(names), arena.placed(), arena.changes()) == ("", [False] * 4, [], ([], False))
    arena.declare(frozenset(names[:2]))
    assert (told(arena), arena.told(names)) == ("ab", [True, True, False, False])
    assert sorted(arena.placed()) == [(key("a"), key("a")), (key("b"), key("a"))]
    changes, _ = arena.changes()
    assert {(change.key, change.held) for change in changes} == {(key("a"), True), (key("b"), True)}
    assert arena.may_tell([key("a"), key("not here"), key("x")]) == [key("a")]


def test_what_is_declared_no_more_is_withdrawn_and_what_never_was_is_not() -> None:
    arena = filled(declared_alone=True)
    arena.declare(frozenset([key("a"), key("b")]))
    arena.changes()
    arena.declare(frozenset([key("a"), key("x")]))
    assert told(arena) == "ax"
    changes, _ = arena.changes()
    assert set(changes) == {Change(key("b"), key("a"), held=False), Change(key("x"), key("x"), held=True)}
    for name in "abcx":
        arena.drop(key(name))
    assert {change.key for change in arena.changes()[0]} == {key("a"), key("x")}


def test_a_block_that_comes_after_it_was_declared_is_told_at_once() -> None:
    arena = Arena(8, declared_alone=True)
    arena.declare(frozenset([key("a")]))
    for name in "ax":
        (slot,) = arena.reserve(1, 0.0)
        arena.commit(key(name), b"", slot, bytes(16), foreign=False)
    assert arena.changes()[0] == [Change(key("a"), key("a"), held=True)]
    assert set(arena.told_heads.since(0).added) == {name_of(key("a"))}
    assert len(arena.heads) == 2  # its own engine finds both


def test_heads_are_told_as_they_are_declared() -> None:
    arena = filled(declared_alone=True)
    assert len(arena.told_heads) == 0 and len(arena.heads) == 2
    arena.declare(frozenset([key("a"), key("b")]))
    assert set(arena.told_heads.since(0).added) == {name_of(key("a"))}
    arena.declare(frozenset([key("x")]))
    assert set(arena.told_heads.since(0).added) == {name_of(key("x"))}
    arena.drop(key("x"))
    assert len(arena.told_heads) == 0


def test_what_made_room_and_was_not_declared_is_evicted_to_the_own_engine_and_told_to_nobody_else() -> None:
    arena = Arena(2, declared_alone=True)
    arena.declare(frozenset([key("a")]))
    for name in "axyz":
        (slot,) = arena.reserve(1, 0.0)
        arena.commit(key(name), b"", slot, bytes(16), foreign=False)
    names = [key(name) for name in "axn"]  # the last one was never here
    assert (arena.held(names), arena.made_room(names)) == ([False] * 3, [True, True, False])

    slab = Slab(b"f" * 16, {}, SLOT, ArenaMemory.anonymous(2 * SLOT), arena)
    slabs: Any = SimpleNamespace(of=lambda _: slab)
    probe: Any = SimpleNamespace(withdrawn=False)
    source = OwnBlocks(Identity("p", "a", "i"), slabs, Reading(Account()), lambda: "", probe)
    assert source.holds(slab.fingerprint, names) == [frames.MADE_ROOM, 0, 0]

    account = Account()
    ruled_out = {"prompt": 3, "asked": 0, "loaded": 0, "unknown": 3}
    finish_request(account, slab, [Group(0, FULL, 0, BLOCK_TOKENS)], [names], ruled_out, None)
    assert account.misses == {"evicted": 2, "never_published": 1}


@pytest.mark.parametrize(("policy", "told"), [("Always", 1), ("Declared", 0), ("Never", 0)])
def test_of_what_is_not_declared_nothing_is_told_but_where_all_is(policy: Any, told: int) -> None:
    agent = Agent(1, policy=policy)
    assert len(agent.slab.arena.may_tell([key("a")])) == told


def test_depth_holds_beside_it() -> None:
    arena = filled(declared_alone=True, told_depth=1)
    arena.declare(frozenset([key("a"), key("b")]))
    assert (told(arena), [change.key for change in arena.changes()[0] if change.held]) == ("a", [key("a")])


def test_where_all_is_told_a_declaration_changes_nothing() -> None:
    arena = filled()
    arena.declare(frozenset())
    assert told(arena) == "abcx" and arena.told_heads is arena.heads


# -- from a configuration to names -------------------------------------------------------------------


@contextmanager
def server(answer: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[tuple[int, list[str]]]:
    """An engine's server: its port, and the texts that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/tokenize"
            asked.append(body["prompt"])
            status, said = answer(body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield listening.server_port, asked
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def tokens_of(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"tokens": token_ids(body["prompt"])}


class Agent:
    """Slabs of an engine that is attached, and what declares in them."""

    def __init__(
        self,
        port: int,
        *prefixes: Prefix,
        policy: Any = "Declared",
        fields: Any = FORMAT,
        keyring: Keyring | None = None,
    ) -> None:
        memory = ArenaMemory.anonymous(64 * SLOT)
        self.port, self.policy = port, policy
        self.configure(*prefixes)
        self.slabs = Slabs(memory, 0.0, keyring, **slab_options(self.config))
        self.slab: Slab = self.slabs.open(format_fingerprint(fields), fields, SLOT)
        self.healthy, self.probed = True, list[str]()
        self.flow = Declarations(self.slabs, lambda: self.config, lambda: self.healthy, lambda: self.probed)

    def configure(self, *prefixes: Prefix) -> None:
        self.config = AgentConfig(
            version=1, pool="p", arenaBytes=1 << 20, members=Members(file="m"), tls=Tls(mode="Disabled"),
            engine=Engine(port=self.port), publication=Publication(policy=self.policy), declaredPrefixes=prefixes,
        )  # fmt: skip

    def look(self) -> Declared:
        self.flow.look(self.slab)
        return self.flow.snapshot()

    def names(self, tokens: Any, salt: str = "") -> list[bytes]:
        return [self.slab.key(key, HASH_BYTES) for key in engine_keys(tokens, salt=salt)]

    def may_tell(self, tokens: Any) -> int:
        return len(self.slab.arena.may_tell(self.names(tokens)))


def test_text_and_ids_become_the_names_of_their_whole_blocks() -> None:
    with server(tokens_of) as (port, asked):
        agent = Agent(port, Prefix(text=TEXT), Prefix(tokenIds=OTHER_IDS))
        assert agent.flow.snapshot() == Declared(2)
        assert agent.look() == Declared(2, 2, 6 + 2)
        prompt = token_ids(TEXT)
        assert agent.may_tell([*prompt, *range(40)]) == 6
        assert agent.may_tell([*prompt[: 3 * BLOCK_TOKENS + 1], 9, *prompt[3 * BLOCK_TOKENS + 2 :]]) == 3
        assert (agent.may_tell(OTHER_IDS), agent.may_tell(OTHER_IDS[1:])) == (2, 0)
        agent.look()
        assert asked == [TEXT]  # once


def test_a_changed_configuration_is_taken_over_and_what_it_lacks_is_told_no_more() -> None:
    with server(tokens_of) as (port, asked):
        agent = Agent(port, Prefix(text=TEXT))
        agent.look()
        agent.configure(Prefix(tokenIds=OTHER_IDS))
        assert agent.look() == Declared(1, 1, 2)
        assert (agent.may_tell(token_ids(TEXT)), agent.may_tell(OTHER_IDS)) == (0, 2)
        agent.configure()
        assert agent.look() == Declared()
        assert (agent.may_tell(OTHER_IDS), asked) == (0, [TEXT])


def test_prefixes_that_begin_alike_have_their_common_blocks_once() -> None:
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS), Prefix(tokenIds=(*OTHER_IDS, 1)))
    assert agent.look() == Declared(2, 2, 3)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ((401, {}), "the engine's port answered 401: it wants a key"),
        ((404, {}), "the engine's port answered 404"),
        ((200, []), "the engine's port answered with no token ids"),
        ((200, {"tokens": ["a"]}), "the engine's port answered with no token ids"),
        ((200, {"tokens": [True]}), "the engine's port answered with no token ids"),
    ],
)
def test_an_engine_that_gives_no_ids_is_named_and_ids_are_declared_all_the_same(answer: Any, detail: str) -> None:
    with server(lambda _body: answer) as (port, asked):
        agent = Agent(port, Prefix(text=TEXT), Prefix(tokenIds=OTHER_IDS))
        assert agent.look() == Declared(2, 1, 2, "no_tokenizer", detail)
        agent.look()
        assert asked == [TEXT]  # not again at each look
        assert (agent.may_tell(token_ids(TEXT)), agent.may_tell(OTHER_IDS)) == (0, 2)


def test_an_engine_whose_server_does_not_listen_yet_is_not_asked() -> None:
    with server(tokens_of) as (port, asked):
        agent = Agent(port, Prefix(text=TEXT))
        agent.healthy = False
        assert (agent.look(), asked) == (Declared(1), [])
        agent.healthy = True
        assert agent.look() == Declared(1, 1, 6)


def test_nobody_listens_says_so() -> None:
    with server(tokens_of) as (port, _):
        pass
    with pytest.raises(TokenizeError, match=r"^no answer on the engine's port: "):
        tokenize(port, TEXT)


def test_a_prefix_without_a_whole_block_is_named() -> None:
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS), Prefix(tokenIds=(1, 2, 3)))
    assert agent.look() == Declared(2, 1, 2, "prefix_too_short", "entry 2 has 3 tokens")


def test_where_the_engine_names_the_probe_otherwise_nothing_is_told() -> None:
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS))
    agent.probed = [name.hex() for name in agent.names(probe_prompt(BLOCK_TOKENS), CACHE_SALT)]
    assert agent.look() == Declared(1, 1, 2)
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS))
    agent.look()
    agent.probed = [bytes(16).hex()]
    assert agent.look() == Declared(1, 0, 0, "names_unknown", "the engine calls the probe's block otherwise")
    assert agent.may_tell(OTHER_IDS) == 0


def test_a_hash_that_is_not_known_here_is_named() -> None:
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS), fields={**FORMAT, "hash_algorithm": "xxhash"})
    assert agent.look() == Declared(1, 0, 0, "names_unknown", "the hash algorithm is 'xxhash'")


def test_each_cache_namespace_has_the_prefixes_under_names_of_its_own_in_both_epochs_of_its_key(tmp_path: Path) -> None:
    keys = [base64.b64encode(bytes([number]) * 32) for number in range(3)]
    (tmp_path / "public").write_bytes(keys[0])
    (tmp_path / "acme").write_bytes(keys[1] + b"\n" + keys[2])
    spaces = (
        CacheNamespace(name="public", keyFile=str(tmp_path / "public")),
        CacheNamespace(name="acme", keyFile=str(tmp_path / "acme"), memoryPercent=50),
    )
    agent = Agent(0, Prefix(tokenIds=OTHER_IDS))
    agent = Agent(
        0, Prefix(tokenIds=OTHER_IDS), keyring=Keyring(dataclasses.replace(agent.config, cacheNamespaces=spaces))
    )
    public, acme = agent.slabs.all
    for slab in (public, acme):
        agent.flow.look(slab)
    assert agent.flow.snapshot() == Declared(1, 1, 2)
    salted = engine_keys(OTHER_IDS, salt=str(fold(Verdict("acme"), "a claim", None)))
    of_acme = [acme.key(key, HASH_BYTES, name) for key in salted for name in acme.space.names]
    assert (len(of_acme), acme.arena.may_tell(of_acme)) == (4, of_acme)
    assert public.arena.may_tell(agent.names(OTHER_IDS)) == agent.names(OTHER_IDS)
    unsalted = [acme.key(key, HASH_BYTES) for key in engine_keys(OTHER_IDS)]
    assert (acme.arena.may_tell(unsalted), public.arena.may_tell(of_acme)) == ([], [])


@pytest.mark.parametrize(("of_all", "of_acme", "told"), [(2, 0, (2, 2)), (2, 3, (2, 3)), (0, 1, (4, 1))])
def test_a_cache_namespace_has_a_depth_of_its_own_or_that_of_all(
    tmp_path: Path, of_all: int, of_acme: int, told: tuple[int, int]
) -> None:
    (tmp_path / "key").write_bytes(base64.b64encode(b"k" * 32))
    spaces = (
        CacheNamespace(name="public", keyFile=str(tmp_path / "key")),
        CacheNamespace(
            name="acme", keyFile=str(tmp_path / "key"), memoryPercent=50, maxDepthTokens=of_acme * BLOCK_TOKENS
        ),
    )
    config = dataclasses.replace(Agent(0).config, cacheNamespaces=spaces)
    slabs = Slabs(ArenaMemory.anonymous(64 * SLOT), 0.0, Keyring(config), told_tokens=of_all * BLOCK_TOKENS)
    slabs.open(format_fingerprint(FORMAT), FORMAT, SLOT)
    for slab in slabs.all:
        for name, parent in (("a", b""), ("b", key("a")), ("c", key("b")), ("d", key("c"))):
            (slot,) = slab.arena.reserve(1, 0.0)
            slab.arena.commit(key(name), parent, slot, bytes(16), foreign=False)
    assert [len(slab.arena.keys(told=True)) for slab in slabs.all] == list(told)


def test_with_another_policy_there_is_nothing_to_say() -> None:
    agent = Agent(0, policy="Always")
    agent.flow.start()
    assert agent.flow.snapshot() == Declared()
    assert "kvpool-declare" not in {thread.name for thread in threading.enumerate()}
