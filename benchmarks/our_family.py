"""jaxformer's training steps of families.py."""

from collections.abc import Callable
from dataclasses import replace

from family_shapes import corrupted_batch, masked_batch
from our_step import training_step

from jaxformer.config import TrainConfig
from jaxformer.models import MaskedLanguageModel
from jaxformer.zoo import SYSTEMS


def bert(batch: int, length: int, options: dict) -> Callable[[], None]:
    """BERT base, masked tokens."""
    model = SYSTEMS["bert-base"].config
    heads = (MaskedLanguageModel(),)
    model = model.with_fields(**{"dropout": 0.0, "self_attention.dropout": 0.0})
    model = replace(model, pooler=None, heads=heads, **options)
    return training_step(model, TrainConfig(), masked_batch(batch, length), 1e-4)


def t5(batch: int, length: int, options: dict) -> Callable[[], None]:
    """T5 small, corrupted spans."""
    model = replace(SYSTEMS["t5-small"].config, **options)
    return training_step(model, TrainConfig(), corrupted_batch(batch, length), 1e-4)
