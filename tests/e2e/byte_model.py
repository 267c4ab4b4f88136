"""A tokenizer of bytes, a chat template, and requests, for the tests of `kvpool why-miss`."""

import copy
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

BEGIN, START, END = "<s>", "<|start|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>"
    "{% endif %}{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if thinking %}<think>{% endif %}{% endif %}"
)


def model_folder(path: Path) -> Path:
    """A model's folder: one token a byte, four special ones, and the BOS before every text that asks for it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BEGIN, START, END])
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": BEGIN}}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {"path": {"type": "string"}}, "required": ["path"]}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": schema}}


RULES = "Answer in whole sentences. Say so where you don't know. Never make up what you have not read. " * 4


def chat(system: str = RULES, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    turns = messages or ({"role": "user", "content": "What does the third paragraph say of the harbour?"},)
    return {"model": "m", "messages": [{"role": "system", "content": system}, *turns], **copy.deepcopy(more)}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def turned(value: Any) -> Any:
    """The same JSON with the keys of all its objects the other way round."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value
