"""The contenders of generate.py by transformers and PyTorch."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def decode(
    shape: dict, batch: int, prompt: int, new: int, dtype: str, static: bool
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds tokens."""
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["model_dim"],
        intermediate_size=shape["mlp_dim"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        tie_word_embeddings=shape["tie_embeddings"],
        eos_token_id=None,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device=device).eval()
    # Buffers are computed when a model is created, except on the device "meta".
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    tokens = torch.randint(0, config.vocab_size, (batch, prompt), device=device)
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    if static:
        options["cache_implementation"] = "static"

    def run():
        with torch.no_grad():
            model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        if device == "cuda":
            torch.cuda.synchronize()

    embedding = model.model.embed_tokens.weight
    weights = sum(x.numel() * x.element_size() for x in model.parameters() if x is not embedding)
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    cache *= embedding.element_size() * (prompt + new / 2) * batch
    return run, {"bytes_per_step": weights + cache}


def prefill(
    shape: dict, batch: int, prompt: int, new: int, dtype: str, static: bool
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds one token."""
    del new
    return decode(shape, batch, prompt, 1, dtype, static)
