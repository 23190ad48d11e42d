"""What a stack of blocks is made of: sizes and component objects, checked on construction."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional.attention import Implementation
from jaxformer.functional.feedforward import activation
from jaxformer.functional.norms import Norm, RMSNorm
from jaxformer.functional.position import Position
from jaxformer.functional.positional_schemes import RoPE
from jaxformer.nn.residual import PreNorm, Residual


@dataclass(frozen=True)
class TransformerConfig:
    """A stack of transformer blocks: what the families have in common."""

    num_layers: int
    """Blocks (L)."""
    model_dim: int
    """Width of the residual stream (D)."""
    num_heads: int
    """Query heads (N)."""
    mlp_dim: int
    """Hidden width of the feed-forward layer (F)."""
    num_kv_heads: int | None = None
    """Key/value heads (K); a divisor of num_heads. None: as many as query heads."""
    head_dim: int | None = None
    """Width of a head (H). None: model_dim / num_heads."""

    position: Position = RoPE(theta=10_000.0)
    """RoPE, Learned, Sinusoidal, Integer, Binary, ALiBi, T5Bias or NoPosition."""
    norm: Norm = RMSNorm(eps=1e-5)
    """LayerNorm or RMSNorm."""
    residual: Residual = PreNorm()
    """Where the norm sits: PreNorm, PostNorm, SandwichNorm, Parallel."""
    query_key_norm: Norm | None = None
    """A norm over each head's queries and keys, before the positions (Qwen 3)."""
    embedding_norm: Norm | None = None
    """A norm right after the embedding (BLOOM, BERT)."""
    windows: tuple[int | None, ...] = (None,)
    """Sliding windows of successive layers, repeated to the depth; None is global attention."""
    layer_repeats: int = 1
    """How often the parameters of a layer are applied in a row; num_layers in ALBERT, which shares
    them across its whole depth."""

    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"] = "silu"
    """The feed-forward nonlinearity."""
    gated: bool = True
    """A gated feed-forward layer: SwiGLU, GeGLU, ReGLU by activation."""
    attention_bias: bool = False
    """Biases of the query, key and value projections."""
    attention_output_bias: bool = False
    """Bias of the attention's output projection."""
    mlp_bias: bool = False
    """Biases of the feed-forward layer."""
    attention_scale: float | None = None
    """Multiplies the attention logits. None: 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    """Bounds the attention logits (Gemma 2)."""
    embedding_scale: float = 1.0
    """Multiplies the embeddings: sqrt(model_dim) in the 2017 Transformer and Gemma."""

    dropout: float = 0.0
    """Dropout of the embeddings and of every sublayer's output."""
    attention_dropout: float = 0.0
    """Dropout of the attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    depth_scaled_init: bool = True
    """Divide it by sqrt(2 num_layers) where a projection writes to the residual stream (GPT-2)."""

    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """The dtype of activations and products; parameters are float32."""
    attention: Implementation = "auto"
    """The attention implementation."""
    scan_layers: bool = True
    """Scan over the layers (compile time flat in depth) or unroll them (faster on a CPU)."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes: none, dots (all but matrix products), full (all)."""

    def __post_init__(self):
        sizes = ("num_layers", "model_dim", "num_heads", "mlp_dim", "layer_repeats")
        for name in sizes:
            check_positive(name, getattr(self, name))
        for name in ("num_kv_heads", "head_dim", "attention_softcap", "attention_scale"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("init_std", "embedding_scale"):
            check_positive(name, getattr(self, name))
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"model.{name} = {getattr(self, name)}: give a rate in [0, 1)")
        activation(self.activation)
        for name, choices in (
            ("compute_dtype", ("bfloat16", "float32")),
            ("attention", get_args(Implementation)),
            ("remat", ("none", "dots", "full")),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"model.{name} = {value!r}: one of {', '.join(choices)}")
        if self.head_dim is None and self.model_dim % self.num_heads:
            raise ConfigError(
                f"model.model_dim = {self.model_dim} is not divisible by model.num_heads = "
                f"{self.num_heads}: change one, or set model.head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise ConfigError(
                f"model.num_kv_heads = {self.num_kv_heads} does not divide model.num_heads = "
                f"{self.num_heads}: each key/value head serves a whole group of query heads"
            )
        self.position.validate_sizes(model_dim=self.model_dim, head_dim=self.head_width)
        for window in self.windows or (0,):
            if window is not None:
                check_positive("windows", window)
        if self.num_layers % (len(self.windows) * self.layer_repeats):
            raise ConfigError(
                f"model.num_layers = {self.num_layers} is not divisible by the {len(self.windows)} "
                f"entries of model.windows x model.layer_repeats = {self.layer_repeats}"
            )

    def adapted(self, name: str, value: np.ndarray, source: "TransformerConfig") -> np.ndarray:
        """A parameter of another model as this one needs it to start from.

        Args:
          name: the parameter's path.
          value: what it is there.
          source: the other model.

        Returns:
          `value` itself, or another array where something has to be done to it.
        """
        del name, source
        return value

    @property
    def kv_heads(self) -> int:
        """K: the number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_width(self) -> int:
        """H: the width of a head."""
        return self.model_dim // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def dtype(self) -> jnp.dtype:
        """The compute dtype."""
        return jnp.dtype(self.compute_dtype)

    @property
    def output_std(self) -> float:
        """The initial standard deviation of projections that write to the residual stream."""
        return (
            self.init_std / (2 * self.num_layers) ** 0.5
            if self.depth_scaled_init
            else self.init_std
        )


@dataclass(frozen=True)
class TextConfig(TransformerConfig):
    """Blocks that read token ids."""

    vocab_size: int = field(kw_only=True)
    """Rows of the embedding table (V)."""
    embedding_dim: int | None = None
    """Width of the embedding table (E), projected to model_dim (ALBERT). None: model_dim."""
    tie_embeddings: bool = True
    """Logits over the vocabulary are products with the embedding table."""
    head_bias: bool = False
    """Bias of those logits (BERT, GPT-J, Phi)."""
    logit_scale: float = 1.0
    """Multiplies the hidden states before those products: model_dim^-0.5 in T5 1.0."""
    logit_softcap: float | None = None
    """Bounds those logits (Gemma 2)."""

    def __post_init__(self):
        check_positive("vocab_size", self.vocab_size)
        for name in ("embedding_dim", "logit_softcap", "logit_scale"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        super().__post_init__()

    @property
    def embedding_width(self) -> int:
        """E: the width of the embedding table."""
        return self.model_dim if self.embedding_dim is None else self.embedding_dim


def check_positive(name: str, value: float):
    """Raises a ConfigError that names the field of the model unless `value` is positive."""
    if not value > 0:
        raise ConfigError(f"model.{name} = {value}: must be positive")
