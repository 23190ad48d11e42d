"""Generation with the arguments of transformers' FlaxGenerationMixin, as a pure function."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.flax.config import as_key, options_of
from jaxformer.flax.outputs import OUTPUTS, FlaxOutput
from jaxformer.generation.config import (
    TOKEN_FIELDS,
    GenerationConfig,
    recommendations,
    supported_options,
)

_NEW_TOKENS = 20
"""The number of new tokens if neither an argument nor a file says it."""
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
        program = self.program
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
        key = jax.random.key(0) if prng_key is None else as_key(prng_key)
        params = self.params if params is None else program.check(params)
        found = program.generate(params, arrays, key, config)
        name = "Beam" if config.num_beams > 1 else "Sample" if config.samples else "GreedySearch"
        return OUTPUTS[f"Flax{name}{'Search' * (name == 'Beam')}Output"](**found)

    def _recommended(self, generation_config: Any) -> dict[str, Any]:
        """The options that count where none is given: of a file, or else of the config."""
        config = self.config.to_dict()
        own = {**options_of(self.generation_config), **options_of(generation_config)}
        tokens = {name: config[name] for name in TOKEN_FIELDS if config.get(name) is not None}
        found = {} if own else recommendations(self.program.pretrained)
        return {**found, **tokens, **{n: x for n, x in own.items() if x is not None}}


def _starts(start: int | None, recommended: Mapping[str, Any], rows: int) -> jax.Array:
    start = recommended.get("bos_token_id") if start is None else start
    if start is None:
        raise ConfigError("decoder_start_token_id = None: must be the token that starts an answer")
    return jnp.full((rows, 1), start, jnp.int32)
