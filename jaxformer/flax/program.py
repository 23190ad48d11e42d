"""A model behind a Flax class: its description, its tree of parameters, and compiled functions."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import unfreeze
from flax.traverse_util import flatten_dict

from jaxformer.distributed.sharding import on_rows
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.flax.generation import generated
from jaxformer.functional.activations import with_cache, with_hooks
from jaxformer.functional.arrays import platform
from jaxformer.functional.masks import KeyPadding
from jaxformer.hub.checkpoint import HFCheckpoint, read_checkpoint
from jaxformer.hub.families import family_of, forward, padding_mask
from jaxformer.hub.flax_classes import flax_architecture
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByIds
from jaxformer.hub.states import STATES, WEIGHTS
from jaxformer.hub.weights.flax_tree import FlaxTree
from jaxformer.models.parameters import ArrangedModel, Parameters
from jaxformer.nn.cache import Cache, CacheShape, EncoderCache
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.zoo import FORMATS

Inputs = Mapping[str, jax.Array]
Key = jax.Array | None
# Fields of config.json that no function of a program reads.
_UNREAD = (
    *("output_attentions", "output_hidden_states", "return_dict", "transformers_version"),
    *("_name_or_path", "use_cache", "torch_dtype", "dtype"),
)


def describe(values: Mapping[str, Any], kind: str, name: str) -> HFCheckpoint:
    """Returns the description of the class `FlaxNAME` for the values of a config.json."""
    model_format, architecture = flax_architecture(FORMATS, kind, name)
    own = model_format.model_type
    given = values.get("model_type") or own
    section = (
        next(
            (x for x in FORMATS[given].sections.values() if x.model_format.model_type == own), None
        )
        if given in FORMATS
        else None
    )
    if given != own and section is not None:
        values = values.get(section.section) or {}
    elif given != own:
        raise ConfigError(
            f"model_type = {given!r}: must be {own!r} for Flax{name}; FlaxAuto classes choose the "
            "class of a checkpoint"
        )
    values = dict(values) | architecture.fields | {"model_type": own}
    return read_checkpoint(HFConfig(values), FORMATS, architecture=architecture.name)


@lru_cache(maxsize=32)
def program(values: str, checkpoint: "_ByConfig") -> "Program":
    """Returns the program of a model; models with the same values of config.json share it."""
    del values
    return Program(checkpoint.checkpoint)


class _ByConfig:
    """A description that is equal to another if the configurations are."""

    def __init__(self, checkpoint: HFCheckpoint):
        self.checkpoint = checkpoint

    def __eq__(self, other: object) -> bool:
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.checkpoint.config, self.checkpoint.architecture.name


def program_for(checkpoint: HFCheckpoint, dtype: Any, remat: bool) -> "Program":
    """Returns the program of a description, computed in a dtype."""
    compute = "bfloat16" if dtype == jnp.bfloat16 else "float32"
    fields = {"compute_dtype": compute, "scan_layers": False} | ({"remat": "full"} if remat else {})
    checkpoint = replace(checkpoint, config=checkpoint.config.with_fields(**fields))
    read = {name: x for name, x in checkpoint.hf_config.values.items() if name not in _UNREAD}
    return program(json.dumps(read, sort_keys=True, default=str), _ByConfig(checkpoint))


class Program:
    """The functions of a model: of a tree of parameters and of inputs."""

    def __init__(self, checkpoint: HFCheckpoint):
        """Takes a description; `pretrained` has it, and no weights."""
        self.pretrained = Pretrained(checkpoint.config, {}, described_by(checkpoint))
        self.checkpoint = self.pretrained.checkpoint
        self.family = family_of(checkpoint.config)
        model = self.pretrained.abstract_model
        self._model = model
        self.tree = FlaxTree(self.checkpoint, self.pretrained.placements, model.shapes)
        self.shapes = jax.eval_shape(self.tree.of, model.shapes)
        self._flat_shapes = flatten_dict(self.shapes)
        self.init = jax.jit(lambda key: self.tree.of(model.init(key)))
        self.parameters = jax.jit(self._parameters)
        self.forward = jax.jit(self._forward, static_argnums=(4, 5))
        self.encode = jax.jit(self._encode, static_argnums=(3, 4))
        self.decode = jax.jit(self._decode, static_argnums=(5, 6))
        self.step = jax.jit(self._step)
        self.generate = jax.jit(partial(generated, self), static_argnums=3)

    @property
    def seq2seq(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self.checkpoint.config.is_encoder_decoder

    @cached_property
    def _arranged(self) -> ArrangedModel:
        config = self.checkpoint.config
        transposed = platform() in ("cpu", "gpu")
        return ArrangedModel(config.build, config.compute_dtype, joined=True, transposed=transposed)

    def arranged(self, params: Any) -> Any:
        """Returns the module in the layout that is read fastest for a few tokens."""
        return self._arranged.module(self._arranged.arrange(self._parameters(params)))

    def encoded(self, params: Any, inputs: Inputs) -> tuple[tuple[Any, ...], jax.Array | None]:
        """Returns the encoder's output and its mask, and the tokens it read, -1 at padding.

        For a decoder they are () and None; for images there are no tokens.
        """
        if not self.seq2seq:
            return (), None
        found = self.family.encode(self._module(params), self.checkpoint, inputs)
        if "input_ids" not in inputs:
            return found, None
        ids = inputs["input_ids"]
        return found, jnp.where(inputs.get("attention_mask", jnp.ones_like(ids)) > 0, ids, -1)

    def check(self, params: Any) -> dict[str, Any]:
        """Returns a tree as nested dictionaries; ArgumentError if it is that of another model."""
        if not isinstance(params, Mapping):
            raise ArgumentError(f"params is a {type(params).__name__}: must be nested dictionaries")
        tree = unfreeze(params)
        flat = flatten_dict(tree)
        for path, wanted in self._flat_shapes.items():
            found = flat.get(path)
            if found is None or jnp.shape(found) != wanted.shape:
                given = "missing" if found is None else f"of shape {jnp.shape(found)}"
                raise ArgumentError(
                    f"params: {'/'.join(path)} is {given}: must have the shape {wanted.shape}, as in "
                    "model.params_shape_tree"
                )
        return tree

    def inputs(self, given: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns inputs as int32 and float32 arrays, by the names that `forward` reads."""
        arrays = {name: jnp.asarray(x) for name, x in given.items()}
        floats = ("pixel_values", "encoder_hidden_states")
        arrays = {
            name: x.astype(jnp.float32 if name in floats else jnp.int32)
            for name, x in arrays.items()
        }
        if "position_ids" in arrays and isinstance(
            self.checkpoint.model_format.positions, CountedByIds
        ):
            arrays["position_ids"] -= self.checkpoint.config.position.offset
        return arrays

    def _parameters(self, params: Any) -> Parameters:
        return self.tree.parameters(flatten_dict(params))

    def _module(self, params: Any) -> Any:
        return self._model.module(self._parameters(params))

    def _forward(self, params, inputs, head_mask, key: Key, states: bool, attentions: bool):
        run = with_hooks(forward, _head_hooks(head_mask))
        options = {"hidden_states": states, "attentions": attentions, "key": key}
        found = run(self._module(params), self.checkpoint, on_rows(inputs), **options)
        if head_mask is not None and "attentions" in found:
            found["attentions"] *= head_mask[:, None, :, None, None]
        return found

    def _encode(self, params, inputs, key: Key, states: bool, attentions: bool):
        run = with_cache(self.family.encode, STATES * states + WEIGHTS * attentions, required=False)
        (hidden, _), cache = run(self._module(params), self.checkpoint, inputs, key)
        found = {"encoder_last_hidden_state": hidden}
        return found | self.family.layer_outputs(self.checkpoint, cache, found)

    def _decode(self, params, encoded, inputs, mask, key: Key, states: bool, attentions: bool):
        run = with_cache(self.family.decode, STATES * states + WEIGHTS * attentions, required=False)
        module = self._module(params)
        options = (self.checkpoint, encoded, padding_mask(mask), inputs, key)
        hidden, cache = run(module, *options)
        found = {"last_hidden_state": hidden}
        found |= self.family.layer_outputs(self.checkpoint, cache, found)
        return self._scored(module, found)

    def _scored(self, module, outputs):
        if self.checkpoint.config.predicts_next_token:
            outputs["logits"] = module.logits(outputs["last_hidden_state"])
        return outputs

    def init_cache(self, rows: int, length: int, encoded: jax.Array | None) -> Cache:
        """Returns an empty cache for rows of a length."""
        dtype = self.checkpoint.config.compute_dtype
        shape = CacheShape(rows, capacity=length, chunk=length, storage=dtype)

        def made(parameters, encoded):
            return self._model.module(parameters).init_cache(shape, encoded)

        found = jax.eval_shape(made, self._model.shapes, encoded)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)

    def _step(self, params, inputs, cache: Cache, encoded, mask):
        """The outputs for the next tokens, and the cache with them."""
        module = self._module(params)
        keys = jax.tree.leaves(cache.layers)[0]
        rows, capacity = keys.shape[0], keys.shape[2]
        if encoded is not None:
            dtype = self.checkpoint.config.compute_dtype
            shape = CacheShape(rows, capacity=capacity, chunk=capacity, storage=dtype)
            fresh = module.init_cache(shape, encoded, padding_mask(mask))
            layers = [
                [
                    new if isinstance(new, EncoderCache) else old
                    for new, old in zip(*pair, strict=True)
                ]
                for pair in zip(fresh.layers, cache.layers, strict=True)
            ]
            cache = replace(cache, layers=layers, encoder_mask=fresh.encoder_mask)
        options = {"positions": inputs.get("position_ids")}
        if (real := inputs.get("attention_mask")) is not None:
            missing = ((0, 0), (0, capacity - real.shape[1]))
            options["mask"] = KeyPadding(jnp.pad(real, missing, constant_values=1) > 0)
        hidden, cache = module.step(inputs["input_ids"], cache, **options)
        return self._scored(module, {"last_hidden_state": hidden}), cache


def _head_hooks(head_mask: jax.Array | None) -> dict[str, Any]:
    """The hooks that multiply the attention of each layer and head by a mask `[layers, N]`."""
    if head_mask is None:
        return {}

    def scaled(weights, factors):
        return weights * factors[None, :, None, None].astype(weights.dtype)

    return {
        f"blocks.{layer}.attn.hook_pattern": partial(scaled, factors=factors)
        for layer, factors in enumerate(head_mask)
    }
