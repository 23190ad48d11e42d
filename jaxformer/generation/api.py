"""`jaxformer.generate` and `chat`: arrays, tokens, texts or messages in, NumPy arrays out."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import jax
import numpy as np
from tokenizers import Tokenizer

from jaxformer.checks import SWITCH, check_argument, check_arguments, plain
from jaxformer.data.chat.dialogue.dialogue import Tools
from jaxformer.data.chat.template import Message
from jaxformer.errors import ArgumentError, ConfigError, DataError, shortened
from jaxformer.functional.activations import Hook, Hooks
from jaxformer.generation.config import TOKEN, GenerationConfig, recommendations, supported_options
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import Engine, engine_for
from jaxformer.generation.hooked import check_per_token
from jaxformer.generation.inputs import (
    Inputs,
    are_real,
    blank_inputs,
    check_generates,
    prepare_inputs,
    reads_files,
    reads_sound,
    texts_of,
)
from jaxformer.generation.text_stream import TextStream
from jaxformer.generation.tokens import continuations
from jaxformer.io.notices import warn_once
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.dialogues import Conversations, conversations_in
from jaxformer.pretrained.model import NO_HOOKS, Pretrained, check_pretrained

_BANNED = {"suppress_tokens", "begin_suppress_tokens"}


def generate(
    pretrained: Pretrained,
    inputs: Inputs,
    *,
    output_scores: bool = False,
    slide: bool = False,
    draft: Pretrained | None = None,
    proposals: int = 4,
    storage: Storage | None = None,
    hooks: Mapping[str, Hook] | None = None,
    tools: Tools | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Continues prompts; an encoder-decoder answers them, or describes images.

    Args:
        pretrained: The model.
        inputs: "input_ids" [B, T], "attention_mask" (padding on either side), and optionally, for
            an encoder-decoder, "decoder_input_ids", the first tokens of its answer. Or only a text,
            token ids, or a list of either for several prompts, which are padded on the left; or
            messages, a list of {"role": "user", "content": "..."} or several such lists, which the
            chat template makes a prompt. For a model that reads images: the file of one or a list
            of files, which are scaled and normalised as in preprocessor_config.json, or
            "pixel_values" [B, C, height, width].
        output_scores: Whether to return the logits from which each token was chosen; not with beams
            or `slide`.
        slide: If the model has too few positions for the prompt and the new tokens, read the last
            half of the text again whenever they are used up, instead of raising an error.
        draft: A smaller decoder with the same tokens that proposes some, which the model then
            verifies in one pass (speculative decoding): faster, with the same distribution.
        proposals: The number of tokens to propose at a time.
        storage: The dtype of the cache: "float32", "bfloat16", "float16" or "int8"; None: the
            compute dtype.
        hooks: By name or pattern, a function from an activation of the tokens that a pass reads to
            its replacement, as for `run_with_hooks`; not with `draft`.
        tools: JSON schemas of the functions that the model may call, with messages: {"type":
            "function", "function": {"name": ..., "description": ..., "parameters": ...}}, ... Or
            Python functions, whose annotations and docstrings transformers reads.
        **options: Fields of `GenerationConfig`: max_new_tokens, temperature, num_beams, ... Each
            defaults to the recommendation of generation_config.json. Sampling options, such as
            temperature and top_p, imply do_sample.

    Returns:
        "sequences" int32 [B n, T'] with n = num_return_sequences, grouped by prompt: the prompt as
        it was given (for an encoder-decoder: the first tokens of its answer), the new tokens up to
        the one that completes a stop string, then padding. "log_probs" float32 [B n, new tokens],
        the model's log-probabilities, 0 at padding; with `output_scores` also "scores" float32 [new
        tokens, B n, V], after penalties and filters. Beam search returns "sequences_scores" [B n]
        instead of these. If the prompts are texts or files of images, also "texts", a list of the B
        n new ones, without the stop strings that ended them.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: An option has an invalid value, or the model has too few positions.
        DataError: A prompt is empty, or contains a token that is not in the vocabulary; or there is
            no tokenizer for a text or a stop string.
    """
    check_arguments(output_scores=(plain(output_scores), SWITCH), slide=(plain(slide), SWITCH))
    config = generation_config_for(pretrained, options)
    chats = Conversations.of(pretrained, inputs, tools)
    if chats is not None:
        inputs = chats.prompts
        config = config.with_end_token(chats.end_of_turn, options)
    hooks = _checked_hooks(hooks, draft)
    given = inputs, config.padding, hooks, config.first_tokens(pretrained)
    ids, prompts, encoder_outputs = prepare_inputs(pretrained, *given)
    _check_matched(pretrained, ids, encoder_outputs, hooks)
    config = config.for_width(prompts.tokens.shape[1])
    check_together(config, slide, output_scores)
    engine = build_engine(pretrained, config, draft, proposals, storage)
    engine = engine.with_hooks(hooks) if hooks.patterns else engine
    found = continuations(
        engine,
        prompts,
        config,
        _tokenizer(pretrained, config),
        slide=slide,
        encoder_outputs=encoder_outputs,
        keep_scores=output_scores,
    )
    if config.num_beams > 1:
        scores = {"sequences_scores": found.scores}
    else:
        scores = {"log_probs": found.log_probs}
        if output_scores:
            scores["scores"] = found.scores
    real = are_real(found.lengths, found.tokens.shape[1])
    new = np.where(real, found.tokens, config.padding)
    prefixes = np.repeat(ids, config.num_return_sequences, axis=0)
    outputs = {"sequences": np.concatenate([prefixes, new], axis=1), **scores}
    if chats or reads_files(pretrained, inputs) or texts_of(inputs):
        rows = [row[:n] for row, n in zip(found.tokens, found.lengths, strict=True)]
        outputs["texts"] = [_text(pretrained, row, config.stop_strings) for row in rows]
        if chats:
            outputs["messages"] = chats.messages(rows, outputs["texts"])
    return outputs


