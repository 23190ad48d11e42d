"""Finds a Flax class by its name."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import did_you_mean
from jaxformer.flax.auto import AUTO_CLASSES
from jaxformer.flax.model import FlaxPreTrainedModel, model_class
from jaxformer.flax.outputs import OUTPUTS
from jaxformer.hub.flax_classes import FLAX_CLASSES


def known() -> list[str]:
    """Returns all names that `find` knows."""
    models = [f"Flax{name}" for names in FLAX_CLASSES.values() for name in names]
    classes = [name for name in models if model_class(name) is not None]
    return [*classes, *AUTO_CLASSES, *OUTPUTS, "FlaxPreTrainedModel", "shift_tokens_right"]


def find(name: str) -> Any:
    """Returns a class by its name; ImportError names the nearest one."""
    others = {
        "FlaxPreTrainedModel": FlaxPreTrainedModel,
        "shift_tokens_right": shift_tokens_right,
    }
    found = {**others, **AUTO_CLASSES, **OUTPUTS}.get(name) or model_class(name)
    if found is None and name.endswith("Module"):
        # FlaxBertModule is the module of FlaxBertModel, FlaxBertForMaskedLMModule of the other.
        stem = name.removesuffix("Module")
        made = model_class(stem) or model_class(f"{stem}Model")
        found = None if made is None else partial(_module_of, made)
    if found is not None:
        return found
    left_out = name in {f"Flax{each}" for names in FLAX_CLASSES.values() for each in names}
    why = "is not supported yet" if left_out else "never existed"
    # `from jaxformer.flax import NAME` hides the message of an AttributeError.
    raise ImportError(f"jaxformer.flax: {name} {why}{did_you_mean(name, known())}")


def _module_of(made: type[FlaxPreTrainedModel], config: Any, dtype: Any = jnp.float32) -> Any:
    return made(config, dtype=dtype, _do_init=False).module


def shift_tokens_right(
    input_ids: jax.Array, pad_token_id: int, decoder_start_token_id: int
) -> jax.Array:
    """Returns a decoder's inputs for targets: the start token, then all targets but the last.

    Args:
        input_ids: int `[B, T]`; -100 becomes padding.
        pad_token_id: The token for padding.
        decoder_start_token_id: The first token of each row.
    """
    ids = jnp.asarray(input_ids)
    shifted = jnp.roll(ids, 1, axis=-1).at[..., 0].set(decoder_start_token_id)
    return jnp.where(shifted == -100, pad_token_id, shifted)
