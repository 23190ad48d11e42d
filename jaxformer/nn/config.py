"""The configuration of a transformer: sizes and component objects, checked on construction."""

import abc
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import jax.numpy as jnp

from jaxformer.checks import (
    POSITIVE,
    RATE,
    at_least,
    between,
    check_field,
    check_fields,
    check_types,
    optional,
)
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import Saveable
from jaxformer.functional.attention.api import Implementation
from jaxformer.functional.norms import Norm, RMSNorm
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.nn.residual import PreNorm, Residual

SIZE = between(1, 2**31 - 1)
"""The size of an axis, whose indices are int32."""
SIZE_OR_NONE = optional(SIZE)
MOST_LAYERS = 10_000
"""The maximum number of layers, ten times that of the deepest published models."""


@dataclass(frozen=True)
class RematNames:
    """Keeps the activations of these names, and recomputes all others.

    The names are those of `functional.activations.SAVEABLE`. Offloaded activations stay in the
    pinned memory of the host, and are copied back while the backward pass works on a later layer. A
    stack keeps the input of every block in any case: on the device, unless "block_input" is
    offloaded.

    References:
        Chen et al., Training Deep Nets with Sublinear Memory Cost
        (https://arxiv.org/abs/1604.06174); `jax.checkpoint_policies`.
    """

    save: tuple[Saveable, ...] = ()
    """Names that stay in the memory of the device."""
    offload: tuple[Saveable, ...] = ()
    """Names that move to the memory of the host."""

    def __post_init__(self):
        check_types(self)
        both = [name for name in self.save if name in self.offload]
        rule = f"without {', '.join(both)}, which save has too: a name is in one of them"
        check_field(self, "offload", not both, rule, "model.remat")


Remat = Literal["none", "dots", "full"] | RematNames
"""What the backward pass recomputes: nothing, all but matrix products (dots), all (full), or all
but activations of certain names."""


@dataclass(frozen=True, kw_only=True)
class InputEmbeddings:
    """The common fields of `Embeddings` and `TokenEmbeddings`."""

    norm: Norm | None = None
    """A norm right after the embedding (BLOOM, BERT)."""
    scale: float = 1.0
    """Multiplies the embeddings: sqrt(model_dim) in the 2017 Transformer and Gemma."""
    dropout: float | None = None
    """Dropout of the embeddings. None: the model's `dropout`."""
    project_before_norm: ClassVar[bool] = False
    """Whether narrow embeddings are projected before the norm."""
    zero_padding: ClassVar[bool] = False
    """Whether the embeddings of padding are zeros."""

    def __post_init__(self):
        check_types(self, "model.embeddings")
        check_fields(self, "model.embeddings", scale=POSITIVE, dropout=optional(RATE))


@dataclass(frozen=True, kw_only=True)
class Embeddings(InputEmbeddings):
    """The embeddings of patches of images or of frames of sounds."""


