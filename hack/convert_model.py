"""Converts SmolLM2's GGUF file to a folder that vLLM's CPU build loads: convert_model.py SOURCE_DIR FILE TARGET_DIR.

transformers dequantises the file but refuses to save a model that it still takes for quantised, so the weights
move into a fresh model of the same configuration.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

source, file, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
dropped = (
    "quantization_config",
    "architectures",
    "model_type",
    "transformers_version",
    "dtype",
    "_name_or_path",
)
fields = {k: v for k, v in quantised.config.to_dict().items() if k not in dropped}
model = LlamaForCausalLM(LlamaConfig(**fields)).float()
missing = model.load_state_dict(quantised.state_dict(), strict=False)
if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
    raise SystemExit(f"weights don't fit the configuration: {missing}")
model.save_pretrained(target)
tokenizer.save_pretrained(target)
