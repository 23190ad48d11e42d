"""Gemma: multi-query attention with wide heads, scaled embeddings, norms of 1 + scale."""

from jaxformer.functional.norms import RMSNorm
from jaxformer.zoo.llama import llama
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "gemma-2b",
        "gemma.py:2b",
        llama(
            18,
            2048,
            8,
            16384,
            vocab_size=256000,
            num_kv_heads=1,
            head_dim=256,
            norm=RMSNorm(eps=1e-6, unit_offset=True),
            activation="gelu_tanh",
            embedding_scale=2048**0.5,
            tie_embeddings=True,
        ),
        "2,506,434,560",
        "Gemma Team, 2024, tables 1 and 2, https://arxiv.org/abs/2403.08295",
        "the vocabulary padded to 256,128 tokens",
    ),
)
