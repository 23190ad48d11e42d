"""Flax NNX modules: parameters with logical axes around the functions of `functional`."""

from jaxformer.functional.experts.losses import BalanceLoss, ZLoss
from jaxformer.nn.attention import (
    Attention,
    CrossAttention,
    DotProductAttention,
    DotProductCrossAttention,
    SelfAttention,
)
from jaxformer.nn.block import BlockConfig, TransformerBlock, UnusedCrossAttention
from jaxformer.nn.cache import CacheShape, Chunk
from jaxformer.nn.config import (
    Embeddings,
    TextConfig,
    TokenEmbeddings,
    TransformerConfig,
    VocabularyLogits,
)
from jaxformer.nn.convolution import ConvolutionBlock
from jaxformer.nn.disentangled import DisentangledAttention
from jaxformer.nn.experts import Experts, SharedExpert
from jaxformer.nn.feedforward import MLP, FeedForward
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.latent_attention import LatentAttention
from jaxformer.nn.layers import Embedding, Linear, NormLayer, constant, normal, parameter
from jaxformer.nn.residual import (
    BranchNorm,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
    SandwichNorm,
    StreamNorm,
)
from jaxformer.nn.sparse_attention import BlockSparseAttention, TransientGlobalAttention
from jaxformer.nn.stack import Block, Stack
from jaxformer.nn.sublayer import (
    Context,
    CrossAttentionConfig,
    FeedForwardConfig,
    SelfAttentionConfig,
    Sublayer,
    SublayerConfig,
)
from jaxformer.nn.transformer import Transformer

__all__ = [
    "MLP",
    "Attention",
    "BalanceLoss",
    "Block",
    "BlockConfig",
    "BlockSparseAttention",
    "BranchNorm",
    "CacheShape",
    "Chunk",
    "Context",
    "ConvolutionBlock",
    "CrossAttention",
    "CrossAttentionConfig",
    "DisentangledAttention",
    "DotProductAttention",
    "DotProductCrossAttention",
    "Embedding",
    "Embeddings",
    "Experts",
    "FeedForward",
    "FeedForwardConfig",
    "InputLayer",
    "LatentAttention",
    "Linear",
    "NormLayer",
    "Parallel",
    "PostNorm",
    "PreNorm",
    "Residual",
    "SandwichNorm",
    "SelfAttention",
    "SelfAttentionConfig",
    "SharedExpert",
    "Stack",
    "StreamNorm",
    "Sublayer",
    "SublayerConfig",
    "TextConfig",
    "TokenEmbeddings",
    "Transformer",
    "TransformerBlock",
    "TransformerConfig",
    "TransientGlobalAttention",
    "UnusedCrossAttention",
    "VocabularyLogits",
    "ZLoss",
    "constant",
    "normal",
    "parameter",
]
