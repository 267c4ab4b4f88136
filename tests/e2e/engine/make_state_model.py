"""Makes a small random model with recurrent layers beside full attention: make_state_model.py KIND TARGET_DIR.

KIND: `gated_delta`, of gated delta networks, which vLLM's CPU build computes in bfloat16 alone, or `mamba2`, which it
computes in steps of one block alone: it has no code that takes a state out of the middle of one. The engine gives the
first one two KV-cache groups, and the other one, with twice as many recurrent layers, three. The weights are wide, so
that answers are sharp and depend on what was read. 32 tokens of an attention layer take no less than a state, so that
the engine's block stays at that.
Run by the engine's interpreter, which has torch and transformers.
"""

import sys

import torch
from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

COMMON = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "max_position_embeddings": 2048,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def gated_delta() -> PreTrainedModel:
    config = Qwen3NextConfig(
        **COMMON,
        num_hidden_layers=4,
        layer_types=["linear_attention", "full_attention"] * 2,
        intermediate_size=256,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=128,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,  # the one size that the CPU's kernel takes
        linear_value_head_dim=128,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        mlp_only_layers=[1, 2, 3],  # the engine wants one with experts
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
    )
    return Qwen3NextForCausalLM(config).bfloat16()


def mamba2() -> PreTrainedModel:
    config = GraniteMoeHybridConfig(
        **COMMON,
        num_hidden_layers=6,
        layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
        num_attention_heads=4,
        num_key_value_heads=4,  # of 32 numbers each
        num_local_experts=0,
        shared_intermediate_size=256,
        attention_multiplier=32**-0.5,
        position_embedding_type="rope",
        mamba_expand=2,
        mamba_n_heads=4,
        mamba_d_head=64,
        mamba_d_state=16,
        mamba_d_conv=4,
    )
    return GraniteMoeHybridForCausalLM(config).float()


kind, target = sys.argv[1:]
torch.manual_seed(0)
{"gated_delta": gated_delta, "mamba2": mamba2}[kind]().save_pretrained(target)
