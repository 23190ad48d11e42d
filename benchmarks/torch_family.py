"""The same steps with transformers and PyTorch: autocast, fused AdamW, fused attention."""

from collections.abc import Callable

import numpy as np
from family_shapes import BERT, T5, corrupted_batch, masked_batch
from torch_step import training_step
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration


def bert(batch: int, length: int, dtype: str, compiled: bool) -> Callable[[], None]:
    """BERT base, masked tokens."""
    config = BertConfig(
        vocab_size=BERT["vocab_size"],
        hidden_size=BERT["model_dim"],
        num_hidden_layers=BERT["num_layers"],
        num_attention_heads=BERT["num_heads"],
        intermediate_size=BERT["mlp_dim"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM._from_config(config, attn_implementation="sdpa")
    arrays = masked_batch(batch, length)
    return _step(model, {"input_ids": arrays["inputs"]}, arrays, dtype, compiled)


def t5(batch: int, length: int, dtype: str, compiled: bool) -> Callable[[], None]:
    """T5 small, corrupted spans."""
    config = T5Config(
        vocab_size=T5["vocab_size"],
        d_model=T5["model_dim"],
        num_layers=T5["num_layers"],
        num_heads=T5["num_heads"],
        d_ff=T5["mlp_dim"],
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    arrays = corrupted_batch(batch, length)
    inputs = {"input_ids": arrays["inputs"], "decoder_input_ids": arrays["decoder_inputs"]}
    return _step(T5ForConditionalGeneration(config), inputs, arrays, dtype, compiled)


def _step(model, inputs: dict, arrays: dict, dtype: str, compiled: bool) -> Callable[[], None]:
    # Only masked positions count, with equal weights.
    targets = np.where(arrays["weights"] > 0, arrays["targets"], -100)
    return training_step(model, inputs, targets, dtype, compiled, 1e-4)
