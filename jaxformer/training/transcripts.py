"""Checks that a CTC head and a tokenizer have the same classes."""

from collections.abc import Sequence

from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError
from jaxformer.models import CTC, Head


def check_transcripts(heads: Sequence[Head], tokenizer: Tokenizer) -> None:
    """Checks that a CTC head has a class for each token, and that the blank is the padding.

    Args:
        heads: The heads of the model.
        tokenizer: The loaded tokenizer.

    Raises:
        ConfigError: It has not; the message says what to set.
    """
    for head in heads:
        if isinstance(head, CTC) and head.vocab_size < tokenizer.vocab_size:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, more than the vocab_size = "
                f"{head.vocab_size} of the CTC head: set it to {tokenizer.vocab_size}"
            )
        if isinstance(head, CTC) and head.blank != tokenizer.pad_id:
            raise ConfigError(
                f"the CTC head has blank = {head.blank}: must be the padding id of the tokenizer, "
                f"{tokenizer.pad_id}"
            )
