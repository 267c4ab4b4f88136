"""A model's tokenizer and chat template, as engines use them: from text or a chat request to tokens and their places.

Needs the extra `tokenizer`: the model's own tokenizer.json read by the library that engines read it with, and jinja2 in
its sandbox, since a template is a program of somebody else's.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

NEEDS = (
    "the model's tokenizer is read by libraries that are not installed; in kvpool's repository, "
    "pip install '.[cli,tokenizer]' brings them"
)


PARTIAL = "\ufffd"  # what a part of a character is decoded to


class TokenizerError(ValueError):
    """What was given is no tokenizer or template that can be used; one sentence."""


@dataclass(frozen=True)
class Tokens:
    """A prompt's tokens, and of each of them where it begins and ends in `text`."""

    ids: Sequence[int]
    text: str
    places: Sequence[tuple[int, int]]


class Tokenizer:
    """`tokenizer.json` of a model's folder, with what its configuration says of special tokens and the template."""

    def __init__(self, path: Path, template: str = "") -> None:
        """path: a model's folder, or a tokenizer.json. template: in place of the model's own. Raises
        TokenizerError."""
        try:
            import tokenizers
        except ImportError:
            raise TokenizerError(NEEDS) from None
        folder = path if path.is_dir() else path.parent
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{file} can't be read: {error}") from None
        except Exception as error:  # noqa: BLE001 - the library raises bare Exceptions
            raise TokenizerError(f"{file} is no tokenizer.json: {error}") from None
        self._special = _special_tokens(folder / "tokenizer_config.json")
        self.template = template or _own_template(folder)
        bos = self._special.get("bos_token", "")
        self.bos: int | None = self._tokenizer.token_to_id(bos) if bos else None

    def of_text(self, text: str, *, special: bool) -> Tokens:
        """special: whether the tokenizer adds its own special tokens, as engines do for a completion and not for a
        chat."""
        encoded = self._tokenizer.encode(text, add_special_tokens=special)
        return Tokens(encoded.ids, text, encoded.offsets)

    def of_ids(self, ids: Sequence[int]) -> Tokens:
        """Of a character that several tokens make up, the last one has all of it."""
        if bad := next((token for token in ids if self._tokenizer.id_to_token(token) is None), None):
            raise TokenizerError(f"token {bad} is not in the tokenizer's vocabulary: is it another model's?")
        text, places = "", []
        for end in range(1, len(ids) + 1):
            whole = self._decode(ids[max(0, end - 8) : end])
            before = self._decode(ids[max(0, end - 8) : end - 1])
            known = before.rstrip(PARTIAL)
            text = text[: len(text) - (len(before) - len(known))]
            piece = whole[len(known) :]
            places.append((len(text), len(text) + len(piece)))
            text += piece
        return Tokens(list(ids), text, places)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def render(self, request: Mapping[str, Any]) -> str:
        """The prompt of a chat request. Raises TokenizerError."""
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise TokenizerError(NEEDS) from None
        source = request.get("chat_template") or self.template
        if not source:
            raise TokenizerError("the model has no chat template; give one with --template, or the prompt as text")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        given = {
            "messages": [_message(message) for message in request["messages"]],
            "tools": request.get("tools"),
            "documents": request.get("documents"),
            "add_generation_prompt": request.get("add_generation_prompt", True),
            **self._special,
            **(request.get("chat_template_kwargs") or {}),
        }
        try:
            return environment.from_string(source).render(given)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise TokenizerError(f"the chat template can't be rendered: {error}") from None


def _own_template(folder: Path) -> str:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        try:
            text = (folder / name).read_text()
        except OSError:
            continue
        if name.endswith(".jinja"):
            return text
        found = json.loads(text).get("chat_template") or ""
        if isinstance(found, list):  # several, by name
            found = next((one["template"] for one in found if one.get("name") == "default"), "")
        return str(found)
    return ""


def _special_tokens(file: Path) -> dict[str, str]:
    try:
        given = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = given.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> str:
    raise ValueError(message)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """As engines hand it to a template: the text of its parts as one, arguments of calls as objects."""
    made = dict(message)
    if isinstance(content := made.get("content"), list):
        made["content"] = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in calls]
    return made


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(arguments := function.get("arguments"), str):
        with contextlib.suppress(ValueError):
            function["arguments"] = json.loads(arguments)
    return {**call, "function": function}
