"""Scaled dot-product attention: one contract, several implementations."""

from jaxformer.functional.attention.api import attention

__all__ = [
    "attention",
]
