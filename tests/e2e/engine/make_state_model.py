"""Makes a small random model with recurrent layers beside full attention: make_state_model.py TARGET_DIR.

Its recurrent layers are gated delta networks, which vLLM's CPU build computes, in bfloat16 alone. The engine gives it
two KV-cache groups. The weights are wide, so that its answers are sharp and depend on what it has read.
Run by the engine's interpreter, which has torch and transformers.
"""

import sys

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

torch.manual_seed(0)
config = Qwen3NextConfig(
    vocab_size=2048,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    num_attention_heads=5,
    num_key_value_heads=5,  # 32 tokens of a layer take no less than a state, so that the engine's block stays at that
    head_dim=128,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,  # the one size that the CPU's kernel takes
    linear_value_head_dim=128,
    linear_num_key_heads=1,
    linear_num_value_heads=1,
    max_position_embeddings=2048,
    layer_types=["linear_attention", "full_attention"] * 2,
    mlp_only_layers=[1, 2, 3],  # the engine wants one with experts
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=128,
    initializer_range=0.25,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)
Qwen3NextForCausalLM(config).bfloat16().save_pretrained(sys.argv[1])
