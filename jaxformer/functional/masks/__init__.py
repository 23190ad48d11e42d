"""Masks: which key each query may attend to."""

from jaxformer.functional.masks.arrays import (
    DenseMask,
    KeyPadding,
    PositionMask,
    Segments,
    real_tokens,
)
from jaxformer.functional.masks.base import (
    All,
    AnyOf,
    Band,
    BlockBand,
    KeyRange,
    Mask,
    Prefix,
    QueryRange,
    block_sparse,
    causal,
    sliding_window,
    terms_of,
)

__all__ = [
    "All",
    "AnyOf",
    "Band",
    "BlockBand",
    "DenseMask",
    "KeyPadding",
    "KeyRange",
    "Mask",
    "PositionMask",
    "Prefix",
    "QueryRange",
    "Segments",
    "block_sparse",
    "causal",
    "real_tokens",
    "sliding_window",
    "terms_of",
]
