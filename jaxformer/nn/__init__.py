"""Thin Flax NNX modules: they declare parameters with their logical axes and call `functional`."""

from jaxformer.nn.attention import Attention, CrossAttention, SelfAttention
from jaxformer.nn.block import Block
from jaxformer.nn.config import TextConfig, TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.embed import Embedding
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import NormLayer
from jaxformer.nn.residual import (
    BranchNorm,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
    SandwichNorm,
)
from jaxformer.nn.stack import Stack
from jaxformer.nn.transformer import Transformer, cross_block, self_block

__all__ = [
    "Attention",
    "Block",
    "BranchNorm",
    "Context",
    "CrossAttention",
    "Embedding",
    "FeedForward",
    "InputLayer",
    "Linear",
    "NormLayer",
    "Parallel",
    "PostNorm",
    "PreNorm",
    "Residual",
    "SandwichNorm",
    "SelfAttention",
    "Stack",
    "TextConfig",
    "Transformer",
    "TransformerConfig",
    "cross_block",
    "self_block",
]
