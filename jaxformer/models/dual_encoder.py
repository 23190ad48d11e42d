"""Dual encoders: a text and an image model whose embeddings are compared (CLIP, SigLIP)."""

import math
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxformer.checks import FINITE, check_fields, check_types, optional
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import scope
from jaxformer.functional.dropout import split
from jaxformer.functional.losses.contrastive import everywhere
from jaxformer.models.composite import with_shared_fields
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
    """A text model and an image model whose embeddings are compared (CLIP, SigLIP).

    The embedding of a text or an image is the output of its model's Projection head, or the pooled
    state without one.
    """

    required: ClassVar[tuple[str, ...]] = ("inputs", "images")
    input_fields: ClassVar[tuple[str, ...]] = ("vocab_size", "image_size", "channels")
    text: DecoderConfig | EncoderConfig
    """The text model."""
    image: VisionConfig
    """The image model."""
    logit_scale: float = math.log(1 / 0.07)
    """The initial log of the similarities' multiplier."""
    max_logit_scale: float | None = math.log(100)
    """The maximum of this logarithm, applied after each update; None is unlimited."""
    logit_bias: float | None = None
    """The initial bias of similarities (SigLIP: -10); None disables it."""
    heads: tuple[Head, ...] = (Contrastive(),)
    """The loss of the similarities: Contrastive or SigmoidContrastive."""

    def __post_init__(self):
        check_types(self)
        check_fields(
            self,
            "model",
            logit_scale=FINITE,
            max_logit_scale=optional(FINITE),
            logit_bias=optional(FINITE),
        )
        widths = [_width(part) for part in (self.text, self.image)]
        if widths[0] != widths[1]:
            raise ConfigError(
                f"model.text has embeddings of width {widths[0]} and model.image of width "
                f"{widths[1]}, which cannot be compared: give both a Projection head of the same "
                "width"
            )

    @property
    def parts(self):
        return {"text": self.text, "image": self.image}

    @property
    def stacks(self):
        return *self.text.stacks, *self.image.stacks

    def with_fields(self, **changes: Any) -> Self:
        """Returns a copy with its own fields replaced, and others in each model that has them."""
        names = {each.name for each in fields(self)}
        own = {name: changes.pop(name) for name in names if name in changes}
        return replace(self, **(with_shared_fields(self.parts, changes) | own))

    vocab_size = property(attrgetter("text.vocab_size"), doc="The text model's vocabulary size.")
    position = property(attrgetter("text.position"), doc="The text model's positional scheme.")
    image_size = property(attrgetter("image.image_size"), doc="Height and width in pixels.")
    channels = property(attrgetter("image.channels"), doc="Number of image channels.")
    interpolate_positions = property(
        attrgetter("image.interpolate_positions"), doc="Whether images may have another size."
    )

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each type-embedding table of the text model."""
        return getattr(self.text, "type_sizes", {})

    def build(self, key):
        return DualEncoder(key, self)

    def input_spec(self, rows, lengths):
        text = self.text.input_spec(rows, lengths)
        segments = {"segments": array(rows, lengths["inputs"])}
        return text | segments | self.image.input_spec(rows, lengths)

    def flops(self, lengths):
        """Returns the FLOPs per text token, including those of its image."""
        text = self.text.flops(lengths)
        image = self.image.flops(lengths)
        share = self.image.num_tokens / lengths["inputs"]
        return TokenFlops(
            text.products + round(share * image.products),
            text.attention + share * image.attention,
            text.causal_attention + share * image.causal_attention,
        )

    def check_lengths(self, lengths):
        self.text.check_lengths(lengths)


class DualEncoder(Model):
    r"""Two models, and the similarity of their embeddings.

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
        """Returns the normalized embeddings of a batch.

        Args:
            batch: "inputs" and other arrays of the text model, "images", or both.
            key: The dropout key; None in evaluation.

        Returns:
            "text" and "image", for the given inputs, float32 `[B, width]`.
        """
        return self._vectors(self._outputs(batch, key))

    def similarities(self, text: jax.Array, image: jax.Array) -> jax.Array:
        """Returns the similarity of each text and each image.

        Args:
            text: Normalized embeddings, `[texts, width]`.
            image: Normalized embeddings, `[images, width]`.

        Returns:
            float32 `[texts, images]`. On a mesh each device has the rows of its texts.
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
        return outputs["text"]._replace(similarities=self.similarities(**self._vectors(outputs)))

    def _vectors(self, outputs: dict[str, ModelOutput]) -> dict[str, jax.Array]:
        return {name: unit_vectors(vector(getattr(self, name), x)) for name, x in outputs.items()}

    def _outputs(self, batch, key: jax.Array | None) -> dict[str, ModelOutput]:
        """Returns the outputs of the models whose inputs are given."""
        keys, found = split(key, 2), {}
        for (name, reads), own in zip((("text", "inputs"), ("image", "images")), keys, strict=True):
            if reads in batch:
                with scope(name):
                    found[name] = getattr(self, name).outputs(batch, own)
        return found


def vector(model: Model, outputs: ModelOutput) -> jax.Array:
    """Returns the embedding of each row: that of the Projection head, or the pooled state."""
    if "projection" in model.heads:
        return model.heads["projection"].scores(outputs)
    return outputs.pooled


def _width(config: ModelConfig) -> int:
    """Returns the width of a model's embeddings."""
    widths = [head.width for head in config.heads if isinstance(head, Projection)]
    return widths[0] if widths else config.model_dim
