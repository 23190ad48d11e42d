"""Checks that a model and a tokenizer have the same vocabulary."""

from jaxformer.config.experiment import check_vocabulary
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError
from jaxformer.models import CTC, ModelConfig


def check_tokenizer(model: ModelConfig, tokenizer: Tokenizer | None) -> None:
    """Raises ConfigError unless a model has a row or a class for every token.

    Rows are those of its embedding table; classes are those of its CTC head, whose blank must be
    the padding.
    """
    if tokenizer is None:
        return
    if "vocab_size" in model.input_fields:
        check_vocabulary(model.vocab_size, tokenizer.vocab_size)
    for head in model.heads:
        if isinstance(head, CTC):
            _check_labels(head, tokenizer)


def _check_labels(head: CTC, tokenizer: Tokenizer) -> None:
    if head.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, more than the vocab_size = "
            f"{head.vocab_size} of the CTC head: set it to {tokenizer.vocab_size}"
        )
    if head.blank != tokenizer.pad_id:
        raise ConfigError(
            f"the CTC head has blank = {head.blank}: must be the padding id of the tokenizer, "
            f"{tokenizer.pad_id}"
        )
