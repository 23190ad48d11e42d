"""The contenders of generate.py by transformers and PyTorch."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def decode(
    layers: int, batch: int, prompt: int, new: int, dtype: str, static: bool
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds tokens."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device=device).eval()
    # The buffers are computed when a model is made, which on "meta" none is.
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
    cache = 2 * layers * 4 * 64 * embedding.element_size() * (prompt + new / 2) * batch
    return run, {"bytes_per_step": weights + cache}


def prefill(
    layers: int, batch: int, prompt: int, new: int, dtype: str, static: bool
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds one token."""
    del new
    return decode(layers, batch, prompt, 1, dtype, static)
