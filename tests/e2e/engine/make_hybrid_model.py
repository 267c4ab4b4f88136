"""Makes a small random model with window and full attention layers: make_hybrid_model.py TOKENIZER_DIR TARGET_DIR.

The engine gives it three KV-cache groups, two of them with a window that reaches into two of our blocks. The weights
are wide, so that its answers are sharp and depend on what it has read.
Run by the engine's interpreter, which has torch and transformers.
"""

import sys

import torch
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

source, target = sys.argv[1:]
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(source)
config = Gemma3TextConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    sliding_window=160,
    max_position_embeddings=2048,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    initializer_range=0.25,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
Gemma3ForCausalLM(config).float().save_pretrained(target)
tokenizer.save_pretrained(target)
