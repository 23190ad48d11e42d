"""Dual encoders: a model of texts and one of images, whose vectors are compared (CLIP, SigLIP)."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import scope
from jaxformer.functional.dropout import split
from jaxformer.functional.losses.contrastive import everywhere
from jaxformer.functional.positions.base import Position
from jaxformer.models.decoder import DecoderConfig
from jaxformer.models.encoder import EncoderConfig
from jaxformer.models.flops import TokenFlops
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads
from jaxformer.models.heads.contrastive import Contrastive, unit_vectors
from jaxformer.models.heads.projection import Projection
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.vision import VisionConfig
from jaxformer.nn.layers import constant, parameter


@dataclass(frozen=True)
class DualEncoderConfig(ModelConfig):
    """A model of texts and one of images, whose vectors are compared (CLIP, SigLIP).

    The vector of a text or of an image is what the head Projection of its model gives, or the
    pooled state of a model without one.
    """

    required: ClassVar[tuple[str, ...]] = ("inputs", "images")
    input_fields: ClassVar[tuple[str, ...]] = ("vocab_size", "image_size", "channels")
    text: DecoderConfig | EncoderConfig
    """The model of texts."""
    image: VisionConfig
    """The model of images."""
    logit_scale: float = math.log(1 / 0.07)
    """The initial value of the logarithm of what similarities are multiplied by."""
    max_logit_scale: float | None = math.log(100)
    """The largest value of that logarithm: each update is cut off there; None: it may grow."""
    logit_bias: float | None = None
    """The initial value of what is added to similarities (SigLIP: -10); None: there is none."""
    heads: tuple[Head, ...] = (Contrastive(),)
    """What is learned of the similarities: Contrastive or SigmoidContrastive."""

    def __post_init__(self):
        check_types(self)
        widths = [_width(part) for part in (self.text, self.image)]
        if widths[0] != widths[1]:
            raise ConfigError(
                f"model.text gives vectors of {widths[0]} numbers and model.image of {widths[1]}, "
                "which cannot be compared: give both a head Projection of the same width"
            )

    @property
    def parts(self):
        return {"text": self.text, "image": self.image}

    @property
    def stacks(self):
        return *self.text.stacks, *self.image.stacks

    def with_fields(self, **changes: Any) -> Self:
        """A copy with other values of some fields.

        Those of this class are set as they are; all others, such as `compute_dtype` and
        `scan_layers`, in both models, or in the one that has them.

        Args:
            **changes: Field -> value.

        Returns:
            The copy.

        Raises:
            ConfigError: There is no such field, or it cannot have that value.
        """
        names = {each.name for each in fields(self)}
        own = {name: value for name, value in changes.items() if name in names}
        shared = {name: value for name, value in changes.items() if name not in names}
        fields_of = {name: {each.name for each in fields(x)} for name, x in self.parts.items()}
        known = set().union(*fields_of.values())

        def changed(name: str, part: ModelConfig) -> ModelConfig:
            # A field that neither has is refused by the first.
            fits = {k: v for k, v in shared.items() if k in fields_of[name] or k not in known}
            return part.with_fields(**fits)

        parts = {name: changed(name, part) for name, part in self.parts.items()}
        return replace(self, **(parts | own))

    @property
    def vocab_size(self) -> int:
        """The tokens of the model of texts."""
        return self.text.vocab_size

    @property
    def position(self) -> Position:
        """The positional scheme of the model of texts."""
        return self.text.position

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each table of type embeddings of the model of texts."""
        return getattr(self.text, "type_sizes", {})

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images in pixels."""
        return self.image.image_size

    @property
    def interpolate_positions(self) -> bool:
        """Whether images may have another size."""
        return self.image.interpolate_positions

    @property
    def channels(self) -> int:
        """Colours of a pixel."""
        return self.image.channels

    def build(self, key):
        return DualEncoder(key, self)

    def input_spec(self, rows, lengths):
        text = self.text.input_spec(rows, lengths)
        segments = {"segments": array(rows, lengths["inputs"])}
        return text | segments | self.image.input_spec(rows, lengths)

    def flops(self, lengths):
        """The FLOPs per token of a text; its image adds its own."""
        text, image = self.text.flops(lengths), self.image.flops(lengths)
        share = self.image.num_tokens / lengths["inputs"]
        return TokenFlops(
            text.products + round(share * image.products),
            text.attention + share * image.attention,
            text.causal_attention + share * image.causal_attention,
        )

    def check_lengths(self, lengths):
        self.text.check_lengths(lengths)

    def adapted(self, name, value, source):
        part, _, rest = name.partition(".")
        if part not in self.parts or part not in source.parts:
            return value
        return self.parts[part].adapted(rest, value, source.parts[part])


class DualEncoder(Model):
    r"""Two models, and the similarity of their vectors.

    .. math:: x_{ij} = e^{s} \frac{t_i \cdot v_j}{|t_i| |v_j|} + b

    for text i and image j.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 2.3.
    """

    def __init__(self, key: jax.Array, config: DualEncoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 5)
        self.text = config.text.build(keys[0])
        self.image = config.image.build(keys[1])
        scale, bias = config.logit_scale, config.logit_bias
        self.logit_scale = parameter(
            keys[2], (), (), constant(scale), largest=config.max_logit_scale
        )
        self.logit_bias = None if bias is None else parameter(keys[3], (), (), constant(bias))
        self.heads = build_heads(keys[4], config, config.heads)

    def vectors(self, batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
        """The vectors of a batch, of length 1.

        Args:
            batch: "inputs" and what else the model of texts reads, "images", or one of both.
            key: The dropout key; None in evaluation.

        Returns:
            "text" and "image", those whose inputs are there, float32 `[B, width]`.
        """
        outputs = self._outputs(batch, key)
        return {name: unit_vectors(vector(getattr(self, name), x)) for name, x in outputs.items()}

    def similarities(self, text: jax.Array, image: jax.Array) -> jax.Array:
        """The similarity of each text and each image.

        Args:
            text: Vectors of length 1, `[texts, width]`.
            image: Vectors of length 1, `[images, width]`.

        Returns:
            float32 `[texts, images]`. On a mesh each device has the rows of its own texts.
        """
        # Every device compares its texts with the images of all.
        image = everywhere(image)
        products = jnp.matmul(text, image.T, precision=jax.lax.Precision.HIGHEST)
        logits = products * jnp.exp(self.logit_scale[...].astype(jnp.float32))
        if self.logit_bias is not None:
            logits += self.logit_bias[...].astype(jnp.float32)
        return logits

    def outputs(self, batch, key=None):
        outputs = self._outputs(batch, key)
        vectors = {
            name: unit_vectors(vector(getattr(self, name), x)) for name, x in outputs.items()
        }
        return outputs["text"]._replace(similarities=self.similarities(**vectors))

    def _outputs(self, batch, key: jax.Array | None) -> dict[str, ModelOutput]:
        """The outputs of both models, or of the one whose inputs are there."""
        keys, found = split(key, 2), {}
        for (name, reads), own in zip((("text", "inputs"), ("image", "images")), keys, strict=True):
            if reads in batch:
                with scope(name):
                    found[name] = getattr(self, name).outputs(batch, own)
        return found


def vector(model: Model, outputs: ModelOutput) -> jax.Array:
    """The vector of each row: what the head Projection gives, or the pooled state.

    Args:
        model: One of the models of a dual encoder.
        outputs: Its outputs.

    Returns:
        `[B, width]`.
    """
    if "projection" in model.heads:
        return model.heads["projection"].scores(outputs)
    return outputs.pooled


def _width(config: ModelConfig) -> int:
    """The size of a model's vectors."""
    widths = [head.width for head in config.heads if isinstance(head, Projection)]
    return widths[0] if widths else config.model_dim
