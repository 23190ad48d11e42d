"""What is asked of the towers of vision-language models: one vector for a text or an image."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.hub.settings import Settings
from jaxformer.hub.tasks import Task, with_ends
from jaxformer.models import Projection
from jaxformer.models.heads.base import pool

_OLD_END = 2


@dataclass(frozen=True)
class ImageEmbedding(Task):
    """A projection of the pooled state of an image."""

    def heads(self, settings):
        return (Projection(settings.number("projection_dim")),)

    def outputs(self, model, states, inputs, settings):
        return {"image_embeds": model.heads["projection"].scores(states)}


@dataclass(frozen=True)
class EndState(Task):
    """The state at a text's end token, without a projection (CLIP)."""

    def heads(self, settings):
        settings.number("eos_token_id")  # A list of several is refused before anything is read.
        return ()

    def outputs(self, model, states, inputs, settings):
        valid = end_places(inputs["input_ids"], settings)
        return {"pooler_output": pool(states.hidden, valid, "last")}

    def example_labels(self, rng, inputs, settings):
        """No labels, but ids with two end tokens in each row, of which the first counts."""
        return {"input_ids": with_ends(inputs, settings.number("eos_token_id"), twice=True)}


@dataclass(frozen=True)
class TextEmbedding(EndState):
    """A projection of the state at a text's end token (CLIP)."""

    def heads(self, settings):
        width = settings.number("projection_dim")
        return (*super().heads(settings), Projection(width, pooling="last"))

    def outputs(self, model, states, inputs, settings):
        valid = end_places(inputs["input_ids"], settings)
        return {"text_embeds": model.heads["projection"].scores(states._replace(valid=valid))}


@dataclass(frozen=True)
class LastPlace(Task):
    """A projection of the state at the last place of a row, padding or not (SigLIP)."""

    def heads(self, settings):
        width = settings.number("projection_size", None) or settings.number("hidden_size")
        return (Projection(width, pooling="last", bias=True),)

    def outputs(self, model, states, inputs, settings):
        return {"pooler_output": model.heads["projection"].scores(states._replace(valid=None))}


def end_places(ids: jax.Array, settings: Settings) -> jax.Array:
    """Where each text ends, one place in a row: bool `[B, T]` of ids `[B, T]`.

    That is the first end token; or, in files from when they gave a wrong one (2), the largest id.
    """
    end = settings.number("eos_token_id")
    found = ids if end == _OLD_END else (ids == end).astype(jnp.int32)
    return jnp.arange(ids.shape[1])[None, :] == jnp.argmax(found, axis=1, keepdims=True)