@dataclass(frozen=True, kw_only=True)
class TokenEmbeddings(InputEmbeddings):
    """The embeddings of tokens."""

    dim: int | None = None
    """Width of the embedding table (E), projected to model_dim (ALBERT). None: model_dim."""
    projection: Literal["input", "both"] = "input"
    """Projection of embeddings that are narrower than the residual stream. "input": after positions
    and norm, with a bias (ALBERT); "both": directly at the input and back at the output, without
    bias (OPT 350M), in decoders only.
    """
    project_before_norm: bool = False
    """Embeddings narrower than model_dim are projected to it before the norm, without a bias
    (DeBERTa)."""
    padding_id: int | None = None
    """A token whose lookups have no gradient, like PyTorch's `padding_idx`."""
    zero_padding: bool = False
    """The embeddings of padding are zeros after the norm (DeBERTa, ESM)."""
    token_types: int = 0
    """Number of token types: 2 in BERT (first and second sentence); 0 disables them."""
    task_types: int = 0
    """Number of task types (ERNIE); 0 disables them."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            "model.embeddings",
            dim=SIZE_OR_NONE,
            padding_id=optional(at_least(0)),
            token_types=at_least(0),
            task_types=at_least(0),
        )


@dataclass(frozen=True, kw_only=True)
class VocabularyLogits:
    """Describes the logits over the vocabulary."""

    bias: bool = False
    """Whether they have a bias (BERT, GPT-J, Phi)."""
    bias_learns: bool = True
    """False: training does not update the bias (BART)."""
    scale: float = 1.0
    """Multiplies the hidden states before the products: model_dim^-0.5 in T5 1.0."""
    softcap: float | None = None
    """Bounds the logits (Gemma 2)."""

    def __post_init__(self):
        check_types(self, "model.logits")
        check_fields(self, "model.logits", scale=POSITIVE, softcap=optional(POSITIVE))


@dataclass(frozen=True)
class TransformerConfig(abc.ABC):
    """The configuration of a stack of transformer blocks, which all model families share."""

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
    """Width of a head's queries and keys (H, d_k). None: model_dim / num_heads."""
    value_dim: int | None = None
    """Width of a head's values (d_v). None: head_dim."""

    position: Position = RoPE(theta=10_000.0)
    """RoPE, Learned, Sinusoidal, Integer, Binary, ALiBi, T5Bias, T5GlobalBias or NoPosition."""
    window_position: RoPE | None = None
    """RoPE of the layers with a window (Gemma 3 gives them another base). None: `position`."""
    relative_position: Position | None = None
    """A second scheme for attention biases, if `position` has none: T5Bias with Learned in MPNet,
    PatchBias in BEiT; or DistanceEmbedding, for DisentangledAttention. It counts all tokens of a
    row, padding included, regardless of their positions."""
    norm: Norm = RMSNorm(eps=1e-5)
    """LayerNorm or RMSNorm."""
    residual: Residual = PreNorm()
    """Where the norms are: PreNorm, PostNorm, BranchNorm, SandwichNorm, Parallel."""
    embeddings: Embeddings = Embeddings()
    """Norm, scale and dropout of the embeddings."""
    windows_ahead: ClassVar[bool] = False
    """Whether windows extend as far ahead as back."""
    windows: tuple[int | None, ...] = (None,)
    """Sliding windows of successive layers, repeated to the depth; None is global attention. In an
    encoder-decoder they are the encoder's."""
    rope_layers: tuple[bool, ...] | None = None
    """Which of the layers that `windows` has entries for rotate queries and keys; the others have
    no positions (SmolLM 3). None: all rotate."""
    layer_repeats: int = 1
    """How many consecutive layers share parameters; num_layers in ALBERT."""

    dropout: float = 0.0
    """Dropout of the embeddings and of every sublayer's output."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""
    depth_scaled_init: bool = True
    """Divide init_std by sqrt(2 num_layers) in projections to the residual stream (GPT-2)."""

    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """The dtype of activations and products; parameters are float32."""
    attention: Implementation = "auto"
    """The attention implementation."""
    scan_layers: bool = True
    """Scan over the layers (compile time flat in depth) or unroll them (faster on a CPU)."""
    remat: Remat = "none"
    """What the backward pass recomputes: nothing, all but matrix products (dots), all (full), or
    all but the activations that a RematNames keeps on the device or offloads to the host."""

    def __post_init__(self):
        check_types(self)
        widths = ("model_dim", "head_dim", "value_dim", "mlp_dim")
        sizes = (*widths, "num_heads", "num_kv_heads", "layer_repeats")
        check_fields(self, "model", num_layers=between(1, MOST_LAYERS))
        check_fields(self, "model", **dict.fromkeys(sizes, SIZE_OR_NONE))
        check_fields(self, "model", init_std=POSITIVE, dropout=RATE)
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
        for position in (self.position, self.window_position or self.position):
            position.validate_sizes(model_dim=self.model_dim, head_dim=self.head_width)
        apart = self.residual.first_norm or len(self.windows) == self.num_layers
        rule = "True: windows does not have an entry for every layer"
        check_field(self.residual, "first_norm", apart, rule, "model.residual")
        used = self.window_position is None or any(self.windows)
        check_field(self, "window_position", used, "None: no layer has a window")
        sizes = bool(self.windows) and all(map(SIZE_OR_NONE.allows, self.windows))
        check_field(self, "windows", sizes, f"a tuple, each of it {SIZE_OR_NONE.expected}", "model")
        if self.rope_layers is not None:
            paired = len(self.rope_layers) == len(self.windows)
            wanted = f"a tuple with an entry for each of the {len(self.windows)} in windows"
            check_field(self, "rope_layers", paired, wanted, "model")
            rotates = isinstance(self.position, RoPE)
            check_field(self, "rope_layers", rotates, "None: position is not RoPE", "model")
        if self.num_layers % (len(self.windows) * self.layer_repeats):
            raise ConfigError(
                f"model.num_layers = {self.num_layers} is not divisible by the {len(self.windows)} "
                f"entries of model.windows x model.layer_repeats = {self.layer_repeats}"
            )

    @property
    def layer_kinds(self) -> tuple[tuple[int | None, bool], ...]:
        """The window of each layer of a group, and whether it rotates queries and keys."""
        rotate = self.rope_layers or (True,) * len(self.windows)
        return tuple(zip(self.windows, rotate, strict=True))

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads (K)."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_width(self) -> int:
        """The width of a head's queries and keys (H)."""
        return self.model_dim // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def value_width(self) -> int:
        """The width of a head's values."""
        return self.head_width if self.value_dim is None else self.value_dim

    @property
    def encoder_width(self) -> int:
        """The width of the encoder outputs that cross-attention reads."""
        return self.model_dim

    @property
    def output_width(self) -> int:
        """The width of the states that heads read."""
        return self.model_dim

    @property
    def dtype(self) -> jnp.dtype:
        """The compute dtype."""
        return jnp.dtype(self.compute_dtype)

    @property
    def output_std(self) -> float:
        """The initial standard deviation of projections that write to the residual stream."""
        outputs = 2 * self.num_layers if self.depth_scaled_init else 1
        return self.init_std / outputs**0.5


@dataclass(frozen=True)
class TextConfig(TransformerConfig, abc.ABC):
    """The configuration of a transformer that reads token ids."""

    vocab_size: int = field(kw_only=True)
    """Rows of the embedding table (V)."""
    embeddings: TokenEmbeddings = TokenEmbeddings()
    """Width, padding, types, norm, scale and dropout of the embeddings."""
    tie_embeddings: bool = True
    """Logits over the vocabulary are products with the embedding table."""
    logits: VocabularyLogits = VocabularyLogits()
    """Bias, scale and bound of those logits."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "model", vocab_size=SIZE)
        known = self.embeddings.padding_id is None or self.embeddings.padding_id < self.vocab_size
        rule = f"below vocab_size = {self.vocab_size}"
        check_field(self.embeddings, "padding_id", known, rule, "model.embeddings")

    @property
    def embedding_width(self) -> int:
        """The width of the embedding table (E)."""
        return self.model_dim if self.embeddings.dim is None else self.embeddings.dim
