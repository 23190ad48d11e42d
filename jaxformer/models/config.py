"""The configurations of the families."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from jaxformer.checks import between, check_fields
from jaxformer.errors import check_field
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.patches import resize_positions
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import Learned, T5Bias
from jaxformer.models.heads.base import Head
from jaxformer.models.heads.labels import Classification
from jaxformer.models.heads.poolers import Pooler
from jaxformer.models.heads.vocabulary import LanguageModel, MaskedLanguageModel
from jaxformer.nn.config import MOST_LAYERS, SIZE, TextConfig, TransformerConfig
from jaxformer.nn.residual import PostNorm, Residual

POSITION_TABLE = "transformer.inputs.position_table"


@dataclass(frozen=True)
class DecoderConfig(TextConfig):
    """A decoder alone: each token sees those before it (GPT, Llama)."""

    embedding_projection: Literal["input", "both"] = "input"
    """Where embeddings narrower than the stream are projected: "input": to it, after positions and
    norm, with a bias (ALBERT); "both": to it first, and back at the end, without (OPT 350M)."""
    heads: tuple[Head, ...] = (LanguageModel(),)
    """What is predicted from the hidden states."""

    @property
    def output_width(self) -> int:
        return self.embedding_width if self.embedding_projection == "both" else self.model_dim


def check_no_windows(config: TransformerConfig):
    """Raises a ConfigError where a window would hide the tokens ahead from an encoder."""
    plain = set(config.windows) == {None}
    check_field(config, "windows", plain, "(None,): windows look back, which is for decoders")


@dataclass(frozen=True)
class EncoderConfig(TextConfig):
    """An encoder alone: each token sees all others (BERT, RoBERTa, ALBERT, ERNIE)."""

    windows_ahead: ClassVar[bool] = True
    """Windows reach as far ahead as back."""
    position: Position = Learned(max_length=512)
    """Learned, Sinusoidal, RoPE, T5Bias or another scheme."""
    norm: Norm = LayerNorm(eps=1e-12)
    """LayerNorm or RMSNorm."""
    residual: Residual = PostNorm()
    """Where the norm sits: PostNorm, PreNorm, SandwichNorm, Parallel."""
    embedding_norm: Norm | None = LayerNorm(eps=1e-12)
    """A norm right after the embedding; None: none."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"] = "gelu"
    """The feed-forward nonlinearity."""
    gated: bool = False
    """A gated feed-forward layer."""
    attention_bias: bool = True
    """Biases of the query, key and value projections."""
    attention_output_bias: bool = True
    """Bias of the attention's output projection."""
    mlp_bias: bool = True
    """Biases of the feed-forward layer."""
    head_bias: bool = True
    """Bias of the logits over the vocabulary."""
    depth_scaled_init: bool = False
    """Smaller initial weights where a projection writes to the residual stream (GPT-2)."""
    dropout: float = 0.1
    """Dropout of the embeddings and of every sublayer's output."""
    attention_dropout: float = 0.1
    """Dropout of the attention probabilities."""

    token_types: int = 0
    """Rows of the table of token types: 2 in BERT (first and second sentence); 0: no table."""
    task_types: int = 0
    """Rows of the table of tasks (ERNIE); 0: no table."""
    pooler: Literal["tanh", "relu", "gelu"] | None = None
    """Activation of a dense layer on the first token's state, which classifiers read: "tanh"
    (BERT), "relu" (DistilBERT) or "gelu" (ELECTRA). None: they read the state itself."""
    heads: tuple[Head, ...] = (MaskedLanguageModel(),)
    """What is predicted from the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("token_types", "task_types"):
            check_field(self, name, getattr(self, name) >= 0, "0 or more")

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each table of type embeddings, by the batch's name of the ids."""
        tables = {"token_types": self.token_types, "task_types": self.task_types}
        return {name: rows for name, rows in tables.items() if rows}


