"""`jaxformer.encoder`: a frozen encoder as a pure function and its parameters."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.data.tokenizers.files import read_settings
from jaxformer.errors import DataError
from jaxformer.functional.activations import Hook, Hooks
from jaxformer.hub.inputs import checked_inputs
from jaxformer.hub.tasks.classes import Task
from jaxformer.models.parameters import Parameters
from jaxformer.pretrained.auto import load, model_folder
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.hf_reader import HFReader
from jaxformer.zoo.folders import read_folder

Inputs = Mapping[str, Any] | str | Sequence[str]


class EncoderFunction:
    """A pure function of parameters and inputs: arrays, or texts outside of `jax.jit`."""

    def __init__(self, model: Pretrained, max_length: int | None):
        """Takes the model, without keeping its weights."""
        self._model = model
        self._max_length = max_length

    @cached_property
    def _reader(self) -> HFReader:
        if self._model.tokenizer is None:
            raise DataError(f"{self._model.folder}: has no tokenizer.json: give ids, not texts")
        return HFReader(self._model, self._max_length)

    def tokens(self, texts: str | Sequence[str]) -> dict[str, jax.Array]:
        """Converts texts to arrays `[B, T]`: "input_ids", "attention_mask", ...

        Texts are padded to `max_length`, or to the longest if it is None.
        """
        texts = [texts] if isinstance(texts, str) else texts
        rows = self._reader.encode([(text,) for text in texts])
        longest = max(len(row.ids) for row in rows)
        arrays = self._reader.arrays(rows, self._max_length or longest)
        token = read_settings(self._model.folder).get("pad_token")
        token = token.get("content") if isinstance(token, dict) else token
        padding = self._model.tokenizer.token_to_id(token) if isinstance(token, str) else None
        if padding is not None:
            arrays["input_ids"] = np.where(
                arrays["attention_mask"] > 0, arrays["input_ids"], padding
            )
        return {name: jnp.asarray(x) for name, x in arrays.items()}

    def __call__(
        self,
        params: Parameters,
        inputs: Inputs,
        *,
        hidden_states: bool = False,
        hooks: Mapping[str, Hook] | None = None,
    ) -> dict[str, jax.Array]:
        """Returns the outputs of `jaxformer.forward` as JAX arrays.

        Args:
            params: The parameters.
            inputs: Arrays by their names in transformers ("input_ids" or "pixel_values", ...),
                whose values are checked unless they are traced; or one or several texts.
            hidden_states: Whether to add "hidden_states" `[layers + 1, B, T, D]`; not supported
                with hooks.
            hooks: Functions that replace activations, by name or pattern, as for
                `jaxformer.run_with_hooks`.

        Raises:
            DataError: An array is missing, unknown or has a wrong shape, or the tokenizer is
                missing.
        """
        arrays = inputs if isinstance(inputs, Mapping) else self.tokens(inputs)
        checked = checked_inputs(arrays, self._model.config)
        if hooks:
            alone = "False with hooks"
            check_argument("hidden_states", hidden_states, not hidden_states, alone)
            return self._model.activations(checked, (), Hooks.of(hooks), parameters=params)[0]
        return self._model.outputs(checked, hidden_states=hidden_states, parameters=params)


def encoder(
    name: str | Path,
    *,
    subfolder: str = "",
    max_length: int | None = None,
    architecture: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    **options: Any,
) -> tuple[EncoderFunction, Parameters]:
    """Loads a frozen encoder for other programs: CLIP's text model, T5's encoder, DINOv2, BERT,
    ESM-2.

    Args:
        name: A folder, or "org/name" on the hub.
        subfolder: The model's folder within it, such as "text_encoder_2".
        max_length: The length to which texts are padded or truncated; None: that of the longest
            text.
        architecture: The class to read; None: the checkpoint's class without heads, or the encoder
            of an encoder-decoder.
        revision: A branch, a tag or a commit of a model on the hub.
        token: The access token for the hub.
        cache_dir: The hub's cache.
        **options: Other arguments of `jaxformer.load`: dtype, mesh, compute_dtype, ...

    Returns:
        A pure function `fn(params, inputs)` that works under `jit`, `grad` and `vmap`, and its
        parameters, which are sharded over `mesh` if one is given.

    Raises:
        ConfigError: The model does not exist, or is not supported.
        DataError: The files are damaged.
    """
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir}
    folder = model_folder(name, "name", subfolder=subfolder, **hub)
    if architecture is None:
        architecture = _body(folder)
    model = load(folder, architecture=architecture, **options)
    params = model.parameters
    return EncoderFunction(model.without_parameters(), max_length), params


def _body(folder: Path) -> str | None:
    """Returns a checkpoint's class without heads, or the encoder class of an encoder-decoder."""
    checkpoint = read_folder(folder)
    classes = checkpoint.model_format.architectures
    if checkpoint.config.is_encoder_decoder:
        alone = [each for each in classes if each.name.endswith("EncoderModel")]
        return alone[0].name if alone else None
    task = checkpoint.architecture.task
    if not task.pre_trains:
        return checkpoint.architecture.name
    return next((each.name for each in classes if type(each.task) is Task), None)
