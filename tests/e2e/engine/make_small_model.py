"""Makes a small random model and LoRA adapters for it: make_small_model.py TARGET_DIR SEED; the adapters lie in
TARGET_DIR/adapter-0 and -1. Run by the engine's interpreter, which has torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

RANK = 8
target, seed = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(seed)
config = LlamaConfig(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    initializer_range=0.25,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
LlamaForCausalLM(config).float().save_pretrained(target)
for number in range(2):
    folder = target / f"adapter-{number}"
    folder.mkdir()
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for name, size in (("q_proj", 128), ("v_proj", 64)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, 128) * 0.3
            tensors[f"{stem}.lora_B.weight"] = torch.randn(size, RANK) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**described, "bias": "none", "task_type": "CAUSAL_LM"}))
