"""Generation with the arguments of transformers' FlaxGenerationMixin, as a pure function."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.flax.outputs import OUTPUTS, FlaxOutput
from jaxformer.generation.config import GenerationConfig, recommendations, supported_options
from jaxformer.generation.decode.beam import BeamSearch, beam_search
from jaxformer.generation.decode.loop import generate_token, generate_tokens, init_state, prefill
from jaxformer.generation.decode.processors import History
from jaxformer.nn.cache import CacheShape

if TYPE_CHECKING:
    from jaxformer.flax.program import Program

_NEW_TOKENS = 20
"""The number of new tokens if neither an argument nor a file says it."""
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_IGNORED = ("position_ids", "return_dict", "token_type_ids", "use_cache")


class GenerationMixin:
    """`generate`."""

    def generate(
        self,
        input_ids: Any,
        generation_config: Any = None,
        prng_key: jax.Array | None = None,
        trace: bool = True,
        params: Any = None,
        logits_processor: Any = None,
        **options: Any,
    ) -> FlaxOutput:
        """Continues prompts, or answers them; also under `jax.jit`.

        Args:
            input_ids: int `[B, T]`, or the images `[B, C, height, width]` that an encoder reads.
            generation_config: Options, as a dictionary or an object of transformers.
            prng_key: The key for sampling; None: that of seed 0.
            trace: Unused: the program is always compiled.
            params: The parameters; None: those of the model.
            logits_processor: Not supported; must be None or empty.
            **options: attention_mask, decoder_input_ids; max_length (prompt included),
                max_new_tokens, do_sample, num_beams and other fields of `GenerationConfig`.

        Returns:
            `sequences`, int32 `[B n, max_length]`, padded on the right, and with beams `scores`.

        Raises:
            ArgumentError: The class has no head that predicts the next token.
            ConfigError: An option is unknown or has an invalid value.
        """
        del trace
        if not self.can_generate():
            raise ArgumentError(
                f"generate: {type(self).__name__} has no head that predicts the next token: use a "
                "class of the kind FlaxAutoModelForCausalLM or FlaxAutoModelForSeq2SeqLM"
            )
        if logits_processor:
            raise ArgumentError("logits_processor: must be None: options choose the processors")
        program: Program = self.program
        arrays = {self.main_input_name: input_ids}
        for name in ("attention_mask", "decoder_input_ids", "decoder_attention_mask"):
            if (given := options.pop(name, None)) is not None:
                arrays[name] = given
        recommended = self._recommended(generation_config)
        given = {n: x for n, x in options.items() if n not in _IGNORED and x is not None}
        start = given.pop("decoder_start_token_id", None)
        start = recommended.get("decoder_start_token_id") if start is None else start
        given.pop("bos_token_id", None)
        arrays = program.inputs(arrays)
        if program.seq2seq and "decoder_input_ids" not in arrays:
            arrays["decoder_input_ids"] = _starts(
                start, recommended, len(arrays[self.main_input_name])
            )
        prompt = arrays["decoder_input_ids" if program.seq2seq else "input_ids"]
        lengths = ("max_length", "max_new_tokens")
        if not any(name in {**recommended, **given} for name in lengths):
            recommended["max_new_tokens"] = _NEW_TOKENS
        if given.keys() >= set(lengths):
            del given["max_length"]
        config = GenerationConfig.of(supported_options(recommended, type(self).__name__), given)
        config.check_vocabulary(program.checkpoint.config.vocab_size)
        config = config.for_width(prompt.shape[1])
        key = jax.random.key(0) if prng_key is None else _typed(prng_key)
        params = self.params if params is None else program.check(params)
        found = program.generate(params, arrays, key, config)
        name = "Beam" if config.num_beams > 1 else "Sample" if config.samples else "GreedySearch"
        return OUTPUTS[f"Flax{name}{'Search' * (name == 'Beam')}Output"](**found)

    def _recommended(self, generation_config: Any) -> dict[str, Any]:
        """The options that count where none is given: of a file, or else of the config."""
        config = self.config.to_dict()
        own = {**options_of(self.generation_config), **options_of(generation_config)}
        tokens = {name: config[name] for name in _TOKENS if config.get(name) is not None}
        found = {} if own else recommendations(self.program.pretrained)
        return {**found, **tokens, **{n: x for n, x in own.items() if x is not None}}


def options_of(options: Any) -> dict[str, Any]:
    """Returns options that are an object, a dictionary or None as a dictionary."""
    if options is None:
        return {}
    if hasattr(options, "to_dict"):
        return options.to_dict()
    return dict(vars(options) if isinstance(options, SimpleNamespace) else options)


def _typed(key: jax.Array) -> jax.Array:
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _starts(start: int | None, recommended: Mapping[str, Any], rows: int) -> jax.Array:
    start = recommended.get("bos_token_id") if start is None else start
    if start is None:
        raise ConfigError("decoder_start_token_id = None: must be the token that starts an answer")
    return jnp.full((rows, 1), start, jnp.int32)


def generated(
    program: "Program",
    params: Any,
    arrays: Mapping[str, jax.Array],
    key: jax.Array,
    config: GenerationConfig,
) -> dict[str, jax.Array]:
    """Returns the "sequences" of prompts, and the "scores" of beams: a pure function.

    Args:
        program: The model.
        params: Its tree of parameters.
        arrays: The inputs, with "decoder_input_ids" for an encoder-decoder.
        key: The key for sampling.
        config: The options, with `max_new_tokens`.
    """
    encoded, source = program.encoded(params, arrays)
    part = "decoder_" if program.seq2seq else ""
    ids = arrays[f"{part}input_ids"]
    mask = arrays.get(f"{part}attention_mask", jnp.ones_like(ids))
    several = 1 if config.num_beams > 1 else config.num_return_sequences
    ids, mask, source, encoded = jax.tree.map(
        lambda x: jnp.repeat(x, several, axis=0), (ids, mask, source, encoded)
    )
    width, most = ids.shape[1], config.max_new_tokens
    model = program.arranged(params)
    history = _history(ids, mask, most, source)
    dtype = program.checkpoint.config.compute_dtype
    shape = CacheShape(len(ids), capacity=width + most, chunk=width + most, storage=dtype)
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(ids)))
    state = init_state(model, shape, history, keys=keys, pending=width, encoder_outputs=encoded)
    if config.num_beams > 1:
        cache = prefill(model, history, state.cache, 0, width)
        found = beam_search(model, BeamSearch.of(config), history, cache)
        count = config.num_return_sequences
        tokens, lengths, scores = (x[:, :count].reshape(-1, *x.shape[2:]) for x in found)
        new = _padded(tokens[:, :most], lengths, config.padding)
        ids = jnp.repeat(ids, count, axis=0)
        return {"sequences": jnp.concatenate([ids, new], axis=1), "scores": scores}
    state = generate_token(model, config.sampling, state)
    state = generate_tokens(model, config.sampling, state, most - 1)
    history = state.history
    positions = history.prompt_lengths[:, None] + jnp.arange(most)[None, :]
    tokens = jnp.take_along_axis(history.tokens, positions, axis=1)
    new = _padded(tokens, history.lengths - history.prompt_lengths, config.padding)
    return {"sequences": jnp.concatenate([ids, new], axis=1)}


def _history(ids: jax.Array, mask: jax.Array, most: int, source: jax.Array | None) -> History:
    """The prompts, each from the left of its row, with room for new tokens."""
    order = jnp.argsort(mask <= 0, axis=1, stable=True)
    tokens = jnp.take_along_axis(ids, order, axis=1)
    lengths = jnp.sum(mask > 0, axis=1, dtype=jnp.int32)
    tokens = jnp.pad(tokens, ((0, 0), (0, most)))
    return History(tokens, lengths, lengths, lengths + most, source)


def _padded(tokens: jax.Array, lengths: jax.Array, padding: int) -> jax.Array:
    real = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    return jnp.where(real, tokens, padding)
