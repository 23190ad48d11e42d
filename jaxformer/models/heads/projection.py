"""A head that maps a sequence or image to a vector in a space shared by two models."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import check_field
from jaxformer.errors import ConfigError
from jaxformer.models.heads.base import Head, HeadModule, embedding, pool
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal


@dataclass(frozen=True)
class Projection(Head):
    r"""A linear projection of the pooled state, for comparison with another model's (CLIP).

    .. math:: y = h W + b

    It has no loss.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 2.3.
    """

    name: ClassVar[str] = "projection"
    predicts: ClassVar[bool] = True
    width: int = 512
    """Width of the vector."""
    pooling: Literal["first", "last"] = "first"
    """The input state: the first token (after the pooler), or the last real token."""
    bias: bool = False
    """Whether the layer has a bias b (SigLIP)."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "width", self.width >= 1, "at least 1")

    def build(self, key, config):
        return ProjectionHead(key, config, self)

    def reads(self, rows, length):
        raise ConfigError("model.heads: Projection has no training loss: use another head")

    def prediction(self, values, options):
        return embedding(values, options.normalize)


class ProjectionHead(HeadModule):
    """Pooling and a linear layer."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: Projection):
        """Declares the layer."""
        inputs = {"embed": config.output_width}
        outputs = {"labels": head.width}
        self.output = Linear(key, inputs, outputs, normal(config.init_std), bias=head.bias)
        self.pooling = head.pooling

    def scores(self, outputs, key=None):
        """`[B, width]`, float32."""
        pooled = outputs.pooled
        if self.pooling == "last":
            pooled = pool(outputs.hidden, outputs.valid, "last")
        return self.output(pooled).astype(jnp.float32)
