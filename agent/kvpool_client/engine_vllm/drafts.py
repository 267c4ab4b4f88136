"""Engines whose drafts come from a model with a KV cache of its own: which of them join, and which groups are its own.

vLLM keeps a draft model's layers in the same blocks as the model's own where they look at the same tokens: one row
holds both, and members with the same draft share it, since the draft's identity is part of the format. What a draft
proposes the model verifies, so the answers are the model's own whatever the draft has read; its part of a block matters
to how many proposals are taken.

Layers that look at something else, as at a window where the model's don't, are in KV-cache groups of their own. Those
are not shared, and so nothing of such an engine is: its connector loads all groups or none. vLLM 0.32 on a CPU answers
otherwise with such a draft than without it, by itself, so there would be nothing to compare with.

Where the draft's layers look at the next token, too (EAGLE), the last place of a block depends on what follows it. The
engine's own caches compute that place anew, its connector takes it as it is, as vLLM does by itself.
"""

from collections.abc import Sequence
from typing import Any

WITHOUT_KV = ("ngram", "ngram_gpu", "suffix")
# methods for which the engine's lookups ask for what they load and no more; for others (MTP) it drops what it has found
SHARED = ("draft_model", "eagle", "eagle3")
DRAFT_MODEL_PREFIX = "draft_model."


def unsupported(config: Any) -> str:
    """The method of an engine that drafts in a way that does not join; empty for any other."""
    chosen = config.speculative_config
    return "" if chosen is None or chosen.method in (*WITHOUT_KV, *SHARED) else str(chosen.method)


def models(config: Any) -> list[Any]:
    """The configuration of the model that drafts, where it keeps KV."""
    chosen = config.speculative_config
    return [chosen.draft_model_config] if chosen is not None and chosen.method in SHARED else []


def is_drafts(layers: Sequence[str], config: Any) -> bool:
    """Whether all these attention layers are a draft model's: it bears its prefix, or counts on after the model's."""
    if not models(config):
        return False
    own = config.model_config.get_total_num_hidden_layers()
    return all(name.startswith(DRAFT_MODEL_PREFIX) or _number(name) >= own for name in layers)


def _number(layer: str) -> int:
    """The layer's place in the model, by the name that its module has; -1 where there is none."""
    return next((int(part) for part in layer.split(".") if part.isdecimal()), -1)
