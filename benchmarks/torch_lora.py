"""The same step with transformers and PEFT, or without factors, in PyTorch."""

import resource
from collections.abc import Callable

import peft
import torch
from shapes import random_tokens
from torch_step import training_step
from transformers import LlamaConfig, LlamaForCausalLM


def step(
    shape: dict, batch: int, length: int, dtype: str, lora: dict | None, compiled: bool
) -> tuple[Callable[[], None], dict]:
    """Prepares a step; `lora` has fields of `LoraConfig`; None: all weights are trained."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["model_dim"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        intermediate_size=shape["mlp_dim"],
        tie_word_embeddings=shape["tie_embeddings"],
        max_position_embeddings=length,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    if lora is not None:
        # The usual recipe: the base in the compute dtype, the factors in float32.
        model = peft.get_peft_model(model.to(getattr(torch, dtype)), peft.LoraConfig(**lora))
    tokens = random_tokens(shape, batch, length)
    inputs, targets = {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    facts = {
        "resident_megabytes_before": round(before / 1024),
        "parameter_megabytes": sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6,
        "optimizer_megabytes": 8 * learning / 1e6,
        "gradient_megabytes": 4 * learning / 1e6,
        "learning_parameters": learning,
    }
    return training_step(model, inputs, targets, dtype, compiled, 1e-3), facts
