"""`kvpool why-miss`: where two prompts part, by which culprit, and what that costs; ten pairs made for it, and eleven
kinds that people have reported of their own programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from byte_model import BEGIN, RULES, TEMPLATE, chat, model_folder, said, tool, turned
from click.testing import CliRunner

from kvpool_cli.main import main
from kvpool_cli.prompts.compared import part
from kvpool_cli.prompts.culprits import CULPRITS

TOOLS = [tool("read_file"), tool("search"), tool("write_file")]
CALLS = [{"type": "function", "function": {"name": "search", "arguments": '{"query": "tide", "limit": 5}'}}]
OTHER_CALLS = [{"type": "function", "function": {"name": "search", "arguments": '{"limit": 5, "query": "tide"}'}}]
TURNS = [
    said("user" if i % 2 == 0 else "assistant", f"Turn {i} of a long talk about boats and tides.") for i in range(9)
]
IDS = list(range(40, 140))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


def told(folder: Path | None, tmp_path: Path, first: Any, second: Any, *options: str) -> dict[str, Any]:
    """What the command says of two prompts: text as it is, everything else as JSON."""
    files = []
    for name, content in (("a", first), ("b", second)):
        files.append(tmp_path / name)
        files[-1].write_text(content if isinstance(content, str) else json.dumps(content))
    given = ["--tokenizer", str(folder)] if folder is not None else []
    result = CliRunner().invoke(main, ["why-miss", *map(str, files), *given, *options, "-o", "json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def at(text: str) -> str:
    """A prompt with something of its own in the second line."""
    return f"You are a clerk.\n{text}\n{RULES}"


MADE = {
    "date": (at("It is 2026-11-30."), at("It is 2026-12-01.")),
    "tool_order": (chat(tools=TOOLS), chat(tools=[TOOLS[1], TOOLS[0], TOOLS[2]])),
    "json_key_order": (chat(tools=TOOLS), chat(tools=turned(TOOLS))),
    "whitespace": (at("Be short.\n\nBe kind."), at("Be short.\nBe kind.")),
    "bos": (RULES, BEGIN + RULES),
    "template": (chat(), chat(chat_template=TEMPLATE.replace("{{ m.role }}", "{{ m.role | upper }}"))),
    "id": (at("Request 7f3a91c0-aa."), at("Request 19bc44d2-07.")),
    "history": (chat(RULES, *TURNS), chat(RULES, *TURNS[2:])),
    "reasoning": (
        chat(RULES, *TURNS[:1], said("assistant", "Yes.", reasoning_content="They ask of tides."), *TURNS[2:3]),
        chat(RULES, *TURNS[:1], said("assistant", "Yes."), *TURNS[2:3]),
    ),
    "other": (at("Be short and plain."), at("Answer at length, in verse.")),
}


@pytest.mark.parametrize("word", MADE)
def test_the_culprit_of_a_pair_that_was_made_for_it_is_named(folder: Path, tmp_path: Path, word: str) -> None:
    found = told(folder, tmp_path, *MADE[word])
    assert found["culprit"]["word"] == word
    assert found["culprit"] == {
        "word": word, "sentence": CULPRITS[word].sentence, "fix": CULPRITS[word].fix,
    }  # fmt: skip
    reversed_ = told(folder, tmp_path, *MADE[word][::-1])
    assert reversed_["culprit"]["word"] == word
    assert reversed_["common_tokens"] == found["common_tokens"]
    assert found["lost_tokens"] > 40


# what was reported of programs, each with where; the prompts are made here
REPORTED = {
    # the minute in which a conversation was started, anew after each compaction: NousResearch/hermes-agent#8687
    "a minute in the system prompt": (
        "date",
        chat(f"Conversation started: Monday, April 13, 2026 12:06 AM\n{RULES}"),
        chat(f"Conversation started: Monday, April 13, 2026 12:07 AM\n{RULES}"),
    ),
    # seconds and a time zone at the end of an agent's prompt: earendil-works/pi#2013
    "seconds in the system prompt": (
        "date",
        chat(f"{RULES}Current date and time: Monday, March 9, 2026 at 06:00:31 PM PDT", *TURNS),
        chat(f"{RULES}Current date and time: Monday, March 9, 2026 at 06:01:02 PM PDT", *TURNS),
    ),
    # tools in the order in which servers were found: QwenLM/qwen-code#6338
    "tools in the order of their discovery": (
        "tool_order",
        chat(tools=[*TOOLS, tool("mcp__filesystem__read_tree"), tool("mcp__github__search_issues")]),
        chat(tools=[*TOOLS, tool("mcp__github__search_issues"), tool("mcp__filesystem__read_tree")]),
    ),
    # a map's random order in a list of tools that is part of the text: nextlevelbuilder/goclaw#718
    "tools as text from a map": (
        "tool_order",
        at("\n".join(map(json.dumps, TOOLS))),
        at("\n".join(map(json.dumps, TOOLS[::-1]))),
    ),
    # keys of a schema that move from call to call: sgl-project/sglang#34553, Lakr233/FlowDown#273
    "keys of a tool's schema": (
        "json_key_order",
        chat(tools=[tool("search", query={"type": "string", "description": "what"}, limit={"type": "integer"})]),
        chat(tools=[tool("search", query={"description": "what", "type": "string"}, limit={"type": "integer"})]),
    ),
    # arguments of a past call, read and written again: OpenRouterTeam/ai-sdk-provider#472, stanfordnlp/dspy#10216
    "arguments of a past call": (
        "json_key_order",
        chat(RULES, *TURNS[:1], said("assistant", None, tool_calls=CALLS), said("tool", "high at noon"), *TURNS),
        chat(RULES, *TURNS[:1], said("assistant", None, tool_calls=OTHER_CALLS), said("tool", "high at noon"), *TURNS),
    ),
    # a template that begins the prompt as the tokenizer does: vllm-project/vllm#27517, abetlen/llama-cpp-python#1501
    "the beginning twice": ("bos", [96, 96, *IDS], [96, *IDS]),
    # thoughts that are not sent back: nibor1896/Crow#60
    "thoughts left out of the history": (
        "reasoning",
        chat(RULES, *TURNS[:2], said("user", "And?"), said("assistant", "No.", reasoning_content="Not there."), *TURNS),
        chat(RULES, *TURNS[:2], said("user", "And?"), said("assistant", "No."), *TURNS),
    ),
    # an option that changes the beginning: MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#63, QwenLM/Qwen3#1826
    "an option of the template": (
        "template",
        chat(RULES, *TURNS, chat_template=f"{{% if thinking %}}Effort: high\n{{% endif %}}{TEMPLATE}"),
        chat(
            RULES,
            *TURNS,
            chat_template=f"{{% if thinking %}}Effort: high\n{{% endif %}}{TEMPLATE}",
            chat_template_kwargs={"thinking": True},
        ),
    ),
    # a hash of each request in the first line: ex-machina-co/opencode-anthropic-auth#150
    "a hash of the request": (
        "id",
        chat(f"x-billing-header: version=2.1; cch=9f3ab;\n{RULES}", *TURNS),
        chat(f"x-billing-header: version=2.1; cch=04d7e;\n{RULES}", *TURNS),
    ),
    # the last so many messages alone: HKUDS/nanobot#4568, zai-org/feedback#743
    "a window that moves with each turn": (
        "history",
        chat(RULES, *TURNS[:6]),
        chat(RULES, *TURNS[1:7]),
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_the_culprit_of_what_people_have_reported_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    word, first, second = REPORTED[name]
    found = told(folder, tmp_path, first, second)
    assert found["culprit"]["word"] == word
    assert found["lost_tokens"] > 40


def test_what_is_printed_is_where_they_part_and_what_is_lost(folder: Path, tmp_path: Path) -> None:
    for name, day in (("a", "30"), ("b", "29")):
        (tmp_path / name).write_text(at(f"It is 2026-11-{day}."))
    arguments = [
        "why-miss",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--tokenizer",
        str(folder),
        "--block-tokens",
        "8",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    tokens, same = 1 + len(at("It is 2026-11-30.")), 1 + len("You are a clerk.\nIt is 2026-11-")
    assert result.output.splitlines() == [
        f"tokens      {tokens} and {tokens}; the first {same} are the same, "
        f"{same // 8 * 8} of them in whole blocks of 8",
        r"first       …26-11-▶3◀0.\nAns…",
        r"second      …26-11-▶2◀9.\nAns…",
        f"culprit     date: {CULPRITS['date'].sentence} {CULPRITS['date'].fix}",
        f"lost        {tokens - same - 2} tokens of the second prompt, which the first one has as well behind the "
        "difference",
    ]  # fmt: skip


def test_prompts_that_share_as_they_should_have_no_culprit(folder: Path, tmp_path: Path) -> None:
    same = told(folder, tmp_path, chat(RULES, *TURNS[:3]), chat(RULES, *TURNS[:3]))
    assert (same["culprit"]["word"], same["lost_tokens"]) == ("same", 0)
    without = {"add_generation_prompt": False}
    longer = told(folder, tmp_path, chat(RULES, *TURNS[:3], **without), chat(RULES, *TURNS, **without))
    assert (longer["culprit"]["word"], longer["lost_tokens"]) == ("continues", 0)
    assert longer["common_tokens"] == longer["first_tokens"] < longer["second_tokens"]


def test_token_ids_need_no_tokenizer_and_with_one_the_same_text_in_other_tokens_is_seen(
    folder: Path, tmp_path: Path
) -> None:
    plain = told(None, tmp_path, IDS, [*IDS[:50], 7, *IDS[51:]], "--block-tokens", "16")
    assert {key: plain[key] for key in ("common_tokens", "shared_tokens", "lost_tokens")} == {
        "common_tokens": 50, "shared_tokens": 48, "lost_tokens": 49,
    }  # fmt: skip
    assert (plain["culprit"]["word"], plain["difference"]["second"]["id"]) == ("other", 7)
    completion = told(None, tmp_path, {"prompt": IDS}, {"prompt_token_ids": [*IDS, 7]})
    assert completion["culprit"]["word"] == "continues"

    merged = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = merged["model"]["vocab"]
    vocabulary["ab"] = 999
    merged["model"]["merges"] = [["a", "b"]]
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    a, b = vocabulary["a"], vocabulary["b"]
    found = told(tmp_path / "merged.json", tmp_path, [*IDS, a, b, *IDS], [*IDS, 999, *IDS])
    assert (found["culprit"]["word"], found["lost_tokens"]) == ("tokenization", len(IDS))


def test_a_character_of_several_tokens_stands_where_it_ends(folder: Path, tmp_path: Path) -> None:
    found = told(folder, tmp_path, "Preis: 5 € für alles", "Preis: 5 £ für alles")
    assert (found["difference"]["first"]["before"], found["culprit"]["word"]) == ("eis: 5 "[1:], "other")


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("text", (), "text and chat requests need --tokenizer"),
        ('{"model": "m"}', (), "the object has neither messages nor a prompt of text or token ids"),
        ('{"messages": ["x"]}', (), "messages holds something else than objects"),
        ("text", ("--tokenizer", "nowhere"), "can't be read"),
        ("[999999]", ("--tokenizer", "{folder}"), "token 999999 is not in the tokenizer's vocabulary"),
        ('{"messages": [], "chat_template": "{{"}', ("--tokenizer", "{folder}"), "the chat template can't be rendered"),
        (
            '{"messages": [], "chat_template": "{{ raise_exception(\'no system\') }}"}',
            ("--tokenizer", "{folder}"),
            "the chat template can't be rendered: no system",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(
    folder: Path, tmp_path: Path, content: str, options: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "a").write_text(content)
    given = [option.replace("{folder}", str(folder)) for option in options]
    result = CliRunner().invoke(main, ["why-miss", str(tmp_path / "a"), str(tmp_path / "a"), *given])
    assert result.exit_code == 2 and sentence in result.output, result.output


def test_a_template_reaches_nothing_but_what_it_is_given(folder: Path, tmp_path: Path) -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "a").write_text(json.dumps(chat(chat_template=escape)))
    result = CliRunner().invoke(main, ["why-miss", *[str(tmp_path / "a")] * 2, "--tokenizer", str(folder)])
    assert result.exit_code == 2 and "can't be rendered" in result.output


def test_what_two_prompts_have_in_common_behind_their_difference_is_counted_in_order() -> None:
    a, b = list(range(100)), list(range(200, 300))
    assert part(a, a) == part(a, a) and (part(a, a).at, part(a, a).again) == (100, 0)
    assert (part([1, *a], [2, *a]).at, part([1, *a], [2, *a]).again, part([1, *a], [2, *a]).skips) == (0, 100, (1, 1))
    assert part([*a, 1, *b], [*a, *b]).skips == (1, 0)
    assert part([9, *a, *b], [8, *b, *a]).again == 100  # the other way round, one of the two alone
    assert part(a, b).skips == (-1, -1)
