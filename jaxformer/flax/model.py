"""`FlaxPreTrainedModel`: the base of the Flax classes, and the classes themselves, by name."""

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax.core import FrozenDict, unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.errors import ArgumentError
from jaxformer.flax import calls
from jaxformer.flax.config import FlaxConfig, as_config, as_key
from jaxformer.flax.files import FilesMixin
from jaxformer.flax.generation import GenerationMixin
from jaxformer.flax.module import FlaxModule
from jaxformer.flax.outputs import OUTPUTS, output_for
from jaxformer.flax.program import Program, describe, program_for
from jaxformer.hub.flax_classes import FLAX_CLASSES, flax_architecture
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask
from jaxformer.io.notices import warn_once
from jaxformer.models import DecoderConfig
from jaxformer.zoo import FORMATS

_STATES = ("hidden_states", "attentions")
_IGNORED = ("indices_rng", "question_lengths")


class FlaxPreTrainedModel(FilesMixin, GenerationMixin):
    """A model of transformers 4's Flax classes: a config, and nested dictionaries of parameters.

    Attributes:
        checkpoint: The description of the model.
        key: The PRNG key that initial parameters are made with.
        dtype: The dtype that the model is computed in; parameters have their own.
        input_shape: As given; no parameter depends on it.
        generation_config: The options of `generate`, by name; given ones count before them.
        params_shape_tree: The tree of parameters, as shapes and dtypes.
        required_params: The paths of all parameters, as tuples of keys.
    """

    model_type: ClassVar[str]
    """The `model_type` that the class belongs to."""
    architecture: ClassVar[str]
    """The name of the class without "Flax"."""
    main_input_name: ClassVar[str] = "input_ids"
    """The first argument of a call."""
    base_model_prefix: ClassVar[str] = ""
    """The key of the body in the tree of a class with a head."""
    config_class: ClassVar[type] = FlaxConfig
    """The class of a config that is read from a file."""

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
        """Describes a model, with new parameters unless `_do_init` is False.

        Args:
            config: A configuration of transformers, or the values of a config.json.
            input_shape: Unused; parameters do not depend on it.
            seed: The seed of the parameters.
            dtype: The dtype of the computation: float32 or bfloat16; float16 means float32.
            _do_init: Whether to make parameters; otherwise `params=` of each call has them.
            gradient_checkpointing: Whether backward passes compute activations again.
            add_pooling_layer: Unused; the class decides.

        Raises:
            ConfigError: The config belongs to another class, or has an unsupported value.
        """
        del add_pooling_layer
        self._config = as_config(config)
        self.checkpoint = describe(self._config.to_dict(), self.model_type, self.architecture)
        if jnp.dtype(dtype) == jnp.float16:
            warn_once(f"{type(self).__name__}: dtype float16 is computed in float32")
        self.dtype = dtype
        self.key = jax.random.PRNGKey(seed)
        self.input_shape = (1, 1) if input_shape is None else input_shape
        self.generation_config = SimpleNamespace()
        self._remat = gradient_checkpointing
        self._params: dict[str, Any] = {}
        self._is_initialized = _do_init
        if _do_init:
            self._params = self.init_weights(self.key)

    @property
    def config(self) -> Any:
        """The configuration, as it was given."""
        return self._config

    @property
    def program(self) -> Program:
        """The functions of the model, shared with others of the same configuration."""
        return program_for(self.checkpoint, self.dtype, self._remat)

    @property
    def module(self) -> FlaxModule:
        """The model without its state: `init` and `apply`, as a Flax module has them."""
        return FlaxModule(self)

    @property
    def framework(self) -> str:
        """The name of the library."""
        return "flax"

    @property
    def params_shape_tree(self) -> dict[str, Any]:
        """The tree of parameters, as shapes and dtypes."""
        return self.program.shapes

    @property
    def required_params(self) -> set[tuple[str, ...]]:
        """The paths of all parameters."""
        return set(flatten_dict(self.program.shapes))

    @property
    def params(self) -> dict[str, Any]:
        """The tree of parameters; ArgumentError for a model made with `_do_init=False`."""
        if not self._is_initialized:
            raise ArgumentError(
                f"params: {type(self).__name__} was made with _do_init=False and holds none: pass "
                "params=... to each call, from from_pretrained or init_weights"
            )
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        if not self._is_initialized:
            raise ArgumentError(
                f"params: {type(self).__name__} was made with _do_init=False and holds none: keep "
                "them yourself"
            )
        self._params = self.program.check(params)

    def init_weights(
        self, rng: jax.Array, input_shape: Any = None, params: Any = None
    ) -> dict[str, Any]:
        """Returns new parameters, or the given ones completed with new ones.

        Args:
            rng: A PRNG key, old or new.
            input_shape: Unused.
            params: A tree that may lack some parameters.
        """
        del input_shape
        fresh = self.program.init(as_key(rng))
        if params is None:
            return fresh
        found = flatten_dict(fresh) | flatten_dict(unfreeze(params))
        return unflatten_dict({path: found[path] for path in flatten_dict(fresh)})

    def enable_gradient_checkpointing(self) -> None:
        """Makes backward passes compute activations again instead of keeping them."""
        self._remat = True

    def to_bf16(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to bfloat16, where `mask`, a tree of bool, is true."""
        return _cast(params, jnp.bfloat16, mask)

    def to_fp16(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to float16, where `mask`, a tree of bool, is true."""
        return _cast(params, jnp.float16, mask)

    def to_fp32(self, params: Any, mask: Any = None) -> Any:
        """Returns a tree cast to float32, where `mask`, a tree of bool, is true."""
        return _cast(params, jnp.float32, mask)

    @classmethod
    def can_generate(cls) -> bool:
        """Whether the class has a head that predicts the next token."""
        found = flax_architecture(FORMATS, cls.model_type, cls.architecture)
        return isinstance(found[1].task, CausalLMTask | Seq2SeqLMTask)

    def init_cache(self, batch_size: int, max_length: int, encoder_outputs: Any = None) -> Any:
        """Returns the `past_key_values` before the first token.

        Args:
            batch_size: The number of rows.
            max_length: The largest number of tokens of a row.
            encoder_outputs: What `encode` returned, for an encoder-decoder.
        """
        program = self.program
        if not (program.seq2seq or isinstance(program.checkpoint.config, DecoderConfig)):
            raise ArgumentError(f"init_cache: {type(self).__name__} is an encoder, without a cache")
        states = None if encoder_outputs is None else encoder_outputs[0]
        return program.init_cache(batch_size, max_length, states)

    # The methods of a class pass their arguments, by name, to the following.

    def _forward(self, given: dict[str, Any]) -> Any:
        params, options, as_dict, given = self._split(given)
        past = given.pop("past_key_values", None)
        self._check_encoder_states(given)
        if past is not None:
            return self._step(params, given, past, options, as_dict)
        head_mask = given.pop("head_mask", None)
        found = self.program.forward(params, self.program.inputs(given), head_mask, **options)
        return self._finished(found, self._output, as_dict)

    def _text_features(self, given: dict[str, Any]) -> Any:
        return self._features("text", given)

    def _image_features(self, given: dict[str, Any]) -> Any:
        return self._features("image", given)

    def _features(self, name: str, given: dict[str, Any]) -> Any:
        params, options, _, given = self._split(given)
        return self.program.features(params, self.program.inputs(given), options["key"], name)

    def _encode(self, given: dict[str, Any]) -> Any:
        if not self.program.seq2seq:
            return self(**given)
        params, options, as_dict, given = self._split(given)
        found = self.program.encode(params, self.program.inputs(given), **options)
        found = {name.removeprefix("encoder_"): x for name, x in found.items()}
        return self._finished(found, OUTPUTS["FlaxBaseModelOutput"], as_dict)

    def _decode(self, given: dict[str, Any]) -> Any:
        params, options, as_dict, given = self._split(given)
        encoded = given.pop("encoder_outputs")[0]
        mask = given.pop("encoder_attention_mask", None)
        past = given.pop("past_key_values", None)
        if past is not None:
            given = {name.removeprefix("decoder_"): x for name, x in given.items()}
            return self._step(params, given, past, options, as_dict, encoded, mask)
        found = self.program.decode(params, self.program.inputs(given), encoded, mask, **options)
        found = {name.removeprefix("decoder_"): x for name, x in found.items()}
        return self._finished(found, self._output_of_decoder, as_dict)

    def _step(self, params, given, past, options, as_dict, encoded=None, mask=None) -> Any:
        for name in ("hidden_states", "attentions"):
            if options[name]:
                raise ArgumentError(f"output_{name} = True: not with past_key_values")
        program = self.program
        outputs, past = program.step(params, program.inputs(given), past, encoded, mask)
        made = self._output_of_decoder if program.seq2seq else self._output
        return self._finished({**outputs, "past_key_values": past}, made, as_dict)

    @property
    def _output(self) -> type:
        config = self.program.checkpoint.config
        causal = isinstance(config, DecoderConfig)
        return output_for(self.architecture, config.is_encoder_decoder, causal)

    @property
    def _output_of_decoder(self) -> type:
        if self.can_generate():
            return OUTPUTS["FlaxCausalLMOutputWithCrossAttentions"]
        return OUTPUTS["FlaxBaseModelOutputWithPastAndCrossAttentions"]

    def _split(self, given: dict[str, Any]) -> tuple[Any, dict[str, Any], bool, dict[str, Any]]:
        """The parameters, the options of the program, return_dict, and the arrays."""
        given = {name: x for name, x in given.items() if name not in _IGNORED}
        params = given.pop("params", None)
        params = self.params if params is None else self.program.check(params)
        hidden_states, attentions, as_dict = (
            bool(given.pop(name, getattr(self._config, name, name == "return_dict")))
            for name in ("output_hidden_states", "output_attentions", "return_dict")
        )
        key = given.pop("dropout_rng", None)
        train = given.pop("train", False) or not given.pop("deterministic", True)
        if train and key is None:
            raise ArgumentError("dropout_rng = None: must be a PRNG key, since train is True")
        key = as_key(key) if train else None
        options = {"hidden_states": hidden_states, "attentions": attentions, "key": key}
        return params, options, as_dict, given

    def _check_encoder_states(self, given: dict[str, Any]) -> None:
        given.pop("encoder_attention_mask", None)
        if given.pop("encoder_hidden_states", None) is not None:
            raise ArgumentError(
                f"encoder_hidden_states: {type(self).__name__} by itself has no cross-attention: "
                "use FlaxEncoderDecoderModel or FlaxVisionEncoderDecoderModel"
            )

    def _finished(self, found: Mapping[str, Any], made: type, as_dict: bool) -> Any:
        """The outputs as an object of the class `made`, or as a tuple."""
        parts: dict[str, dict[str, Any]] = {}
        outputs = {}
        for name, value in found.items():
            part, _, own = name.rpartition(".")
            if own.endswith(_STATES):
                value = tuple(value)
            (parts.setdefault(part, {}) if part else outputs)[own] = value
        pooled = OUTPUTS["FlaxBaseModelOutputWithPooling"]
        outputs |= {name: pooled(**_fields(values, pooled)) for name, values in parts.items()}
        output = made(**_fields(outputs, made))
        return output if as_dict else output.to_tuple()


def _fields(outputs: Mapping[str, Any], made: type) -> dict[str, Any]:
    return {name: value for name, value in outputs.items() if name in made.fields}


def _cast(params: Any, dtype: Any, mask: Any) -> Any:
    def cast(x, chosen=True):
        return x.astype(dtype) if chosen and jnp.issubdtype(x.dtype, jnp.floating) else x

    if mask is None:
        return jax.tree.map(cast, params)
    # The mask may be frozen where the tree is not, and the other way round.
    chosen = flatten_dict(unfreeze(mask))
    tree = flatten_dict(unfreeze(params))
    found = unflatten_dict({path: cast(x, chosen[path]) for path, x in tree.items()})
    return FrozenDict(found) if isinstance(params, FrozenDict) else found


_KINDS = {f"Flax{name}": kind for kind, names in FLAX_CLASSES.items() for name in names}


@cache
def model_class(name: str) -> type[FlaxPreTrainedModel] | None:
    """Returns the class with a name such as "FlaxBertModel"; None if there is none."""
    kind = _KINDS.get(name)
    own = name.removeprefix("Flax")
    if kind is None or not calls.has_call(kind):
        return None
    found = flax_architecture(FORMATS, kind, own)
    if found is None:
        return None
    model_format, architecture = found
    methods = {"__call__": calls.call_of(kind, own)}
    if kind in calls.SEQ2SEQ:
        methods["encode"] = calls.encode_of(kind)
        if not own.endswith("EncoderModel"):
            methods["decode"] = calls.decode_of(kind)
    if own in ("CLIPModel", "VisionTextDualEncoderModel"):
        methods |= calls.features_of()
    prefix = model_format.prefix if architecture.prefix is None else architecture.prefix
    return type(
        name,
        (FlaxPreTrainedModel,),
        {
            **methods,
            "__doc__": f"{own} of transformers 4, in JAX.",
            "__module__": "jaxformer.flax",
            "model_type": kind,
            "architecture": own,
            "main_input_name": calls.names_of_call(kind, own)[0],
            "base_model_prefix": prefix.removesuffix("."),
        },
    )
