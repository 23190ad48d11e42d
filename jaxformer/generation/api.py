"""Tokens that a model with its weights adds to prompts: numpy in, numpy out."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from jaxformer.checks import SWITCH, plain
from jaxformer.errors import ConfigError, DataError, check_argument
from jaxformer.generation.checks import TOKEN
from jaxformer.generation.compiled import check_generates
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.continuation import collected, continuations
from jaxformer.generation.decode.state import EncoderOutputs
from jaxformer.generation.engine import Engine, engine_for, row_keys
from jaxformer.generation.inputs import padded, rows_of, texts_of
from jaxformer.generation.prompts import are_real, batch_of, bucket, copies, real_tokens
from jaxformer.generation.scoring import Continuations, Score, Scorer
from jaxformer.generation.speculative_engine import SpeculativeEngine
from jaxformer.generation.streaming.text_stream import TextStream
from jaxformer.generation.streaming.token_stream import READ_EVERY, sliding_stream
from jaxformer.hub.inputs import checked_inputs
from jaxformer.io.model_files import read_object
from jaxformer.models import DecoderConfig, EncoderDecoderConfig
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.model import Pretrained, check_pretrained

Arrays = Mapping[str, Any]
Inputs = Arrays | str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | np.ndarray
"""Arrays under transformers' names; or texts or token ids, of one prompt or of several."""

RECOMMENDED = "generation_config.json"
"""Where a folder of transformers' says how its model is best asked."""
_LEAST_SOURCE = 16


