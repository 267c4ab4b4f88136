"""The options of `kvpool why-miss`, and what it prints."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from kvpool_cli.errors import InputError
from kvpool_cli.prompts.compared import part
from kvpool_cli.prompts.culprits import Pair, culprit
from kvpool_cli.prompts.given import GivenError, Prompt, prompt_of, read
from kvpool_cli.prompts.tokenizer import Tokenizer, TokenizerError


@click.command("why-miss")
@click.argument("first")
@click.argument("second")
@click.option(
    "--tokenizer", default=None, type=click.Path(path_type=Path), help="The model's folder, or its tokenizer.json."
)
@click.option("--template", default="", help="Chat template file, in place of the model's own.")
@click.option("--second-template", default="", help="Likewise for SECOND alone: what another version would do.")
@click.option(
    "--block-tokens", default=256, show_default=True, type=click.IntRange(1), help="Whole blocks of so many are shared."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def why_miss_command(
    first: str,
    second: str,
    tokenizer: Path | None,
    template: str,
    second_template: str,
    block_tokens: int,
    output: str,
) -> None:
    """Say where the prompts FIRST and SECOND part, and which of the usual culprits it looks like.

    Each is a file (or - for stdin) with text, a chat request or a completion as it is sent to the engine, or a JSON
    list of token ids. Text needs --tokenizer; it stays on this machine and is written nowhere else.
    """
    try:
        prompts = [
            prompt_of(read(_content(name)), _tokenizer(tokenizer, own or template))
            for name, own in ((first, ""), (second, second_template))
        ]
    except (GivenError, TokenizerError) as error:
        raise InputError(str(error)) from None
    pair = Pair(prompts[0], prompts[1], part(prompts[0].tokens.ids, prompts[1].tokens.ids))
    click.echo(as_json(pair, block_tokens) if output == "json" else as_text(pair, block_tokens), nl=False)


def _tokenizer(path: Path | None, template: str) -> Tokenizer | None:
    return Tokenizer(path, _content(template) if template else "") if path is not None else None


def _content(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{name} can't be read: {reason}") from None


def figures(pair: Pair, block_tokens: int) -> dict[str, int]:
    """Tokens of either prompt, those in common before the first difference and what of them is whole blocks; and what
    the second one has in common behind it, which is lost."""
    at = pair.parting.at
    return {
        "first_tokens": len(pair.first.tokens.ids),
        "second_tokens": len(pair.second.tokens.ids),
        "common_tokens": at,
        "shared_tokens": at // block_tokens * block_tokens,
        "lost_tokens": pair.parting.again,
    }


def as_json(pair: Pair, block_tokens: int) -> str:
    found = culprit(pair)
    parts = {}
    for name, prompt in (("first", pair.first), ("second", pair.second)):
        before, token, behind = prompt.around(pair.parting.at)
        parts[name] = {"before": before, "token": token, "behind": behind, "id": _id_at(prompt, pair.parting.at)}
    told = {**figures(pair, block_tokens), "culprit": asdict(found), "difference": parts}
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def as_text(pair: Pair, block_tokens: int) -> str:
    numbers, found, at = figures(pair, block_tokens), culprit(pair), pair.parting.at
    lines = [
        f"tokens      {numbers['first_tokens']} and {numbers['second_tokens']}; the first {at} are the same, "
        f"{numbers['shared_tokens']} of them in whole blocks of {block_tokens}"
    ]
    if found.word not in ("same", "continues"):
        lines += [
            f"{side:11} {_shown(prompt, at)}" for side, prompt in (("first", pair.first), ("second", pair.second))
        ]
    lines += [
        f"culprit     {found.word}: {found.sentence} {found.fix}",
        f"lost        {numbers['lost_tokens']} tokens of the second prompt, which the first one has as well behind the "
        "difference",
    ]
    return "\n".join(lines) + "\n"


def _shown(prompt: Prompt, at: int) -> str:
    """The token within its surroundings, or its number where nobody can say its text."""
    if not prompt.tokens.places:
        return f"token {_id_at(prompt, at)}" if at < len(prompt.tokens.ids) else "ends here"
    before, token, behind = (json.dumps(text, ensure_ascii=False)[1:-1] for text in prompt.around(at))
    return f"…{before}▶{token}◀{behind}…" if at < len(prompt.tokens.ids) else f"…{before} and ends here"


def _id_at(prompt: Prompt, at: int) -> int | None:
    return prompt.tokens.ids[at] if at < len(prompt.tokens.ids) else None
