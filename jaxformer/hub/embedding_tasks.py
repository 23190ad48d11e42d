"""What is asked of the towers of vision-language models: one vector for a text or an image."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks import Task, with_ends
from jaxformer.models import Projection
from jaxformer.models.heads.base import pool

_OLD_END = 2


@dataclass(frozen=True)
class ImageEmbeddingTask(Task):
    """A projection of the pooled state of an image."""

    def heads(self, hf_config):
        return (Projection(hf_config.number("projection_dim")),)

    def outputs(self, model, states, inputs, hf_config):
        return {"image_embeds": model.heads["projection"].scores(states)}


@dataclass(frozen=True)
class EndTokenTask(Task):
    """The state at a text's end token, without a projection (CLIP)."""

    def heads(self, hf_config):
        hf_config.number("eos_token_id")  # A list of several is refused before anything is read.
        return ()

    def outputs(self, model, states, inputs, hf_config):
        valid = end_places(inputs["input_ids"], hf_config)
        return {"pooler_output": pool(states.hidden, valid, "last")}

    def example_labels(self, rng, inputs, hf_config):
        """No labels, but ids with two end tokens in each row, of which the first counts."""
        return {"input_ids": with_ends(inputs, hf_config.number("eos_token_id"), twice=True)}


@dataclass(frozen=True)
class TextEmbeddingTask(EndTokenTask):
    """A projection of the state at a text's end token (CLIP)."""

    def heads(self, hf_config):
        width = hf_config.number("projection_dim")
        return (*super().heads(hf_config), Projection(width, pooling="last"))

    def outputs(self, model, states, inputs, hf_config):
        valid = end_places(inputs["input_ids"], hf_config)
        return {"text_embeds": model.heads["projection"].scores(states._replace(valid=valid))}


@dataclass(frozen=True)
class LastTokenTask(Task):
    """A projection of the state at the last place of a row, padding or not (SigLIP)."""

    def heads(self, hf_config):
        width = hf_config.number("projection_size", None) or hf_config.number("hidden_size")
        return (Projection(width, pooling="last", bias=True),)

    def outputs(self, model, states, inputs, hf_config):
        return {"pooler_output": model.heads["projection"].scores(states._replace(valid=None))}


def end_places(ids: jax.Array, hf_config: HFConfig) -> jax.Array:
    """Where each text ends, one place in a row: bool `[B, T]` of ids `[B, T]`.

    That is the first end token; or, in files from when they gave a wrong one (2), the largest id.
    """
    end = hf_config.number("eos_token_id")
    found = ids if end == _OLD_END else (ids == end).astype(jnp.int32)
    return jnp.arange(ids.shape[1])[None, :] == jnp.argmax(found, axis=1, keepdims=True)
