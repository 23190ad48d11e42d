"""The functions of a model on the parameter tree of its Flax class."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional.arrays import platform
from jaxformer.functional.dropout import as_key
from jaxformer.hub import steps
from jaxformer.hub.checkpoint import HFCheckpoint, read_checkpoint
from jaxformer.hub.families import Outputs
from jaxformer.hub.flax_classes import FLAX_INPUTS, REPEATS_INPUTS, flax_architecture
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByIds
from jaxformer.hub.sound_inputs import check_sounds, check_spectrograms
from jaxformer.hub.weights.flax_tree import FlaxTree
from jaxformer.models import DecoderConfig
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.parameters import ArrangedModel
from jaxformer.nn.cache import Cache, CacheShape
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.zoo import FORMATS

# Fields of config.json that the functions of a program do not read.
_UNREAD = (
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "transformers_version",
    "_name_or_path",
    "use_cache",
    "torch_dtype",
    "dtype",
)
_FLOATS = (
    "gumbel_temperature",
    "head_mask",
    "input_features",
    "input_values",
    "inputs",
    "pixel_values",
)
_CONVERT = {
    **dict.fromkeys(_FLOATS, partial(jnp.asarray, dtype=jnp.float32)),
    "encoder_outputs": jnp.asarray,
    "gumbel_rng": as_key,
    "past_key_values": lambda cache: cache,
}
_INTEGERS = partial(jnp.asarray, dtype=jnp.int32)
_SOUNDS = {"input_values", "mask_time_indices"}
"""The inputs of a waveform model whose sizes are checked, also within `jax.jit`."""
_NAMES = {"inputs": "input_values"}
"""Name of an input in the Flax classes -> its name in `jaxformer.hub.steps`."""
_FEATURES = "feature_extractor"
"""The key of the convolutions on a waveform."""
_FUNCTIONS = {
    "__call__": steps.forward,
    "encode": steps.encode,
    "decode": steps.decode,
    "get_text_features": partial(steps.features, "text"),
    "get_image_features": partial(steps.features, "image"),
}


def describe_flax(values: Mapping[str, Any], kind: str, name: str) -> HFCheckpoint:
    """Returns the description of the class `FlaxNAME` for the values of a config.json.

    Raises:
        ArgumentError: The class is a base.
        ConfigError: The values belong to another `model_type`, or are not supported.
    """
    if not name:
        raise ArgumentError(
            "a FlaxPreTrainedModel is a base: use one of its classes, or FlaxAutoModel"
        )
    model_format, architecture = flax_architecture(FORMATS, kind, name)
    own = model_format.model_type
    given = values.get("model_type") or own
    parts = FORMATS[given].sections.values() if given in FORMATS else ()
    tower = next((part for part in parts if part.model_format.model_type == own), None)
    if given != own and tower is None:
        raise ConfigError(
            f"model_type = {given!r}: must be {own!r} for Flax{name}; a FlaxAuto class chooses the "
            "class of a checkpoint"
        )
    values = values if tower is None else values.get(tower.section) or {}
    values = {**values, **architecture.fields, "model_type": own}
    return read_checkpoint(HFConfig(values), FORMATS, architecture=architecture.name)


def flax_program(checkpoint: HFCheckpoint, dtype: Any, remat: bool) -> "FlaxProgram":
    """Returns the functions of a model; models of the same configuration share them.

    The compute dtype is bfloat16 if `dtype` is, otherwise float32.
    """
    compute = "bfloat16" if dtype == jnp.bfloat16 else "float32"
    fields = {"compute_dtype": compute, "scan_layers": False} | ({"remat": "full"} if remat else {})
    values = {n: x for n, x in checkpoint.hf_config.values.items() if n not in _UNREAD}
    text = json.dumps(values, sort_keys=True, default=str)
    return _program(text, checkpoint.architecture.name, checkpoint.config.with_fields(**fields))


@lru_cache(maxsize=32)
def _program(values: str, architecture: str, config: ModelConfig) -> "FlaxProgram":
    hf_config = HFConfig(json.loads(values))
    checkpoint = read_checkpoint(hf_config, FORMATS, architecture=architecture)
    own = checkpoint.model_format
    own = replace(
        own,
        repeats_inputs=own.repeats_inputs or own.model_type in REPEATS_INPUTS,
        states_end_normalised=own.states_end_normalised and own.flax.states_end_normalised,
    )
    return FlaxProgram(replace(checkpoint, config=config, model_format=own))


class FlaxProgram:
    """The functions of a model on the parameter tree of its Flax class.

    `pretrained` has no weights; `init` maps a PRNG key to a tree of new parameters.
    """

    def __init__(self, checkpoint: HFCheckpoint):
        """Takes the description."""
        self.pretrained = Pretrained(checkpoint.config, {}, described_by(checkpoint))
        self.checkpoint = self.pretrained.checkpoint
        self._model = model = self.pretrained.abstract_model
        self.tree = FlaxTree(self.checkpoint, self.pretrained.placements, model.shapes)
        self._fixed = model.shapes.keys() - set(model.learning)
        self.init = jax.jit(lambda key: self.tree.of(model.init(key)))
        self._run = jax.jit(self._traced, static_argnums=(0, 1))

    def run(
        self,
        method: str,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        key: jax.Array | None = None,
        **options: bool,
    ) -> Outputs | jax.Array:
        """Returns the outputs of a compiled method of the Flax class, by name.

        If "past_key_values" is among the inputs, the step continues from this cache. The options
        are `hidden_states` and `attentions`, except for features.
        """
        function, arrays = _FUNCTIONS[method], self.arrays(inputs)
        if method == "encode" and not self.checkpoint.config.is_encoder_decoder:
            function = steps.forward
        if "past_key_values" in arrays:
            function = steps.step
            arrays = {name.removeprefix("decoder_"): x for name, x in arrays.items()}
        found = self._run(function, tuple(options.items()), params, arrays, key)
        if method not in ("encode", "decode"):
            return found
        return {name.removeprefix(f"{method}r_"): x for name, x in found.items()}

    def _traced(self, function, options, params, arrays, key):
        return function(self.module(params), self.checkpoint, arrays, key=key, **dict(options))

    def module(self, params: Mapping[str, Any]) -> Model:
        """Returns the module with the arrays (or tracers) of a tree."""
        parameters = self.tree.parameters(params)
        # Parameters that are never trained, such as Whisper's sinusoids, receive no gradient.
        parameters |= {name: jax.lax.stop_gradient(parameters[name]) for name in self._fixed}
        return self._model.module(parameters)

    @cached_property
    def arranged(self) -> ArrangedModel:
        """The parameter layout with the fastest decode steps."""
        config = self.checkpoint.config
        transposed = platform() in ("cpu", "gpu")
        return ArrangedModel(config.build, config.compute_dtype, joined=True, transposed=transposed)

    def frozen_features(
        self, params: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns a tree and inputs for which no gradient flows through a waveform's features."""
        flat = flatten_dict(params)
        own = {path: jax.lax.stop_gradient(x) for path, x in flat.items() if _FEATURES in path}
        waves = {
            name: jax.lax.stop_gradient(jnp.asarray(inputs[name]))
            for name in {"inputs", "input_values"} & inputs.keys()
        }
        return unflatten_dict(flat | own), {**inputs, **waves}

    def arrays(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns inputs as int32 and float32 arrays, by their names in `jaxformer.hub.steps`.

        Raises:
            DataError: The size of a sound does not fit the model.
        """
        arrays = {
            _NAMES.get(name, name): _CONVERT.get(name, _INTEGERS)(x) for name, x in given.items()
        }
        config = self.checkpoint.config
        reader = config.parts.get("encoder", config)
        if "input_features" in arrays:
            check_spectrograms(arrays["input_features"], reader)
        if "input_values" in arrays:
            check_sounds({name: arrays[name] for name in _SOUNDS & arrays.keys()}, reader)
        if isinstance(self.checkpoint.model_format.positions, CountedByIds):
            # RoBERTa's positions are rows of its table.
            first = getattr(config.position, "offset", 0)
            arrays |= {n: arrays[n] - first for n in ("position_ids",) if n in arrays}
        made = FLAX_INPUTS.get(self.checkpoint.model_format.model_type)
        return arrays if made is None or "past_key_values" in arrays else {**made(arrays), **arrays}

    def init_cache(self, rows: int, length: int, encoder_outputs: jax.Array | None = None) -> Cache:
        """Returns an empty cache for a number of rows and a length.

        Raises:
            ArgumentError: The model is an encoder.
        """
        config = self.checkpoint.config
        if not (config.is_encoder_decoder or isinstance(config, DecoderConfig)):
            name = self.checkpoint.architecture.name
            raise ArgumentError(f"init_cache: {name} is an encoder, which has no cache")
        shape = CacheShape(rows, capacity=length, chunk=length, storage=config.compute_dtype)
        return steps.empty_cache(self._model, shape, encoder_outputs)
