"""The same step with transformers and PyTorch: autocast, fused AdamW, fused attention."""

from collections.abc import Callable

import torch
from shapes import random_tokens
from transformers import LlamaConfig, LlamaForCausalLM


def step(shape: dict, batch: int, length: int, dtype: str, compiled: bool) -> Callable[[], None]:
    """Prepares a step on the GPU if there is one; `compiled` runs the model by torch.compile."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
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
    )
    model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.from_numpy(random_tokens(shape, batch, length)).long().to(device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def loss() -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(input_ids=inputs, use_cache=False).logits
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
