"""`FlaxPreTrainedModel`, the base of the Flax classes, and the classes by name."""

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from jaxformer.errors import ArgumentError
from jaxformer.flax.composites import CONSTRUCTORS
from jaxformer.flax.files import FilesMixin
from jaxformer.flax.generation import GenerationMixin
from jaxformer.functional.dropout import as_key
from jaxformer.hub.flax_api.config import FlaxConfig, as_config
from jaxformer.hub.flax_api.outputs import output_of
from jaxformer.hub.flax_api.signatures import signatures_of
from jaxformer.hub.flax_classes import FLAX_CLASSES, flax_architecture
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask
from jaxformer.hub.weights.flax_tree import cast_tree
from jaxformer.io.notices import warn_once
from jaxformer.models import DecoderConfig
from jaxformer.pretrained.flax_program import FlaxProgram, describe_flax, flax_program
from jaxformer.zoo import FORMATS

_FLAGS = {"output_hidden_states": False, "output_attentions": False, "return_dict": True}
_IGNORED = ("indices_rng", "question_lengths")


class FlaxModule:
    """The stateless interface of a Flax module; it cannot be part of another module."""

    def __init__(self, model: Any):
        """Wraps a model, without its parameters."""
        self._model = model

    def init(self, rngs: Any, *inputs: Any, **options: Any) -> dict[str, Any]:
        """Returns `{"params": tree}`; `rngs` is a key, or {"params": key}; inputs are ignored."""
        del inputs, options
        key = rngs["params"] if isinstance(rngs, dict) else rngs
        return {"params": self._model.init_weights(key)}

    def apply(
        self,
        variables: Any,
        *inputs: Any,
        deterministic: bool = True,
        rngs: Any = None,
        **options: Any,
    ) -> Any:
        """Runs the model with `variables["params"]`; `rngs` has a "dropout" key for training."""
        key = None if deterministic else (rngs or {}).get("dropout")
        training = {} if deterministic else {"train": True, "dropout_rng": key}
        return self._model(*inputs, params=variables["params"], **training, **options)


