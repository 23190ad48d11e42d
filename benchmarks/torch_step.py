"""The same step with transformers and PyTorch: autocast, fused AdamW, fused attention."""

from collections.abc import Callable

import numpy as np
import torch
from shapes import random_tokens
from transformers import LlamaConfig, LlamaForCausalLM


def step(shape: dict, batch: int, length: int, dtype: str, compiled: bool) -> Callable[[], None]:
    """Prepares a step of Llama, see `training_step`."""
    torch.backends.cuda.matmul.allow_tf32 = True
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
    tokens = random_tokens(shape, batch, length)
    inputs, targets = {"input_ids": tokens[:, :-1]}, tokens[:, 1:]
    return training_step(LlamaForCausalLM(config), inputs, targets, dtype, compiled, 1e-3)


def training_step(
    model: torch.nn.Module,
    inputs: dict[str, np.ndarray],
    targets: np.ndarray,
    dtype: str,
    compiled: bool,
    learning_rate: float,
) -> Callable[[], None]:
    """Prepares a step on the GPU if there is one.

    Args:
        model: A class of transformers with logits.
        inputs: Its inputs by name.
        targets: The targets, -100 at positions that do not count.
        dtype: "float32", or "bfloat16" by autocast.
        compiled: Whether the model runs by torch.compile.
        learning_rate: AdamW's.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    inputs = {name: torch.tensor(x, device=device).long() for name, x in inputs.items()}
    targets = torch.tensor(targets, device=device).long()

    def loss() -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(**inputs).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    compute_loss = torch.compile(loss) if compiled else loss

    def run():
        compute_loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run
