"""A model behind a Flax class: its description, its tree of parameters, and compiled functions."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import unfreeze
from flax.traverse_util import flatten_dict

from jaxformer.distributed.sharding import on_rows
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional.activations import with_hooks
from jaxformer.functional.arrays import platform
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.pure import generate_rows
from jaxformer.hub import steps
from jaxformer.hub.checkpoint import HFCheckpoint, read_checkpoint
from jaxformer.hub.families import family_of, forward
from jaxformer.hub.flax_classes import flax_architecture
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByIds
from jaxformer.hub.weights.flax_tree import FlaxTree
from jaxformer.models.parameters import ArrangedModel
from jaxformer.nn.cache import CacheShape
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.zoo import FORMATS

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


def program_for(checkpoint: HFCheckpoint, dtype: Any, remat: bool) -> "Program":
    """Returns the program of a description; models with equal configurations share one."""
    compute = "bfloat16" if dtype == jnp.bfloat16 else "float32"
    fields = {"compute_dtype": compute, "scan_layers": False} | ({"remat": "full"} if remat else {})
    checkpoint = replace(checkpoint, config=checkpoint.config.with_fields(**fields))
    read = {name: x for name, x in checkpoint.hf_config.values.items() if name not in _UNREAD}
    return _program(json.dumps(read, sort_keys=True, default=str), _Key(checkpoint))


class _Key:
    """A description that equals another one of the same class and configuration."""

    def __init__(self, checkpoint: HFCheckpoint):
        self.checkpoint = checkpoint
        self._key = checkpoint.config, checkpoint.architecture.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=32)
def _program(values: str, key: _Key) -> "Program":
    del values
    return Program(key.checkpoint)


class Program:
    """The functions of a model: of a tree of parameters, and of inputs."""

    def __init__(self, checkpoint: HFCheckpoint):
        """Takes a description; `pretrained` has it, and no weights."""
        self.pretrained = Pretrained(checkpoint.config, {}, described_by(checkpoint))
        self.checkpoint = self.pretrained.checkpoint
        self.family = family_of(checkpoint.config)
        self.seq2seq = checkpoint.config.is_encoder_decoder
        self._model = model = self.pretrained.abstract_model
        self.tree = FlaxTree(self.checkpoint, self.pretrained.placements, model.shapes)
        self.shapes = jax.eval_shape(self.tree.of, model.shapes)
        self._flat_shapes = flatten_dict(self.shapes)
        self.init = jax.jit(lambda key: self.tree.of(model.init(key)))
        self.forward = jax.jit(self._forward, static_argnames=("hidden_states", "attentions"))
        self.encode = jax.jit(self._encode, static_argnames=("hidden_states", "attentions"))
        self.decode = jax.jit(self._decode, static_argnames=("hidden_states", "attentions"))
        self.step = jax.jit(lambda params, *given: steps.step(self._module(params), *given))
        self.features = jax.jit(self._features, static_argnums=3)
        self.generate = jax.jit(self._generate, static_argnums=3)

    def check(self, params: Any) -> dict[str, Any]:
        """Returns a tree as nested dictionaries; ArgumentError if it is that of another model."""
        if not isinstance(params, Mapping):
            raise ArgumentError(f"params is a {type(params).__name__}: must be nested dictionaries")
        tree = unfreeze(params)
        flat = flatten_dict(tree)
        for path, wanted in self._flat_shapes.items():
            if path not in flat or jnp.shape(flat[path]) != wanted.shape:
                given = f"has the shape {jnp.shape(flat[path])}" if path in flat else "is missing"
                raise ArgumentError(
                    f"params: {'/'.join(path)} {given}: must have the shape {wanted.shape}, as in "
                    "model.params_shape_tree"
                )
        return tree

    def inputs(self, given: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns inputs as int32 and float32 arrays, by the names that `forward` reads."""
        arrays = {
            name: jnp.asarray(x, jnp.float32 if name == "pixel_values" else jnp.int32)
            for name, x in given.items()
        }
        if isinstance(self.checkpoint.model_format.positions, CountedByIds):
            # Positions of RoBERTa are rows of its table.
            first = getattr(self.checkpoint.config.position, "offset", 0)
            arrays |= {n: arrays[n] - first for n in ("position_ids",) if n in arrays}
        return arrays

    def init_cache(self, rows: int, length: int, encoder_outputs: jax.Array | None) -> Any:
        """Returns the cache before the first token, for rows of a length."""
        dtype = self.checkpoint.config.compute_dtype
        shape = CacheShape(rows, capacity=length, chunk=length, storage=dtype)
        return steps.empty_cache(self._model, shape, encoder_outputs)

    def _parameters(self, params):
        return self.tree.parameters(flatten_dict(params))

    def _module(self, params):
        return self._model.module(self._parameters(params))

    def _forward(self, params, inputs, head_mask, **options):
        run = with_hooks(forward, steps.head_hooks(head_mask))
        found = run(self._module(params), self.checkpoint, on_rows(inputs), **options)
        if head_mask is not None and "attentions" in found:
            found["attentions"] *= head_mask[:, None, :, None, None]
        return found

    def _encode(self, params, inputs, **options):
        return steps.encode(self._module(params), self.checkpoint, inputs, **options)

    def _decode(self, params, *arrays, **options):
        return steps.decode(self._module(params), self.checkpoint, *arrays, **options)

    def _features(self, params, inputs, key, name):
        return self.family.side(self._module(params), self.checkpoint, name, inputs, key)[2]

    @cached_property
    def _arranged(self) -> ArrangedModel:
        config = self.checkpoint.config
        transposed = platform() in ("cpu", "gpu")
        return ArrangedModel(config.build, config.compute_dtype, joined=True, transposed=transposed)

    def _generate(self, params, inputs, key, config: GenerationConfig):
        encoder_outputs, source, part = (), None, ""
        if self.seq2seq:
            encoder_outputs = self.family.encode(self._module(params), self.checkpoint, inputs)
            part = "decoder_"
            if "input_ids" in inputs:
                ids = inputs["input_ids"]
                real = inputs.get("attention_mask", jnp.ones_like(ids)) > 0
                source = jnp.where(real, ids, -1)
        ids = inputs[f"{part}input_ids"]
        mask = inputs.get(f"{part}attention_mask", jnp.ones_like(ids))
        model = self._arranged.module(self._arranged.arrange(self._parameters(params)))
        options = {"encoder_outputs": encoder_outputs, "source": source}
        return generate_rows(model, ids, mask, config, key, **options)
