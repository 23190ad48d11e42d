"""What a mask says of the tokens of a row: which are padding, and of which document each is."""

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.functional.masks import KeyPadding, Mask, Segments, terms_of


def real_tokens(mask: Mask) -> jax.Array | None:
    """The tokens that a mask does not make padding, bool `[B or 1, T]`; None: it makes none."""
    real = None
    for term in terms_of(mask):
        if isinstance(term, KeyPadding | Segments):
            own = term.valid if isinstance(term, KeyPadding) else term.key > 0
            real = own if real is None else real & own
    return real


def documents_of(mask: Mask, x: jax.Array, asks: str) -> jax.Array:
    """The document of each token of `x` `[B, T, D]`, int `[B, T]`, 0 for padding.

    Args:
        mask: The self-attention mask.
        x: The tokens.
        asks: The setting that asks, for messages: "block = ConvolutionBlock".

    Returns:
        The documents, by a mask of padding and of at most one set of documents.

    Raises:
        ConfigError: The mask has other terms, or two sets of documents.
    """
    segments = jnp.ones(x.shape[:2], jnp.int32)
    terms = terms_of(mask)
    sets = [term for term in terms if isinstance(term, Segments)]
    for term in sets:
        segments = term.key
    if (real := real_tokens(mask)) is not None:
        segments = jnp.where(real, segments, 0)
    known = all(isinstance(term, KeyPadding | Segments) for term in terms)
    if not known or len(sets) > 1:
        raise ConfigError(
            f"model.{asks}: must be another with masks other than those of padding and of one set "
            "of documents; use the default"
        )
    return segments
