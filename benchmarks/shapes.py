"""The models and batches that the contenders share."""

import numpy as np

SHAPES = {
    # A Llama of 32M parameters, which two CPU cores can train.
    "32m": {
        "vocab_size": 8192,
        "num_layers": 8,
        "model_dim": 512,
        "num_heads": 8,
        "num_kv_heads": 4,
        "mlp_dim": 1408,
        "tie_embeddings": False,
    },
    # TinyLlama, 1.1B parameters: for generation.
    "tinyllama": {
        "vocab_size": 32000,
        "num_layers": 22,
        "model_dim": 2048,
        "num_heads": 32,
        "num_kv_heads": 4,
        "mlp_dim": 5632,
        "tie_embeddings": False,
    },
    # Llama 3 8B.
    "8b": {
        "vocab_size": 128256,
        "num_layers": 32,
        "model_dim": 4096,
        "num_heads": 32,
        "num_kv_heads": 8,
        "mlp_dim": 14336,
        "tie_embeddings": False,
    },
    # Eight of its layers, with a quarter of its vocabulary: for training on one GPU.
    "8b_layers": {
        "vocab_size": 32064,
        "num_layers": 8,
        "model_dim": 4096,
        "num_heads": 32,
        "num_kv_heads": 8,
        "mlp_dim": 14336,
        "tie_embeddings": False,
    },
    # Llama 3.2 1B: for one GPU.
    "1b": {
        "vocab_size": 128256,
        "num_layers": 16,
        "model_dim": 2048,
        "num_heads": 32,
        "num_kv_heads": 8,
        "mlp_dim": 8192,
        "tie_embeddings": True,
    },
}


def random_tokens(shape: dict, batch: int, length: int) -> np.ndarray:
    """The same `[batch, length + 1]` int32 tokens for every contender."""
    random = np.random.default_rng(0)
    return random.integers(0, shape["vocab_size"], (batch, length + 1), dtype=np.int32)
