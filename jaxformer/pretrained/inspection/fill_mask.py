"""Fills the mask tokens of a text with a masked language model."""

from typing import NamedTuple

import jax
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.data.tokenizers.special_tokens import mask_names
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.pretrained.inspection.tokens import TextTokenizer, check_fits, open_tokenizer
from jaxformer.pretrained.model import Pretrained, check_pretrained
from jaxformer.pretrained.outputs import forward

_LOGITS = ("logits", "prediction_logits")
"""The names of the logits over the vocabulary in transformers."""


class Filled(NamedTuple):
    """A token predicted for a mask."""

    score: float
    """Its probability."""
    token: int
    """Its id."""
    token_str: str
    """Its text."""
    sequence: str
    """The text with this mask replaced by the token."""


def fill_mask(pretrained: Pretrained, text: str, *, k: int = 5) -> list[list[Filled]]:
    """Predicts the masked tokens of a text.

        p(token at mask m) = softmax(logits_m)

    Each of several masks is predicted while the others stay masked.
    """
    check_pretrained("pretrained", pretrained)
    if "masked_language_model" not in [head.name for head in pretrained.config.heads]:
        raise ConfigError(
            f"{pretrained.folder or 'the model'} is a {pretrained.checkpoint.architecture.name}: "
            "must have a masked language model head, as BERT, RoBERTa and models trained with "
            f"MaskedLM() have; {_alternative(pretrained)}"
        )
    size = pretrained.config.vocab_size
    is_count = isinstance(k, int) and 1 <= k <= size
    check_argument("k", k, is_count, f"an integer from 1 to the vocabulary's size, {size}")
    tokenizer = open_tokenizer(pretrained)
    mask = _mask_token(tokenizer, text)
    ids = np.array([token.id for token in tokenizer.tokens(text, parse_special=True)])
    check_fits("text", ids, pretrained.config.position)
    outputs = forward(
        pretrained, {"input_ids": ids[None], "attention_mask": np.ones_like(ids)[None]}
    )
    logits = next(outputs[name] for name in _LOGITS if name in outputs)[0]
    decode = tokenizer.rust.decode
    places = np.flatnonzero(ids == tokenizer.id_of(mask))
    found = []
    for place in places:
        probabilities = np.asarray(jax.nn.softmax(logits[place]))
        order = np.argsort(-probabilities, kind="stable")[:k]
        row = []
        for token in order.tolist():
            filled = ids.copy()
            filled[place] = token
            sequence = decode(filled.tolist(), skip_special_tokens=len(places) == 1)
            name = decode([token], skip_special_tokens=False)
            row.append(Filled(float(probabilities[token]), token, name, sequence))
        found.append(row)
    return found


def _alternative(pretrained: Pretrained) -> str:
    """Describes the heads or the use of a model that cannot fill masks."""
    folder = pretrained.folder or "DIR"
    config = pretrained.config
    if config.predicts_next_token:
        does = "answers a text" if config.is_encoder_decoder else "continues a text"
        return f'this one {does}: jaxformer generate {folder} --prompt "..."'
    return f"this one has {', '.join(head.name for head in config.heads) or 'none'}"


def _mask_token(tokenizer: TextTokenizer, text: str) -> str:
    """Returns the model's mask token, which the text must contain."""
    mask = tokenizer.mask_token
    if mask is None:
        raise ConfigError("the tokenizer has no mask token, so a text cannot have masks")
    if not isinstance(text, str) or mask not in text:
        others = [name for name in mask_names() if isinstance(text, str) and name in text]
        advice = f"; write {mask} for {others[0]}, the mask token of other models" if others else ""
        raise ArgumentError(
            f"text = {text!r}: must hold this model's mask token, {mask}, where a token is "
            f"hidden{advice}"
        )
    return mask
