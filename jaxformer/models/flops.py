"""Model FLOPs counted from the configuration: XLA's own count sees a scanned layer only once."""

from dataclasses import dataclass

from jaxformer.models.build import ModelConfig
from jaxformer.models.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, VisionConfig
from jaxformer.models.heads.vocabulary import MaskedLanguageModel
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
        """Forward and backward (twice the forward): recomputation is not counted.

        Args:
            causal: Count only the allowed half of attention (the stricter convention); False counts
                all of it, as PaLM's appendix B and most reports do.
        """
        return 3.0 * (self.products + (self.causal_attention if causal else self.attention))


def decoder_flops(config: DecoderConfig, length: int) -> TokenFlops:
    """The FLOPs per token of a decoder on sequences of `length` tokens."""
    products = _layers(config, config.num_layers) + _vocabulary(config)
    return TokenFlops(2 * products, *_self_attention(config, config.num_layers, length, True))


def encoder_flops(config: EncoderConfig, length: int) -> TokenFlops:
    """The FLOPs per token of an encoder whose heads predict a token at every place."""
    products = _layers(config, config.num_layers)
    if any(isinstance(head, MaskedLanguageModel) for head in config.heads):
        products += config.model_dim * config.embedding_width + _vocabulary(config)
    return TokenFlops(2 * products, *_self_attention(config, config.num_layers, length, False))


def encoder_decoder_flops(
    config: EncoderDecoderConfig, length: int, decoder_length: int
) -> TokenFlops:
    """The FLOPs per *input* token of an encoder-decoder; `decoder_length` targets cost theirs."""
    share, layers = decoder_length / length, config.decoder_layers
    # Cross-attention projects queries and outputs for each target, keys and values for each input.
    dim, width = config.model_dim, config.head_width
    cross = 2 * dim * width * (share * config.num_heads + config.kv_heads) * layers
    products = _layers(config, config.num_layers) + share * _layers(config, layers) + cross
    products += share * _vocabulary(config)
    pairs = 4 * config.num_heads * width * layers * length * share
    encoder = _self_attention(config, config.num_layers, length, False)
    decoder = _self_attention(config, layers, decoder_length, True)
    attention, causal = (e + share * d + pairs for e, d in zip(encoder, decoder, strict=True))
    return TokenFlops(2 * products, attention, causal)


def vision_flops(config: VisionConfig) -> TokenFlops:
    """The FLOPs per token (patch or class token) of a vision transformer."""
    rows, columns = config.patch_size
    products = (
        _layers(config, config.num_layers) + rows * columns * config.channels * config.model_dim
    )
    attention = _self_attention(config, config.num_layers, config.num_tokens, causal=False)
    return TokenFlops(2 * products, *attention)


def model_flops(config: ModelConfig, lengths: dict[str, int]) -> TokenFlops:
    """The FLOPs per input token of a model on rows of these lengths (see `Data.lengths`)."""
    if isinstance(config, DecoderConfig):
        return decoder_flops(config, lengths["inputs"])
    if isinstance(config, EncoderConfig):
        return encoder_flops(config, lengths["inputs"])
    if isinstance(config, VisionConfig):
        return vision_flops(config)
    return encoder_decoder_flops(config, lengths["inputs"], lengths["decoder_inputs"])


def _layers(config: TransformerConfig, num_layers: int) -> int:
    """Multiply-adds per token of blocks without cross-attention, but for their attention."""
    dim, width = config.model_dim, config.head_width
    projections = 2 * dim * width * (config.num_heads + config.kv_heads)
    feed_forward = (3 if config.gated else 2) * dim * config.mlp_dim
    return num_layers * (projections + feed_forward)


def _vocabulary(config: TextConfig) -> int:
    return config.embedding_width * config.vocab_size


def _self_attention(
    config: TransformerConfig, num_layers: int, length: int, causal: bool
) -> tuple[float, float]:
    """FLOPs per token over every key of the window, and over the keys that the mask allows."""
    windows = [min(window or length, length) for window in config.windows]
    per_key = 2 * 2 * config.num_heads * config.head_width * num_layers // len(windows)
    if not causal:
        return per_key * sum(windows), per_key * sum(windows)
    # The first w queries see 1, 2, ..., w keys, all later ones w.
    mean_keys = [(w * (w + 1) / 2 + (length - w) * w) / length for w in windows]
    return per_key * sum(windows), per_key * sum(mean_keys)
