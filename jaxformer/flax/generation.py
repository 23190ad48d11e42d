"""Generation with the arguments of transformers' FlaxGenerationMixin, as a pure function."""

from functools import partial
from typing import Any

import jax

from jaxformer.errors import ArgumentError
from jaxformer.functional.dropout import as_key
from jaxformer.generation.api import combined_config
from jaxformer.generation.config import TOKEN_FIELDS, recommendations
from jaxformer.generation.inputs import start_token
from jaxformer.generation.pure import AlignedProcessor, generate_for
from jaxformer.hub.flax_api.config import options_of
from jaxformer.hub.flax_api.outputs import OUTPUTS, FlaxOutput

_LENGTH = 20
"""The default `max_length`."""
_ARRAYS = ("attention_mask", "decoder_input_ids", "decoder_attention_mask")
_OF_FILES = (
    "decoder_start_token_id",
    "forced_decoder_ids",
    "is_multilingual",
    "lang_to_id",
    "no_timestamps_token_id",
    "task_to_id",
)
"""Options that replace fields of generation_config.json."""
_IGNORED = ("bos_token_id", "position_ids", "return_dict", "token_type_ids", "use_cache")


class GenerationMixin:
    """`generate`."""

    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        prng_key: jax.Array | None = None,
        trace: bool = True,
        params: Any = None,
        logits_processor: Any = None,
        **options: Any,
    ) -> FlaxOutput:
        """Continues prompts, or generates from an encoder's inputs; works under `jax.jit`.

        Args:
            input_ids: int `[B, T]`, or the images or sounds that the encoder reads; may also be
                passed under the name of the model's first argument (`input_features=`, ...).
            generation_config: Options, as a dictionary or a GenerationConfig of transformers.
            prng_key: The key for sampling; None: seed 0.
            trace: Unused: the program is always compiled.
            params: The parameters; None: the parameters of the model.
            logits_processor: Functions from the tokens so far `[B, S]`, the scores `[B, V]` and the
                number of tokens to new scores, applied after the processors of the options.
            **options: attention_mask, decoder_input_ids; max_length (prompt included),
                max_new_tokens, do_sample, num_beams and other fields of `GenerationConfig`; for
                Whisper also language, task and return_timestamps.

        Returns:
            `sequences`, int32 `[B n, max_length]`, padded on the right, and with beams `scores`.

        Raises:
            ArgumentError: The class has no head that predicts the next token, or inputs are
                missing.
            ConfigError: An option is unknown or has an invalid value.
        """
        del trace
        if not self.can_generate():
            raise ArgumentError(
                f"generate: {type(self).__name__} has no head that predicts the next token: use a "
                "class of FlaxAutoModelForCausalLM or FlaxAutoModelForSeq2SeqLM"
            )
        program = self.program
        given = {name: x for name, x in options.items() if x is not None and name not in _IGNORED}
        main = given.pop(self.main_input_name, input_ids)
        if main is None:
            raise ArgumentError(f"generate: {self.main_input_name} is missing: give the inputs")
        arrays = {name: given.pop(name) for name in _ARRAYS if name in given}
        arrays = program.arrays({self.main_input_name: main} | arrays)
        recommended = self._recommended(generation_config)
        recommended |= {name: given.pop(name) for name in _OF_FILES if name in given}
        if recommended.get("is_multilingual") is False:
            recommended |= {"lang_to_id": None, "task_to_id": None}
        if "max_new_tokens" in given:
            given.pop("max_length", None)
        model, where = program.pretrained, type(self).__name__
        config = combined_config(model, recommended, given, where).with_tokens(model, recommended)
        answers = model.config.is_encoder_decoder and "decoder_input_ids" not in arrays
        start = start_token(model.config, recommended) if answers else None
        own = tuple(AlignedProcessor(each, config.padding) for each in logits_processor or ())
        key = jax.random.key(0) if prng_key is None else as_key(prng_key)
        params = self.params if params is None else program.tree.checked(params)
        found = _generate(program, config, start, own, params, arrays, key)
        name = "Sample" if config.samples else "GreedySearch"
        return OUTPUTS[f"Flax{'BeamSearch' if config.num_beams > 1 else name}Output"](**found)

    def _recommended(self, generation_config: Any) -> dict[str, Any]:
        """Returns the defaults of options, from generation_config.json or else from the config."""
        config = self.config.to_dict()
        own = {**options_of(self.generation_config), **options_of(generation_config)}
        tokens = {name: config[name] for name in TOKEN_FIELDS if config.get(name) is not None}
        found = {} if own else recommendations(self.program.pretrained)
        own = {name: x for name, x in own.items() if x is not None}
        return {"max_length": _LENGTH, **found, **tokens, **own}


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _generate(program, config, start, processors, params, inputs, key):
    model = program.arranged.module(program.arranged.arrange(program.tree.parameters(params)))
    options = {"encoder": program.module(params), "start": start, "processors": processors}
    return generate_for(model, program.checkpoint, inputs, config, key, **options)