class FlaxPreTrainedModel(FilesMixin, GenerationMixin):
    """The base of transformers 4's Flax classes: a config, and nested dictionaries of parameters.

    Attributes:
        checkpoint: The description of the model.
        config: The configuration that was passed.
        dtype: The dtype of the computation; parameters may have another.
        framework: "flax".
        generation_config: Default options of `generate`; its arguments take precedence.
        input_shape: The argument; unused.
        key: The PRNG key of the initial parameters.
        module: The stateless model, with the `init` and `apply` of a Flax module.
    """

    model_type: ClassVar[str] = ""
    """The `model_type` that the class belongs to."""
    architecture: ClassVar[str] = ""
    """The name of the class without "Flax"; "" for a base."""
    main_input_name: ClassVar[str] = "input_ids"
    """The first argument of a call."""
    base_model_prefix: ClassVar[str] = ""
    """The key of the body in the parameter tree of a class with a head."""
    config_class: ClassVar[type] = FlaxConfig
    """The class of configs that are read from files."""
    framework: ClassVar[str] = "flax"
    sets: ClassVar[Mapping[str, Any]] = {}
    """Fields that the class sets in its config."""

    def __init__(
        self,
        config: Any,
        input_shape: tuple[int, ...] | None = None,
        seed: int = 0,
        dtype: Any = jnp.float32,
        _do_init: bool = True,
        gradient_checkpointing: bool = False,
        add_pooling_layer: bool | None = None,
    ):
        """Builds a model, with new parameters unless `_do_init` is False.

        Args:
            config: A configuration of transformers, or the values of a config.json.
            input_shape: Unused; parameters do not depend on it.
            seed: The seed of the parameters.
            dtype: The dtype of the computation: float32 or bfloat16; for float16, float32 is used.
            _do_init: Whether to initialize parameters; otherwise pass `params=` to each call.
            gradient_checkpointing: Whether backward passes recompute activations.
            add_pooling_layer: Unused; the class decides.

        Raises:
            ConfigError: The config belongs to another class, or has an unsupported value.
        """
        del add_pooling_layer
        self.config = as_config(config)
        for name, value in self.sets.items():
            setattr(self.config, name, value)
        self.checkpoint = describe_flax(self.config.to_dict(), self.model_type, self.architecture)
        if jnp.dtype(dtype) == jnp.float16:
            warn_once(f"{type(self).__name__}: dtype float16 is computed in float32")
        self.dtype = dtype
        self.key = jax.random.PRNGKey(seed)
        self.input_shape = (1, 1) if input_shape is None else input_shape
        self.generation_config = SimpleNamespace()
        self.module = FlaxModule(self)
        self._remat = gradient_checkpointing
        self._is_initialized = _do_init
        self._params = self.init_weights(self.key) if _do_init else {}

    @property
    def program(self) -> FlaxProgram:
        """The functions of the model, shared by models of the same configuration."""
        return flax_program(self.checkpoint, self.dtype, self._remat)

    @property
    def params_shape_tree(self) -> dict[str, Any]:
        """The parameter tree, as shapes and dtypes."""
        return self.program.tree.shapes

    @property
    def required_params(self) -> set[tuple[str, ...]]:
        """The paths of all parameters, as tuples of keys."""
        return set(flatten_dict(self.params_shape_tree))

    @property
    def params(self) -> dict[str, Any]:
        """The parameter tree; raises ArgumentError if the model was made with `_do_init=False`."""
        self._check_initialized("pass params=... to each call, from from_pretrained")
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        self._check_initialized("keep them yourself")
        self._params = self.program.tree.checked(params)

    def _check_initialized(self, remedy: str) -> None:
        if not self._is_initialized:
            raise ArgumentError(f"params: the model was made with _do_init=False: {remedy}")

    def init_weights(
        self, rng: jax.Array, input_shape: Any = None, params: Any = None
    ) -> dict[str, Any]:
        """Returns new parameters, or `params` completed with new ones.

        Args:
            rng: A PRNG key, typed or raw.
            input_shape: Unused.
            params: A tree that may lack some parameters.
        """
        del input_shape
        fresh = self.program.init(as_key(rng))
        return fresh if params is None else self.program.tree.completed(params, fresh)

    def enable_gradient_checkpointing(self) -> None:
        """Makes backward passes recompute activations instead of keeping them."""
        self._remat = True

    def to_bf16(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to bfloat16, where `mask`, a tree of bool, is true."""
        return cast_tree(params, jnp.bfloat16, mask)

    def to_fp16(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to float16, where `mask`, a tree of bool, is true."""
        return cast_tree(params, jnp.float16, mask)

    def to_fp32(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to float32, where `mask`, a tree of bool, is true."""
        return cast_tree(params, jnp.float32, mask)

    @classmethod
    def can_generate(cls) -> bool:
        """Whether the class has a head that predicts the next token."""
        found = flax_architecture(FORMATS, cls.model_type, cls.architecture)
        return isinstance(found[1].task, CausalLMTask | Seq2SeqLMTask)

    def init_cache(self, batch_size: int, max_length: int, encoder_outputs: Any = None) -> Any:
        """Returns the `past_key_values` before the first token.

        Args:
            batch_size: The number of rows.
            max_length: The maximum number of tokens of a row.
            encoder_outputs: The result of `encode`, for an encoder-decoder.
        """
        states = None if encoder_outputs is None else encoder_outputs[0]
        return self.program.init_cache(batch_size, max_length, states)

    def _get_feat_extract_output_lengths(self, input_lengths: Any, add_adapter: Any = None) -> Any:
        """Returns the number of frames of sounds, from their numbers of samples."""
        config = self.program.checkpoint.config
        config = config.parts.get("encoder", config)
        own = config.features if add_adapter is False else config
        return own.num_frames(input_lengths)

    def _run(self, method: str, given: dict[str, Any]) -> Any:
        """Runs a method of the program with the arguments of the Flax class."""
        program = self.program
        given = {name: x for name, x in given.items() if name not in _IGNORED}
        if method == "__call__" and "encoder_hidden_states" in given:
            raise ArgumentError(
                f"encoder_hidden_states: a separate {type(self).__name__} has no cross-attention: "
                "use FlaxEncoderDecoderModel or FlaxVisionEncoderDecoderModel"
            )
        params = program.tree.checked(given.pop("params")) if "params" in given else self.params
        hidden_states, attentions, as_dict = (
            bool(given.pop(name, getattr(self.config, name, default)))
            for name, default in _FLAGS.items()
        )
        key = given.pop("dropout_rng", None)
        train = given.pop("train", False) or not given.pop("deterministic", True)
        if train and key is None:
            raise ArgumentError("dropout_rng = None: must be a PRNG key, since train is True")
        key = as_key(key) if train else None
        if given.pop("freeze_feature_encoder", False):
            params, given = program.frozen_features(params, given)
        if method.endswith("features"):
            return program.run(method, params, given, key)
        if "encoder_outputs" in given:
            given["encoder_outputs"] = given["encoder_outputs"][0]
        options = {"hidden_states": hidden_states, "attentions": attentions}
        found = program.run(method, params, given, key, **options)
        config = program.checkpoint.config
        causal = isinstance(config, DecoderConfig)
        output = output_of(method, self.architecture, config.is_encoder_decoder, causal).of(found)
        return output if as_dict else output.to_tuple()


def _method(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    """Returns a method with the arguments of the Flax class."""

    def method(self, *arguments, **named):
        bound = signature.bind(self, *arguments, **named).arguments
        del bound["self"]
        return self._run(name, {each: x for each, x in bound.items() if x is not None})

    method.__signature__ = signature
    method.__doc__ = f"Runs the model. Arguments: {', '.join(signature.parameters)}."
    return method


def _class(kind: str, own: str) -> type[FlaxPreTrainedModel] | None:
    """Returns the class `FlaxOWN`, or None if it is not supported."""
    signatures = signatures_of(kind, own)
    found = flax_architecture(FORMATS, kind, own)
    if found is None or not signatures:
        return None
    model_format, architecture = found
    prefix = model_format.prefix if architecture.prefix is None else architecture.prefix
    values = {
        "__doc__": f"{own} of transformers 4, in JAX.",
        "__module__": "jaxformer.flax",
        "model_type": kind,
        "architecture": own,
        "main_input_name": list(signatures["__call__"].parameters)[1],
        "base_model_prefix": prefix.removesuffix("."),
    }
    values |= {name: _method(name, each) for name, each in signatures.items()}
    bases = (BASES.get(kind, FlaxPreTrainedModel),)
    return type(f"Flax{own}", bases, values | CONSTRUCTORS.get(own, {}))


def _base(kind: str, names: tuple[str, ...]) -> type[FlaxPreTrainedModel]:
    """Returns the base of the classes of a `model_type`, named after the one without a head."""
    bare = min((name for name in names if name.endswith("Model")), key=len)
    values = {"__doc__": f"The base of the classes of {kind}.", "__module__": "jaxformer.flax"}
    return type(f"Flax{bare.removesuffix('Model')}PreTrainedModel", (FlaxPreTrainedModel,), values)


BASES = {kind: _base(kind, own) for kind, own in FLAX_CLASSES.items() if "encoder" not in kind}
"""`model_type` -> the base of its classes; models of two parts have none."""
_CLASSES = [_class(kind, own) for kind, names in FLAX_CLASSES.items() for own in names]
CLASSES: Mapping[str, type[FlaxPreTrainedModel]] = {
    x.__name__: x for x in _CLASSES if x is not None
}
"""The classes by name."""
