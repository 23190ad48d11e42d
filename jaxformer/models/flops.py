"""Model FLOPs counted from the configuration: XLA's own count sees a scanned layer only once."""

from dataclasses import dataclass

from jaxformer.nn.config import TextConfig, TransformerConfig


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
        """FLOPs of a forward and a backward pass (twice the forward), without recomputation.

        Args:
            causal: Count only the allowed half of attention (the stricter convention); False counts
                all of it, as PaLM's appendix B and most reports do.

        Returns:
            FLOPs per token.
        """
        return 3.0 * (self.products + (self.causal_attention if causal else self.attention))


def block_products(config: TransformerConfig, num_layers: int) -> int:
    """Multiply-adds per token with the parameters of blocks without cross-attention."""
    dim, width = config.model_dim, config.head_width
    projections = 2 * dim * width * (config.num_heads + config.kv_heads)
    feed_forward = (3 if config.gated else 2) * dim * config.mlp_dim
    return num_layers * (projections + feed_forward)


def vocabulary_products(config: TextConfig) -> int:
    """Multiply-adds per token of the logits over the vocabulary."""
    return config.embedding_width * config.vocab_size


def attention_flops(
    config: TransformerConfig, num_layers: int, length: int, *, causal: bool
) -> tuple[float, float]:
    """FLOPs per token of self-attention on sequences of `length` tokens.

    Args:
        config: Heads, head width and windows.
        num_layers: Blocks.
        length: Tokens of a sequence.
        causal: Whether a token sees only those before it.

    Returns:
        Over every key of the window, and over the keys that the mask allows.
    """
    windows = [min(window or length, length) for window in config.windows]
    per_key = 2 * 2 * config.num_heads * config.head_width * num_layers // len(windows)
    if not causal:
        return per_key * sum(windows), per_key * sum(windows)
    # The first w queries see 1, 2, ..., w keys, all later ones w.
    mean_keys = [(w * (w + 1) / 2 + (length - w) * w) / length for w in windows]
    return per_key * sum(windows), per_key * sum(mean_keys)