@dataclass(frozen=True)
class EncoderDecoderConfig(TextConfig):
    """An encoder, and a decoder that reads its output (the 2017 Transformer, T5, BART)."""

    num_decoder_layers: int | None = None
    """Blocks of the decoder; None: num_layers, as many as the encoder has."""
    position: Position = T5Bias(bidirectional=True)
    """The encoder's positional scheme."""
    decoder_position: Position = T5Bias(bidirectional=False)
    """The decoder's positional scheme."""
    share_embeddings: bool = True
    """Encoder and decoder look up the same table."""
    heads: tuple[Head, ...] = (LanguageModel(),)
    """What is predicted from the decoder's hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_no_windows(self)
        if self.num_decoder_layers is not None:
            check_fields(self, "model", num_decoder_layers=between(1, MOST_LAYERS))
            fits = self.num_decoder_layers % self.layer_repeats == 0
            wanted = f"a multiple of layer_repeats = {self.layer_repeats}"
            check_field(self, "num_decoder_layers", fits, wanted)
        self.decoder_position.validate_sizes(model_dim=self.model_dim, head_dim=self.head_width)

    @property
    def decoder_layers(self) -> int:
        """The number of blocks of the decoder."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


@dataclass(frozen=True)
class VisionConfig(TransformerConfig):
    """An encoder over the patches of an image (ViT)."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images in pixels."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch; they divide those of the image."""
    channels: int = 3
    """Colours of a pixel."""
    crop: bool = False
    """Pixels beyond the last whole patch are left out (SigLIP cuts 384 into 27 x 14); False: there
    must be none."""
    patch_bias: bool = True
    """Bias of the linear map of the patches."""
    class_token: bool = True
    """A learned token before the patches, whose state stands for the image."""
    distillation_token: bool = False
    """Another one after it, whose state is asked for what a teacher says (DeiT)."""
    mask_token: bool = False
    """A learned token that takes the place of hidden patches (DINOv2)."""
    pooler: Literal["tanh", "relu", "gelu"] | Pooler | None = None
    """Activation of a dense layer on the first token's state; or NormPooler (CLIP), AttentionPooler
    (SigLIP). None: classifiers read that state itself."""
    position: Position = Learned(max_length=197)
    """Learned, with a row for the class token and every patch; Sinusoidal2D; Sinusoidal or another
    scheme of one axis, in which the patches follow one another row by row."""
    norm: Norm = LayerNorm(eps=1e-6)
    """LayerNorm or RMSNorm."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"] = "gelu"
    """The feed-forward nonlinearity."""
    gated: bool = False
    """A gated feed-forward layer."""
    attention_bias: bool = True
    """Biases of the query, key and value projections."""
    attention_output_bias: bool = True
    """Bias of the attention's output projection."""
    mlp_bias: bool = True
    """Biases of the feed-forward layer."""
    heads: tuple[Head, ...] = (Classification(num_labels=1000),)
    """What is predicted from the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_no_windows(self)
        check_fields(self, "model", channels=SIZE)
        for pixels, patch in zip(self.image_size, self.patch_size, strict=True):
            whole = self.crop or (patch > 0 and pixels % patch == 0)
            fits = 0 < patch <= pixels and whole
            check_field(self, "patch_size", fits, f"a divisor of image_size = {self.image_size}")
        after = self.class_token or not self.distillation_token
        check_field(self, "distillation_token", after, "False: there is no class token")
        self.position.validate_grid(self.grid, self.num_prefix)

    @property
    def num_prefix(self) -> int:
        """How many tokens come before the patches."""
        return int(self.class_token) + int(self.distillation_token)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (rows, columns) = self.image_size, self.patch_size
        return height // rows, width // columns

    @property
    def num_tokens(self) -> int:
        """T: the patches, and what comes before them."""
        return self.grid[0] * self.grid[1] + self.num_prefix

    def adapted(self, name, value, source):
        """Resizes learned positions where the other model's images have another grid of patches.

        Reference:
          Dosovitskiy et al., 2020 (https://arxiv.org/abs/2010.11929), section 3.2.
        """
        if name != POSITION_TABLE or not isinstance(source, VisionConfig):
            return value
        learned = isinstance(self.position, Learned) and isinstance(source.position, Learned)
        if not learned or source.grid == self.grid or source.num_prefix != self.num_prefix:
            return value
        table, prefix = jnp.asarray(value), self.num_prefix
        return np.asarray(resize_positions(table, source.grid, self.grid, prefix=prefix))
