"""The models and batches that the contenders of families.py share."""

import numpy as np

BERT = {"vocab_size": 30522, "num_layers": 12, "model_dim": 768, "num_heads": 12, "mlp_dim": 3072}
T5 = {"vocab_size": 32128, "num_layers": 6, "model_dim": 512, "num_heads": 8, "mlp_dim": 2048}

MASKED_SHARE = 0.15
# Of T5's 512 tokens of input: spans of three, 15 % of the text (Raffel et al., section 3.1.4).
TARGET_SHARE = 114 / 512


def masked_batch(batch: int, length: int) -> dict[str, np.ndarray]:
    """Tokens of which 15 % are predicted; int32 and float32 `[batch, length]`."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, BERT["vocab_size"], (2, batch, length), dtype=np.int32)
    weights = (random.random((batch, length)) < MASKED_SHARE).astype(np.float32)
    return {"inputs": tokens[0], "targets": tokens[1], "weights": weights}


def corrupted_batch(batch: int, length: int) -> dict[str, np.ndarray]:
    """Inputs `[batch, length]`, and targets of the length of span corruption."""
    random = np.random.default_rng(0)
    size = round(length * TARGET_SHARE)
    inputs = random.integers(0, T5["vocab_size"], (batch, length), dtype=np.int32)
    targets = random.integers(0, T5["vocab_size"], (batch, size), dtype=np.int32)
    shifted = np.concatenate([np.zeros((batch, 1), np.int32), targets[:, :-1]], axis=1)
    weights = np.ones((batch, size), np.float32)
    return {
        "inputs": inputs,
        "decoder_inputs": shifted,
        "targets": targets,
        "weights": weights,
    }
