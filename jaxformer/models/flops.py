"""Model FLOPs counted from the configuration: XLA's own count sees a scanned layer only once."""

from dataclasses import dataclass

from jaxformer.models.config import DecoderConfig


@dataclass(frozen=True)
class TokenFlops:
    """Multiply-adds, counted as 2 FLOPs, that one token costs in a forward pass."""

    products: int
    """Products with parameters: projections, feed-forward layers and the output head."""
    attention: float
    """Queries by keys and weights by values, over every key of the window (no causal saving)."""
    causal_attention: float
    """The same over the keys that the mask allows, on average over the sequence."""

    def training(self, *, causal: bool) -> float:
        """Forward and backward (twice the forward): recomputation is not counted.

        Args:
          causal: count only the allowed half of attention (the stricter convention); False counts
            all of it, as PaLM's appendix B and most reports do.
        """
        return 3.0 * (self.products + (self.causal_attention if causal else self.attention))


def decoder_flops(config: DecoderConfig, length: int) -> TokenFlops:
    """The FLOPs per token of a decoder on sequences of `length` tokens."""
    dim, width = config.model_dim, config.head_width
    projections = 2 * dim * width * (config.num_heads + config.kv_heads)
    feed_forward = (3 if config.gated else 2) * dim * config.mlp_dim
    products = config.num_layers * (projections + feed_forward) + dim * config.vocab_size
    windows = [min(window or length, length) for window in config.windows]
    repeats = config.num_layers // len(windows)
    # The first w queries see 1, 2, ..., w keys, all later ones w.
    mean_keys = [(w * (w + 1) / 2 + (length - w) * w) / length for w in windows]
    per_key = 2 * 2 * config.num_heads * width
    return TokenFlops(
        products=2 * products,
        attention=per_key * repeats * sum(windows),
        causal_attention=per_key * repeats * sum(mean_keys),
    )
