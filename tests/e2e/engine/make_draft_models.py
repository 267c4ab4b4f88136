"""Makes what drafts for a small model: make_draft_models.py SMALL_MODEL TARGET_DIR.

TARGET_DIR/window is the model itself whose layers look at a window, so that they are a KV-cache group of their own;
TARGET_DIR/eagle is an EAGLE head of random weights, with more KV heads than the model. Run by the engine's interpreter,
which has torch and transformers.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

source, target = map(Path, sys.argv[1:])
model = LlamaForCausalLM.from_pretrained(source)
shape = model.config.to_dict()
window = LlamaForCausalLM(
    LlamaConfig(**{**shape, "sliding_window": 160, "layer_types": ["sliding_attention"] * shape["num_hidden_layers"]})
).float()
window.load_state_dict(model.state_dict())
window.save_pretrained(target / "window")

torch.manual_seed(3)
config = LlamaConfig(**{**shape, "num_hidden_layers": 1, "num_key_value_heads": 4})
layer = LlamaForCausalLM(config).float().model.layers[0]
weights = {f"layers.0.{name}": value for name, value in layer.state_dict().items() if not name.startswith("input_")}
weights["fc.weight"] = torch.randn(config.hidden_size, 2 * config.hidden_size) * 0.1
weights["embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
(target / "eagle").mkdir(parents=True)
save_file(weights, target / "eagle" / "model.safetensors", metadata={"format": "pt"})
config.save_pretrained(target / "eagle")
