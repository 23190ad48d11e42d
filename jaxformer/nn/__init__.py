"""Flax NNX modules: parameters with logical axes around the functions of `functional`."""

from jaxformer.nn.attention import Attention, CrossAttention, SelfAttention
from jaxformer.nn.config import TextConfig, TransformerConfig
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.layers import Embedding, Linear, NormLayer
from jaxformer.nn.residual import (
    BranchNorm,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
    SandwichNorm,
)
from jaxformer.nn.stack import Block, Stack
from jaxformer.nn.sublayer import Context, Sublayer
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
    "Sublayer",
    "TextConfig",
    "Transformer",
    "TransformerConfig",
    "cross_block",
    "self_block",
]