def chat(
    pretrained: Pretrained,
    messages: Sequence[Message],
    *,
    tools: Tools | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Answers messages.

    A dialogue continues by appending the answer and the next question::

        messages = [{"role": "user", "content": "How deep is the lake?"}]
        messages.append(jaxformer.chat(model, messages))
        messages.append({"role": "user", "content": "And how long?"})

    Args:
        pretrained: The model, with a chat template.
        messages: {"role": ..., "content": ...}, the last one of the user or of a tool. An answer
            that called tools is followed by their results: {"role": "tool", "name": ...,
            "tool_call_id": ..., "content": ...}.
        tools: The functions that the model may call, as for `generate`.
        **options: The other arguments of `generate`.

    Returns:
        The answer: {"role": "assistant", "content": text}, with "tool_calls" where it calls tools:
        a list of {"id", "type": "function", "function": {"name", "arguments"}}.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: As for `generate`.
        DataError: The model has no chat template, the template rejects the messages, or does not
            support the given tools.
    """
    chats = conversations_in(messages)
    if chats is None or chats[0] is not messages:
        raise ArgumentError(
            f"messages = {shortened(messages)}: must be a list of "
            '{"role": "user", "content": "..."} and others'
        )
    count = options.get("num_return_sequences", 1)
    check_argument("num_return_sequences", count, count == 1, "1, or generate gives several")
    return generate(pretrained, messages, tools=tools, **options)["messages"][0]


def build_engine(
    pretrained: Pretrained,
    config: GenerationConfig,
    draft: Pretrained | None = None,
    proposals: int = 4,
    storage: Storage | None = None,
) -> Engine:
    """The generation engine of a model; arguments are those of `generate`."""
    if draft is not None:
        check_pretrained("draft", draft)
    if storage not in (None, *get_args(Storage)):
        raise ConfigError(f"storage = {storage!r}: one of {', '.join(get_args(Storage))}")
    target = engine_for(pretrained)
    if storage is not None:
        target = target.with_storage(storage)
    if draft is None:
        return target
    if config.num_beams > 1:
        raise ConfigError(f"draft: not with num_beams = {config.num_beams}: leave one of them out")
    for model in (pretrained, draft):
        if model.config.is_encoder_decoder:
            raise ConfigError(
                f"draft: both models must be decoders, and one is a {type(model.config).__name__}"
            )
    from jaxformer.generation.speculative import SpeculativeEngine

    return SpeculativeEngine(target, engine_for(draft), proposals)


def generation_config_for(pretrained: Pretrained, options: Mapping[str, Any]) -> GenerationConfig:
    """The options of a generation: the given ones, else those that the model's files recommend."""
    check_pretrained("pretrained", pretrained)
    check_generates(pretrained.config)
    recommended, where = recommendations(pretrained), pretrained.folder
    return combined_config(pretrained, recommended, options, where).with_tokens(pretrained)


def combined_config(
    pretrained: Pretrained,
    recommended: Mapping[str, Any],
    options: Mapping[str, Any],
    where: object,
) -> GenerationConfig:
    """The options of a generation: the given ones, else those that `where` recommends."""
    model = pretrained.config
    kind, further = GenerationConfig, ()
    if reads_sound(pretrained):
        from jaxformer.generation.speech.config import KNOWN, SpeechGenerationConfig

        kind, further = SpeechGenerationConfig, KNOWN
    recommended = supported_options(recommended, where, further)
    ends = _known(recommended.get("eos_token_id"), model.vocab_size)
    longest = (model.decoder_position if model.is_encoder_decoder else model.position).max_length
    if TOKEN.allows(recommended.get("max_length")) and longest is not None:
        recommended |= {"max_length": min(recommended["max_length"], longest)}
    for name in _BANNED & recommended.keys():  # lists of tokens that files share
        recommended[name] = _known(recommended[name], model.vocab_size)
    config = kind.of(recommended | {"eos_token_id": ends}, options)
    config.check_vocabulary(model.vocab_size)
    beams = recommended.get("num_beams", 1)
    if config.do_sample and config.num_beams == 1 and beams != 1 and "num_beams" not in options:
        warn_once(f"{where}: num_beams = {beams} is ignored: sampling has no beams")
    return config


def check_together(config: GenerationConfig, slide: bool, output_scores: bool = False) -> None:
    """Raises ConfigError for unsupported combinations of slide, stop strings, beams and scores."""
    if slide and (config.num_beams > 1 or output_scores):
        other = "beams" if config.num_beams > 1 else "output_scores"
        raise ConfigError(f"slide = True: not with {other}")
    if config.stop_strings and slide:
        raise ConfigError(f"slide = True: not with stop_strings = {config.stop_strings}")
    if config.stop_strings and config.num_beams > 1:
        raise ConfigError(
            f"stop_strings = {config.stop_strings}: not with num_beams = {config.num_beams}, "
            "whose text is known only at the end"
        )


def _known(ends: Any, vocab_size: int) -> Any:
    """The tokens in the vocabulary: files name others if the vocabulary was cut."""
    if isinstance(ends, list):
        return [end for end in ends if _known(end, vocab_size) is not None or end is None]
    return None if TOKEN.allows(ends) and ends >= vocab_size else ends


def _checked_hooks(hooks: Mapping[str, Hook] | None, draft: Pretrained | None) -> Hooks:
    if hooks is None:
        return NO_HOOKS
    found = Hooks.of(hooks)
    check_per_token(hooks)
    if draft is not None:
        raise ConfigError("hooks: not with a draft: leave one of them out")
    return found


def _check_matched(
    pretrained: Pretrained, ids: np.ndarray, encoder_outputs: EncoderOutputs, hooks: Hooks
) -> None:
    """Raises ArgumentError if a hook has no activation to change."""
    if hooks.patterns:
        inputs = {"decoder_input_ids" if encoder_outputs else "input_ids": ids}
        if encoder_outputs:
            inputs |= blank_inputs(pretrained, *encoder_outputs[0].shape[:2])
        jax.eval_shape(lambda inputs: pretrained.activations(inputs, hooks=hooks), inputs)


def _tokenizer(pretrained: Pretrained, config: GenerationConfig) -> Tokenizer | None:
    """The tokenizer that decodes texts to find stop strings in them; None if there are none."""
    if not config.stop_strings:
        return None
    try:
        return pretrained.prompt_encoder.tokenizer
    except DataError as error:
        raise DataError(
            f"stop_strings = {config.stop_strings}: must be () without a tokenizer: {error}"
        ) from error


def _text(pretrained: Pretrained, tokens: np.ndarray, stop: tuple[str, ...]) -> str:
    stream = TextStream(pretrained.prompt_encoder.tokenizer, stop)
    return stream.push(tokens) + stream.flush()
