"""Every reason that the code gives is in the table, once, with a sentence and a fix."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpool_contract import reasons
from kvpool_contract.certificate_reasons import CERTIFICATE_REASONS
from kvpool_contract.prefix_reasons import PREFIX_REASONS
from kvpool_contract.rdma_reasons import RDMA_REASONS
from kvpool_contract.reasons import REASONS, explain
from kvpool_contract.store_reasons import STORE_REASONS

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted((REPOSITORY / "agent").rglob("*.py"))

# calls whose argument is a reason, by the called name: its position
CALLS = {
    "Refusal": 0,
    "Refused": 0,
    "bare": 0,
    "report_bare": 1,
    "miss": 0,
    "_miss": 1,
    "Holders": 1,
    "ended": 0,
    "warmed": 0,
    "_warmed": 0,
    "Problem": 0,
    "_refused": 0,
    "_Told": 0,
    "RdmaError": 0,
}
# functions that return or assign a reason, by file
RETURNS = {
    "flows/warmup.py": {"_warm", "run"},
    "flows/fetch.py": {"fetch", "_fetch", "_fault"},
    "flows/lookup.py": {"submit", "plan", "_bring"},
    "directory/breakers.py": {"reason"},
    "directory/locate.py": {"holders", "_nobody"},
    "kvpool_client/join.py": {"find_obstacle"},
    "engine_vllm/configuration.py": {"complete", "_unsupported"},
    "flows/disk.py": {"load", "_in_parts", "_part"},
    "policy/readiness.py": {"__init__", "arena_lost", "attached", "tick", "warmed"},
}
# words in those functions that are no reasons
OTHER_WORDS = {
    "plans", "tag_failures", "demand", "prewarm", "warm_begin", "warm_end", "kvpool-warm", "/dev/shm",
    "nnodes", "ray", "reason", "decoder", "hybrid", "sha256", "weight_transfer_config",
}  # fmt: skip


def texts(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def is_word(text: str) -> bool:
    return text.isidentifier() and text.islower() and text not in OTHER_WORDS


def given_by_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = CALLS.get(name)
            if place is not None and len(node.args) > place:
                yield from (text for text in texts(node.args[place]) if is_word(text))


def given_by_functions(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Text that a function returns, assigns to `reason` or `self.reason`, or passes to `_enter`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in names:
            continue
        for node in ast.walk(function):
            match node:
                case ast.Return(value=ast.Tuple(elts=[word, *_])):
                    yield from (text for text in texts(word) if is_word(text))
                case ast.Return(value=ast.expr() as value):
                    yield from (text for text in texts(value) if is_word(text))
                case ast.Assign(targets=[target], value=value) if "reason" in ast.unparse(target):
                    yield from (text for text in texts(value) if is_word(text))
                case ast.Call(func=ast.Attribute(attr="_enter"), args=[_, word, _]):
                    yield from (text for text in texts(word) if is_word(text))


def given() -> dict[str, set[str]]:
    """Each reason word in the code, and the files that give it."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        words = set(given_by_calls(tree))
        for end, names in RETURNS.items():
            if path.as_posix().endswith(end):
                words |= set(given_by_functions(tree, names))
        for word in words:
            found.setdefault(word, set()).add(path.name)
    return found


def test_every_reason_that_the_code_gives_is_in_the_table() -> None:
    found = given()
    assert {word: files for word, files in found.items() if word not in REASONS} == {}
    # the scan sees what it should: reasons of every kind
    assert {
        "geometry_refused", "busy", "never_published", "transfer_failed", "no_room", "evicted", "deadline",
        "breaker_open", "incompatible", "window_missing", "state_missing",
        "directory_unreachable", "nothing_to_warm", "warm_deadline", "arena_lost", "not_attached", "no_shm_room",
        "multi_host", "foreign_connector", "config_refused", "tier_failed", "peer_version", "other_pool",
        "rdma_memlock", "rdma_tag",
    } <= set(found)  # fmt: skip


def test_no_word_stands_twice_in_the_table() -> None:
    words = [
        reason.word
        for reason in (*reasons._TABLE, *CERTIFICATE_REASONS, *PREFIX_REASONS, *RDMA_REASONS, *STORE_REASONS)
    ]
    assert len(words) == len(set(words)) == len(REASONS)


@pytest.mark.parametrize("reason", REASONS.values(), ids=lambda reason: reason.word)
def test_each_row_is_a_machine_word_a_sentence_and_a_fix(reason: reasons.Reason) -> None:
    assert reason.word.isidentifier() and reason.word.islower()
    for text in (reason.sentence, reason.fix):
        assert text.endswith(".") and text[0] in "/" + text[0].upper()


def test_an_unknown_word_stands_alone() -> None:
    assert explain("of_a_newer_version") == "of_a_newer_version"
    assert explain("busy") == f"busy: {REASONS['busy'].sentence} {REASONS['busy'].fix}"
