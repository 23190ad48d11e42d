"""Pure functions: arrays in, arrays out. No mesh, no config, no trainer, no parameters."""

from jaxformer.functional.absolute import (
    binary_code,
    integer_code,
    learned_code,
    sinusoidal_code,
    sinusoidal_grid_code,
)
from jaxformer.functional.attention import attention
from jaxformer.functional.dropout import dropout
from jaxformer.functional.feedforward import ACTIVATIONS, activation, feed_forward, quick_gelu
from jaxformer.functional.linear import linear
from jaxformer.functional.losses import LossSums, chunked_cross_entropy, cross_entropy
from jaxformer.functional.masks import (
    All,
    Band,
    Dense,
    KeyPadding,
    Mask,
    Prefix,
    Segments,
    causal,
    sliding_window,
)
from jaxformer.functional.norms import LayerNorm, Norm, RMSNorm, layer_norm, rms_norm
from jaxformer.functional.patches import patches, resize_positions
from jaxformer.functional.position import Bias, NoPosition, Position
from jaxformer.functional.positional_schemes import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)
from jaxformer.functional.relative import alibi_bias, alibi_slopes, t5_bias, t5_bucket
from jaxformer.functional.rope import apply_rope, inverse_frequencies, rotary_angles
from jaxformer.functional.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoScaling,
    Scaling,
    YaRN,
)
from jaxformer.functional.sampling import (
    greedy,
    min_p_filter,
    sample,
    scale_temperature,
    top_k_filter,
    top_p_filter,
)

__all__ = [
    "ACTIVATIONS",
    "ALiBi",
    "All",
    "Band",
    "Bias",
    "Binary",
    "Dense",
    "DynamicNTK",
    "Integer",
    "KeyPadding",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "LossSums",
    "Mask",
    "NoPosition",
    "NoScaling",
    "Norm",
    "Position",
    "Prefix",
    "RMSNorm",
    "RoPE",
    "Scaling",
    "Segments",
    "Sinusoidal",
    "Sinusoidal2D",
    "T5Bias",
    "YaRN",
    "activation",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "attention",
    "binary_code",
    "causal",
    "chunked_cross_entropy",
    "cross_entropy",
    "dropout",
    "feed_forward",
    "greedy",
    "integer_code",
    "inverse_frequencies",
    "layer_norm",
    "learned_code",
    "linear",
    "min_p_filter",
    "patches",
    "quick_gelu",
    "resize_positions",
    "rms_norm",
    "rotary_angles",
    "sample",
    "scale_temperature",
    "sinusoidal_code",
    "sinusoidal_grid_code",
    "sliding_window",
    "t5_bias",
    "t5_bucket",
    "top_k_filter",
    "top_p_filter",
]