def generate(
    pretrained: Pretrained,
    inputs: Inputs,
    *,
    output_scores: bool = False,
    slide: bool = False,
    draft: Pretrained | None = None,
    proposals: int = 4,
    storage: Storage | None = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Continues prompts, or answers what an encoder reads.

    Args:
        pretrained: The model.
        inputs: "input_ids" [B, T], "attention_mask" (padding on either side), and for an
            encoder-decoder perhaps "decoder_input_ids", with which its answer begins. Or only a
            text, token ids, or a list of either for several prompts; shorter ones are padded on
            the left.
        output_scores: Whether to return the logits from which each token was chosen; without beams
            and `slide`.
        slide: Where the model's positions are too few for the prompt and what is added, read the
            last half of the text anew whenever they are used up, instead of an error.
        draft: A smaller decoder with the same tokens that proposes some, which this one then reads
            in one pass (speculative decoding): faster, and the same distribution.
        proposals: How many tokens it proposes at a time.
        storage: Type of the cache: "float32", "bfloat16", "float16" or "int8"; None: that of the
            computation.
        **options: Fields of `GenerationConfig`: max_new_tokens, temperature, num_beams, ... Each
            defaults to what generation_config.json recommends. Sampling options, such as
            temperature and top_p, imply do_sample.

    Returns:
        "sequences" int32 [B n, T'] with n = num_return_sequences, those of a prompt in a row: the
        prompt as it was given (of an encoder-decoder: what its answer begins with), the new tokens,
        then padding. "log_probs" float32 [B n, new tokens] of the tokens in the model's own
        distribution, 0 at padding; with `output_scores` also "scores" float32 [new tokens, B n, V],
        after penalties and filters. From beam search "sequences_scores" [B n] instead of these.
        For prompts that are texts also "texts", a list of the B n new ones.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        ConfigError: An option has a value that it cannot have, or the model has too few positions.
        DataError: A prompt is empty, or has a token that is not in the vocabulary; or there is no
            tokenizer for a text.
    """
    for name, value in {"output_scores": output_scores, "slide": slide}.items():
        check_argument(name, value, SWITCH.allows(plain(value)), SWITCH.expected)
    decoding = decoding_for(pretrained, options)
    prompts, mask, sources = asked(pretrained, inputs, decoding.padding)
    batch = batch_of(prompts, mask, pretrained.config.vocab_size)
    if slide and (decoding.num_beams > 1 or output_scores):
        raise ConfigError("slide = True: not with beams or output_scores")
    generator = generator_of(pretrained, decoding, draft, proposals, storage)
    if decoding.stop_strings:
        raise ConfigError(
            f"stop_strings = {decoding.stop_strings}: must be () here; the generate command and "
            "jaxformer.generation.text.Writer end texts at strings"
        )
    if decoding.num_beams > 1:
        found = generator.beams(batch, decoding, sources=sources)
        scores = {"sequences_scores": found.scores}
    else:
        batch, sources = copies((batch, sources), decoding.num_return_sequences)
        keys = row_keys(decoding.seed, np.arange(len(batch.lengths)))
        options = {"sources": sources}
        if slide:
            found = collected(
                sliding_stream(generator, batch, decoding, keys, every=READ_EVERY, **options)
            )
        else:
            options["keep_scores"] = output_scores
            found = continuations(generator, batch, decoding, keys, **options)
        scores = {"log_probs": found.log_probs}
        if output_scores:
            scores["scores"] = found.scores
    prompts = np.repeat(prompts, decoding.num_return_sequences, axis=0)
    real = are_real(found.lengths, found.tokens.shape[1])
    new = np.where(real, found.tokens, decoding.padding)
    sequences = np.concatenate([prompts, new], axis=1)
    if texts_of(inputs) is None:
        return {"sequences": sequences, **scores}
    rows = zip(found.tokens, found.lengths, strict=True)
    texts = [_text(pretrained, tokens[:length]) for tokens, length in rows]
    return {"sequences": sequences, "texts": texts, **scores}


def score(
    pretrained: Pretrained, inputs: Inputs, continuations: Continuations
) -> list[list[Score]]:
    """How probable continuations are: for evaluation by likelihood and multiple choice.

    Args:
        pretrained: The model.
        inputs: The prompts, as for `generate`.
        continuations: For each prompt several, each with its tokens (without special ones, unless
            they are to be scored).

    Returns:
        For each prompt the scores of its continuations; `generation.scoring.best_of` chooses.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        ConfigError: The model does not predict the next token.
        DataError: A text is longer than the model's positions; a prompt or continuation is empty,
            or has a token that is not in the vocabulary.
    """
    prompts, mask, sources = asked(pretrained, inputs)
    batch = batch_of(prompts, mask, pretrained.config.vocab_size)
    return Scorer(engine_for(pretrained))(batch, continuations, sources=sources)


def generator_of(
    pretrained: Pretrained,
    decoding: GenerationConfig,
    draft: Pretrained | None = None,
    proposals: int = 4,
    storage: Storage | None = None,
) -> Engine | SpeculativeEngine:
    """What generates: the model alone, or with another that proposes.

    Raises:
        ConfigError: The two do not go together, or not with beams; the storage is not known.
    """
    if draft is not None:
        check_pretrained("draft", draft)
    if storage not in (None, *get_args(Storage)):
        raise ConfigError(f"storage = {storage!r}: one of {', '.join(get_args(Storage))}")
    target = engine_for(pretrained)
    if storage is not None:
        target = target.storing(storage)
    if draft is None:
        return target
    if decoding.num_beams > 1:
        raise ConfigError(
            f"draft: not with num_beams = {decoding.num_beams}: leave one of them out"
        )
    for model in (pretrained, draft):
        if not isinstance(model.config, DecoderConfig):
            raise ConfigError(
                f"draft: both models must be decoders, and one is a {type(model.config).__name__}"
            )
    return SpeculativeEngine(target, engine_for(draft), proposals)


def decoding_for(pretrained: Pretrained, options: Mapping[str, Any]) -> GenerationConfig:
    """How a model is asked: what is given, else what its folder recommends.

    Raises:
        ArgumentError: There is no model.
        ConfigError: The model does not predict the next token; an option is not known or has a
            value that it cannot have.
        DataError: Generation_config.json cannot be read.
    """
    check_pretrained("pretrained", pretrained)
    check_generates(pretrained.config)
    vocab_size = pretrained.config.vocab_size
    recommended = {**pretrained.checkpoint.hf_config.values, **_recommendations(pretrained)}
    ends = recommended.get("eos_token_id")
    decoding = GenerationConfig.of(
        recommended | {"eos_token_id": _known(ends, vocab_size)}, options
    )
    decoding.check_vocabulary(vocab_size)
    return decoding


def _recommendations(pretrained: Pretrained) -> dict[str, Any]:
    folder = pretrained.folder
    return {} if folder is None else read_object(folder, RECOMMENDED) or {}


def _known(ends: Any, vocab_size: int) -> Any:
    """The end tokens that a model can write: files name others where a vocabulary was cut."""
    if isinstance(ends, list):
        return [end for end in ends if _known(end, vocab_size) is not None or end is None]
    return None if TOKEN.allows(ends) and ends >= vocab_size else ends


def asked(
    pretrained: Pretrained, inputs: Inputs, padding: int = 0
) -> tuple[np.ndarray, np.ndarray | None, EncoderOutputs]:
    """What a decoder is to continue, and what it reads besides.

    Args:
        pretrained: The model.
        inputs: See `generate`.
        padding: What fills up prompts that are given without.

    Returns:
        Ids int32 [B, T], their mask [B, T] or None, and an encoder's output with its mask.

    Raises:
        ArgumentError: There is no model, or the inputs are of no kind that is known.
        ConfigError: The model does not predict the next token.
        DataError: An array is missing, or does not fit the model.
    """
    check_pretrained("pretrained", pretrained)
    check_generates(pretrained.config)
    config = pretrained.config
    arrays = checked_inputs(_arrays(pretrained, inputs, padding), config)
    if "input_ids" not in arrays:
        raise DataError(f"inputs: input_ids is missing; there are {', '.join(arrays) or 'none'}")
    if "position_ids" in arrays:
        raise DataError("inputs: position_ids: must be left out; attention_mask decides them")
    ids, mask = np.asarray(arrays["input_ids"]), arrays.get("attention_mask")
    if not isinstance(config, EncoderDecoderConfig):
        return ids, mask, ()
    real_tokens(ids, mask, config.vocab_size)
    prompt = arrays.get("decoder_input_ids")
    mask = arrays.get("decoder_attention_mask")
    if prompt is None:
        if mask is not None:
            raise DataError("inputs: decoder_attention_mask is given without decoder_input_ids")
        prompt = np.full((len(ids), 1), _start_token(pretrained), np.int32)
    if len(prompt) != len(ids):
        raise DataError(
            f"inputs: decoder_input_ids has {len(prompt)} rows, and input_ids has {len(ids)}"
        )
    return np.asarray(prompt), mask, pretrained.encode(_lengthened(arrays))


def ids_of_text(pretrained: Pretrained, text: str) -> list[int]:
    """The tokens of a prompt, or of what an encoder reads.

    Raises:
        DataError: The model has no tokenizer.
    """
    encoder = pretrained.prompt_encoder
    encodes = isinstance(pretrained.config, EncoderDecoderConfig)
    return encoder.source(text) if encodes else encoder.plain(text)


def _arrays(pretrained: Pretrained, inputs: Inputs, padding: int) -> Arrays:
    """Inputs under transformers' names."""
    if isinstance(inputs, Mapping):
        return inputs
    texts = texts_of(inputs)
    rows = rows_of(inputs) if texts is None else [ids_of_text(pretrained, text) for text in texts]
    return padded(rows, padding, left=not isinstance(pretrained.config, EncoderDecoderConfig))


def _text(pretrained: Pretrained, tokens: np.ndarray) -> str:
    stream = TextStream(pretrained.prompt_encoder.tokenizer)
    return stream.push(tokens) + stream.flush()


def _start_token(pretrained: Pretrained) -> int:
    """With which an encoder-decoder's answer begins, as in transformers."""
    files = _recommendations(pretrained), pretrained.checkpoint.hf_config.values
    names = "decoder_start_token_id", "bos_token_id"
    given = [values.get(name) for name in names for values in files]
    start = next((token for token in given if token is not None), None)
    size = pretrained.config.vocab_size
    if not (TOKEN.allows(start) and start < size):
        raise ConfigError(
            f"decoder_start_token_id = {start!r} in {RECOMMENDED} or config.json: must be a token "
            f"of the model, 0 to {size - 1}; correct it, or give decoder_input_ids"
        )
    return start


def _lengthened(arrays: Arrays) -> Arrays:
    """What an encoder reads, padded on the right so that programs are compiled for few lengths."""
    ids = np.asarray(arrays["input_ids"])
    mask = np.asarray(arrays.get("attention_mask", np.ones_like(ids)))
    more = ((0, 0), (0, bucket(ids.shape[1], _LEAST_SOURCE) - ids.shape[1]))
    return {"input_ids": np.pad(ids, more), "attention_mask": np.pad(mask, more)}
