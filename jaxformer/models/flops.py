"""Model FLOPs, computed from the configuration, since XLA counts a scanned layer only once."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxformer.nn.config import TextConfig, TransformerConfig
from jaxformer.nn.sublayer import FeedForwardConfig, SublayerConfig


@dataclass(frozen=True)
class TokenFlops:
    """FLOPs per token of a forward pass; a multiply-add counts as 2."""

    products: int
    """Products with parameters: projections, feed-forward layers and the output head."""
    attention: float
    """Queries by keys and weights by values, over every key of the window, ignoring causality."""
    causal_attention: float
    """Queries by keys and weights by values, over unmasked keys, averaged over the sequence."""

    def training(self, *, causal: bool) -> float:
        """Returns the FLOPs of a forward and a backward pass (twice the forward)."""
        # `causal` counts unmasked attention only (the stricter convention); PaLM's appendix B and
        # most reports count all of it.
        return 3.0 * (self.products + (self.causal_attention if causal else self.attention))


def block_products(
    config: TransformerConfig, sublayers: Sequence[SublayerConfig], num_layers: int
) -> int:
    """Returns the multiply-adds per token with the parameters of blocks of these sublayers."""
    products = num_layers * sum(sublayer.products(config) for sublayer in sublayers)
    for sublayer in sublayers:
        if isinstance(sublayer, FeedForwardConfig):
            for first in sublayer.first_layers:
                products += first.products(config) - sublayer.products(config)
    return products


def width_products(config: TransformerConfig, width: int) -> int:
    """Returns the multiply-adds per token of projections from embeddings of a width to the residual
    stream, and from the stream to the states that heads read, if these widths differ.
    """
    others = (width, config.output_width)
    return sum(config.model_dim * other for other in others if other != config.model_dim)


def vocabulary_products(config: TextConfig) -> int:
    """Returns the multiply-adds per token of the vocabulary logits."""
    return config.embedding_width * config.vocab_size


def attention_flops(
    config: TransformerConfig,
    sublayers: Sequence[SublayerConfig],
    num_layers: int,
    length: int,
    *,
    causal: bool,
) -> tuple[float, float]:
    """Returns the FLOPs per token of self-attention on `length` tokens: all, and unmasked ones."""
    windows = [min(window or length, length) for window in config.windows]
    per_pair = sum(sublayer.products_per_pair(config) for sublayer in sublayers)
    per_key = 2 * per_pair * num_layers // len(windows)
    if not causal:
        return per_key * sum(windows), per_key * sum(windows)
    # The first w queries see 1, 2, ..., w keys, and all later ones see w.
    mean_keys = [(w * (w + 1) / 2 + (length - w) * w) / length for w in windows]
    return per_key * sum(windows), per_key * sum(mean_keys)
