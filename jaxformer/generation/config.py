"""The options of generation, with the names and meaning that they have in transformers."""

# long: each option is next to its rule, its processor and the code that reads it from files

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import (
    PROBABILITY,
    SWITCH,
    Rule,
    at_least,
    between,
    check_field,
    check_fields,
    is_integer,
    is_number,
    optional,
    plain,
)
from jaxformer.errors import ConfigError, did_you_mean, shortened
from jaxformer.functional.sampling.next_token import (
    ban_tokens,
    epsilon_filter,
    eta_filter,
    min_p_filter,
    scale_temperature,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.functional.sampling.penalties import ban_sequences, bias_sequences, no_repeat_ngram
from jaxformer.generation.decode.loop import EncoderOutputs, SamplingParams
from jaxformer.generation.decode.processors import (
    BannedAtBegin,
    EndsLater,
    ForcedFirst,
    ForcedLast,
    FrequencyPenalty,
    MinNewTokens,
    NoSourceNgram,
    OnLogits,
    OnTokens,
    PresencePenalty,
    Processor,
    RepetitionPenalty,
    SourcePenalty,
)
from jaxformer.io.model_files import GENERATION, read_object
from jaxformer.io.notices import warn_once
from jaxformer.models.decoder import GenerativeModel
from jaxformer.pretrained.model import Pretrained

_LEAST, _MOST = 1e-30, 1e30
"""The range of factors and terms in which float32 logits neither overflow nor underflow."""
_LARGEST_TOKEN = 2**31 - 1


def _is_number(value) -> bool:
    return is_number(value) and abs(value) <= _MOST


def _is_token(value) -> bool:
    return is_integer(value) and 0 <= value <= _LARGEST_TOKEN


def _are_tokens(value) -> bool:
    return isinstance(value, tuple) and all(map(_is_token, value))


def _is_pair(value) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_bias(value) -> bool:
    return _is_pair(value) and bool(value[0]) and _are_tokens(value[0]) and _is_number(value[1])


NUMBER = Rule(_is_number, f"a finite number, from {-_MOST} to {_MOST}")
POSITIVE = Rule(
    lambda value: _is_number(value) and value >= _LEAST,
    f"a positive, finite number, from {_LEAST} to {_MOST}",
)
POSITIVE_OR_ZERO = Rule(
    lambda value: _is_number(value) and (value == 0 or value >= _LEAST),
    f"a finite number, at least 0: 0, or from {_LEAST} to {_MOST}",
)
TOKEN = Rule(_is_token, f"a token id from 0 to {_LARGEST_TOKEN}")
TOKENS = Rule(_are_tokens, "a tuple of token ids, such as (0, 5)")
TOKEN_OR_TOKENS = Rule(
    lambda value: _is_token(value) or _are_tokens(value),
    "a token id or a tuple of several, such as (0, 5)",
)
SEQUENCES = Rule(
    lambda value: isinstance(value, tuple) and all(map(_are_tokens, value)) and all(value),
    "a tuple of tuples of token ids, such as ((7,), (3, 5)), none of them empty",
)
BIASES = Rule(
    lambda value: isinstance(value, tuple) and all(map(_is_bias, value)),
    "a tuple of pairs, each of token ids and a finite number, such as (((3, 5), -1.5),)",
)
DECAY = Rule(
    lambda value: _is_pair(value) and at_least(0).allows(value[0]) and POSITIVE.allows(value[1]),
    "a number of tokens and a positive factor, such as (20, 1.05)",
)
STRINGS = Rule(
    lambda value: isinstance(value, tuple) and all(isinstance(s, str) and s for s in value),
    'a tuple of strings, such as ("###",), none of them empty',
)
EARLY_STOPPING = Rule(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "never"),
    'True, False or "never"',
)

RULES = {
    "max_new_tokens": at_least(1),
    "max_length": optional(at_least(1)),
    "min_new_tokens": at_least(0),
    "min_length": at_least(0),
    "eos_token_id": optional(TOKEN_OR_TOKENS),
    "pad_token_id": optional(TOKEN),
    "stop_strings": STRINGS,
    "do_sample": SWITCH,
    "num_return_sequences": at_least(1),
    "seed": between(0, 2**32 - 1),
    "temperature": POSITIVE_OR_ZERO,
    "top_k": at_least(0),
    "top_p": PROBABILITY,
    "min_p": PROBABILITY,
    "typical_p": PROBABILITY,
    "epsilon_cutoff": PROBABILITY,
    "eta_cutoff": PROBABILITY,
    "num_beams": at_least(1),
    "length_penalty": NUMBER,
    "early_stopping": EARLY_STOPPING,
    "repetition_penalty": POSITIVE,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "encoder_repetition_penalty": POSITIVE,
    "no_repeat_ngram_size": at_least(0),
    "encoder_no_repeat_ngram_size": at_least(0),
    "exponential_decay_length_penalty": optional(DECAY),
    "sequence_bias": BIASES,
    "bad_words_ids": SEQUENCES,
    "suppress_tokens": TOKENS,
    "begin_suppress_tokens": TOKENS,
    "forced_bos_token_id": optional(TOKEN),
    "forced_eos_token_id": optional(TOKEN_OR_TOKENS),
    "remove_invalid_values": SWITCH,
    "renormalize_logits": SWITCH,
}
"""The rule of each field of `GenerationConfig`."""
# Options that only sampling, or only beam search, uses, and their values without effect.
_OF_SAMPLING = {
    "temperature": (1.0, 0.0),
    "top_k": (0,),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
_OF_BEAMS = {"length_penalty": (1.0,), "early_stopping": (False,)}


TOKEN_FIELDS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
"""The fields of config.json with the tokens that begin, end and pad texts."""
_DECODERS = ("decoder", "generator", "text_config")
"""Sections of config.json; the first present one gives options that config.json itself lacks."""
# Options that transformers does not have.
_OURS = ("presence_penalty", "frequency_penalty", "seed")
# Options of transformers that change the texts there and are not supported, and their values
# without effect. Some of them need external code in transformers too.
UNSUPPORTED = {
    "constraints": (None, []),
    "diversity_penalty": (None, 0),
    "dola_layers": (None,),
    "force_words_ids": (None, []),
    "guidance_scale": (None, 1),
    "max_time": (None,),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "token_healing": (None, False),
    "top_h": (None,),
    "watermarking_config": (None, {}),
}
NEUTRAL = (
    "_*", "assistant_*", "bos_token_id", "cache_*", "compile_config", "continuous_batching_config",
    "decoder_start_token_id", "disable_compile", "is_assistant", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "num_assistant_*", "output_*", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "return_dict_in_generate", "speculation_type", "target_lookbehind",
    "transformers_version", "use_cache", "use_mtp",
)  # fmt: skip
"""Options that do not change texts: how transformers computes, what it returns, and tokens that are
read elsewhere."""


@dataclass(frozen=True)
class GenerationConfig:
    """How tokens are chosen and when generation stops. All defaults are without effect."""

    max_new_tokens: int = 128
    """Maximum number of tokens to generate."""
    max_length: int | None = None
    """Maximum number of tokens, prompt included, instead of max_new_tokens; of an encoder-decoder
    those of the decoder. None: max_new_tokens is used."""
    min_new_tokens: int = 0
    """Minimum number of tokens before an end token."""
    min_length: int = 0
    """Minimum number of tokens before an end token, prompt included."""
    eos_token_id: int | tuple[int, ...] | None = None
    """The token or tokens that end a text; None: no token does."""
    pad_token_id: int | None = None
    """The token that pads a row after its end; None: an end token."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end a text."""
    do_sample: bool = False
    """Sample each token; False: take the most probable one, or the best of num_beams beams."""
    num_return_sequences: int = 1
    """Number of texts to generate for each prompt."""
    seed: int = 0
    """Seed of sampling."""
    temperature: float = 1.0
    """Above 1: more varied samples, below 1: less varied; 0: the most probable token."""
    top_k: int = 0
    """Sample from this number of the most probable tokens; 0: from all."""
    top_p: float = 1.0
    """Sample from the most probable tokens that together reach this probability; 1: from all."""
    min_p: float = 0.0
    """Sample from tokens at least this fraction as probable as the most probable; 0: from all."""
    typical_p: float = 1.0
    """Sample from the most typical tokens that together reach this probability; 1: from all."""
    epsilon_cutoff: float = 0.0
    """Sample from tokens at least this probable; 0: from all."""
    eta_cutoff: float = 0.0
    """The same, with a limit that falls where the distribution is flat; 0: from all."""
    num_beams: int = 1
    """Number of beams; 1: no beam search."""
    length_penalty: float = 1.0
    """Exponent of the length that divides a beam's log-probability; above 0 favours long texts."""
    early_stopping: bool | Literal["never"] = False
    """End beam search when num_beams texts are complete (True), when by a heuristic (False) or
    certainly (never) no better one will come."""
    repetition_penalty: float = 1.0
    """Factor against tokens of the prompt and generated tokens; 1: none."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each generated token."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a generated token for each occurrence."""
    encoder_repetition_penalty: float = 1.0
    """Factor in favour of tokens of the encoder's input, or of the prompt; 1: none."""
    no_repeat_ngram_size: int = 0
    """Length of the token sequences that may occur only once, prompt included; 0: no limit."""
    encoder_no_repeat_ngram_size: int = 0
    """Length of the token sequences of the encoder's input, or of the prompt, that may not occur;
    0: no limit."""
    exponential_decay_length_penalty: tuple[int, float] | None = None
    """The number of new tokens after which end tokens become more probable, and the factor for each
    further one; None: they do not."""
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Sequences of tokens, each with a term added to the logit of its last one after the others
    (the command line accepts one)."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never generated (the command line accepts one); an end token
    alone is ignored."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never generated."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that are not generated first."""
    forced_bos_token_id: int | None = None
    """The first token to generate; None: no constraint."""
    forced_eos_token_id: int | tuple[int, ...] | None = None
    """The token to generate last, or one of several, if max_new_tokens is reached; None: no
    constraint."""
    remove_invalid_values: bool = False
    """Replace logits that are not finite."""
    renormalize_logits: bool = False
    """Normalise the log-probabilities again after all other steps; beam search adds them up."""

    rules: ClassVar[Mapping[str, Rule]] = RULES
    """The rule of each field."""

    def __post_init__(self):
        check_fields(self, **self.rules)
        self._check_tokens()
        self._check_method()

    @classmethod
    def of(cls, recommended: Mapping[str, Any], given: Mapping[str, Any]) -> "GenerationConfig":
        """Combines given values with those that a model's files recommend.

        Given options of sampling imply do_sample. Recommendations without effect under the given
        values are ignored.
        """
        names = list(cls.rules)
        for name in given:
            if name not in names:
                raise ConfigError(f"generate: {name} is not known{did_you_mean(name, names)}")
        if {"max_length", "max_new_tokens"} <= set(given):
            raise ConfigError(f"max_length = {given['max_length']}: give it or max_new_tokens")
        given = {name: _frozen(value) for name, value in given.items()}
        values = {
            name: _frozen(recommended[name])
            for name in names
            if name not in given and recommended.get(name) is not None
        }
        if "max_new_tokens" in {*given, *values}:
            values.pop("max_length", None)
        sampling = any(
            given.get(name, allowed[0]) not in allowed for name, allowed in _OF_SAMPLING.items()
        )
        do_sample = given.get("do_sample", sampling or values.get("do_sample", False))
        num_beams = given.get("num_beams", 1 if do_sample else values.get("num_beams", 1))
        if "do_sample" not in given and not sampling and num_beams != 1:
            do_sample = False
        idle = (*(() if do_sample else _OF_SAMPLING), *(() if num_beams != 1 else _OF_BEAMS))
        kept = {name: value for name, value in values.items() if name not in idle}
        for name, value in kept.items():
            rule = cls.rules[name]
            if not rule.allows(value):
                raise ConfigError(
                    f"the model's generation_config.json or config.json recommends {name} = "
                    f"{value!r}: must be {rule.expected}; correct it, or give {name} yourself"
                )
        if "max_new_tokens" in given and "min_new_tokens" in kept:
            kept["min_new_tokens"] = min(kept["min_new_tokens"], given["max_new_tokens"])
        return cls(**kept | {"do_sample": do_sample, "num_beams": num_beams} | given)

    def for_width(self, width: int) -> "GenerationConfig":
        """Returns the options with `max_new_tokens` and `min_new_tokens` for prompts of a width."""
        most = self.max_new_tokens
        if self.max_length is not None:
            most = self.max_length - width
            room = f"above {width}, the tokens of the prompt; or give max_new_tokens"
            check_field(self, "max_length", most > 0, room)
        least = min(max(self.min_new_tokens, self.min_length - width), most)
        lengths = {"max_new_tokens": most, "min_new_tokens": least}
        return replace(self, **lengths, max_length=None, min_length=0)

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are chosen without beams."""
        return SamplingParams(self.processors(), self.samples, self.end_tokens)

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled, instead of greedily or by beam search."""
        return self.do_sample and self.temperature > 0

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return _several(self.eos_token_id)

    @property
    def padding(self) -> int:
        """The token that pads a row after its end."""
        if self.pad_token_id is not None:
            return self.pad_token_id
        return self.end_tokens[0] if self.end_tokens else 0

    def with_end_token(self, token: int | None, given: Mapping[str, Any]) -> "GenerationConfig":
        """Returns options with one more end token, unless end tokens were given."""
        if token is None or "eos_token_id" in given or token in self.end_tokens:
            return self
        return replace(self, eos_token_id=(*self.end_tokens, token))

    def with_tokens(self, pretrained: Pretrained, options: Mapping[str, Any] | None = None) -> Self:
        """Returns the options with the settings of a model that a subclass needs.

        The given options take precedence over the model's files.
        """
        del pretrained, options
        return self

    def opening(
        self, model: GenerativeModel, encoder_outputs: EncoderOutputs, start: int
    ) -> jax.Array:
        """Returns the first tokens of each answer, int `[B, T]`, as a pure function."""
        del model
        return jnp.full((len(encoder_outputs[0]), 1), start, jnp.int32)

    def first_tokens(self, pretrained: Pretrained) -> Callable[..., np.ndarray] | None:
        """Returns how the answers of an encoder-decoder begin; None: with the start token."""
        del pretrained

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ConfigError for a token that is not in a vocabulary of this size."""
        asked = {
            "eos_token_id": self.end_tokens,
            "pad_token_id": (self.pad_token_id,),
            "bad_words_ids": sum(self.bad_words_ids, ()),
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
            "sequence_bias": sum((tokens for tokens, _ in self.sequence_bias), ()),
            "forced_bos_token_id": (self.forced_bos_token_id,),
            "forced_eos_token_id": _several(self.forced_eos_token_id),
        }
        for field, tokens in asked.items():
            known = all(token is None or token < vocab_size for token in tokens)
            check_field(self, field, known, f"of the model's vocabulary, 0 to {vocab_size - 1}")

    def processors(self) -> tuple[Processor, ...]:
        """The processors of the logits, in the order of transformers."""
        filters = self._filters() if self.samples else ()
        last = (OnLogits(jax.nn.log_softmax),) if self.renormalize_logits else ()
        return (*self._penalties(), *self._rules(), *filters, *last)

    def _penalties(self):
        if self.sequence_bias:
            yield OnTokens(bias_sequences, tuple(zip(*self.sequence_bias, strict=True)))
        if self.encoder_repetition_penalty != 1:
            yield SourcePenalty(self.encoder_repetition_penalty)
        if self.repetition_penalty != 1:
            yield RepetitionPenalty(self.repetition_penalty)
        if self.presence_penalty != 0:
            yield PresencePenalty(self.presence_penalty)
        if self.frequency_penalty != 0:
            yield FrequencyPenalty(self.frequency_penalty)

    def _rules(self):
        ends = self.end_tokens
        if self.no_repeat_ngram_size:
            yield OnTokens(no_repeat_ngram, (self.no_repeat_ngram_size,))
        if self.encoder_no_repeat_ngram_size:
            yield NoSourceNgram(self.encoder_no_repeat_ngram_size)
        single = {(token,) for token in ends}
        if banned := tuple(words for words in self.bad_words_ids if words not in single):
            yield OnTokens(ban_sequences, (banned,))
        if self.min_new_tokens and ends:
            yield MinNewTokens(self.min_new_tokens, ends)
        if self.forced_bos_token_id is not None:
            yield ForcedFirst(self.forced_bos_token_id)
        if _several(self.forced_eos_token_id):
            yield ForcedLast(self.forced_eos_token_id)
        if self.remove_invalid_values:
            yield OnLogits(jnp.nan_to_num)
        if self.exponential_decay_length_penalty and ends:
            yield EndsLater(*self.exponential_decay_length_penalty, ends)
        if self.suppress_tokens:
            yield OnLogits(ban_tokens, (self.suppress_tokens,))
        if self.begin_suppress_tokens:
            forced = self.forced_bos_token_id is not None
            yield BannedAtBegin(self.begin_suppress_tokens, forced)

    def _filters(self):
        if self.temperature != 1:
            yield OnLogits(scale_temperature, (self.temperature,))
        if self.top_k:
            yield OnLogits(top_k_filter, (self.top_k,))
        if self.top_p < 1:
            yield OnLogits(top_p_filter, (self.top_p,))
        if self.min_p > 0:
            yield OnLogits(min_p_filter, (self.min_p,))
        if self.typical_p < 1:
            yield OnLogits(typical_filter, (self.typical_p,))
        if 0 < self.epsilon_cutoff < 1:
            yield OnLogits(epsilon_filter, (self.epsilon_cutoff,))
        if 0 < self.eta_cutoff < 1:
            yield OnLogits(eta_filter, (self.eta_cutoff,))

    def _check_tokens(self):
        if self.max_length is None:
            most = self.max_new_tokens
            enough = self.min_new_tokens <= most
            check_field(self, "min_new_tokens", enough, f"at most max_new_tokens = {most}")
        for field in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = _several(getattr(self, field))
            possible = not forced or bool({*forced} - {*self.suppress_tokens})
            check_field(self, field, possible, f"none of suppress_tokens {self.suppress_tokens}")

    def _check_method(self):
        if self.num_beams > 1:
            instead = f"with num_beams = {self.num_beams}, which does not sample"
            check_field(self, "do_sample", not self.do_sample, f"False {instead}")
            most = f"at most num_beams = {self.num_beams}"
            enough = self.num_return_sequences <= self.num_beams
            check_field(self, "num_return_sequences", enough, most)
            # A text's length to this power divides its log-probability.
            largest = 30 / max(1, math.log10(self.max_new_tokens))
            most = f"from {-largest:.3g} to {largest:.3g} with max_new_tokens = "
            enough = abs(self.length_penalty) <= largest
            check_field(self, "length_penalty", enough, f"{most}{self.max_new_tokens}")
        else:
            instead = "unless do_sample is True"
            self._check_unused(_OF_BEAMS, "unless num_beams is above 1")
            rule = "1 unless do_sample is True and temperature above 0: a greedy text is one"
            one = self.num_return_sequences == 1
            check_field(self, "num_return_sequences", self.samples or one, rule)
        if not self.do_sample:
            self._check_unused(_OF_SAMPLING, instead)

    def _check_unused(self, neutral, reason):
        for field, values in neutral.items():
            check_field(self, field, getattr(self, field) in values, f"{values[0]} {reason}")


_SUPPORTED = frozenset(RULES) - {*_OURS}


def recommendations(pretrained: Pretrained) -> dict[str, Any]:
    """The options that a model's files recommend.

    As in transformers, those of config.json are used without a generation_config.json. The tokens
    that begin, end and pad texts are also taken from config.json if the other file lacks them.
    """
    config = pretrained.token_values
    folder = pretrained.folder
    config = pretrained.checkpoint.hf_config.values if config is None else config
    own = None if folder is None else read_object(folder, GENERATION)
    if own is None:
        known = (*_SUPPORTED, *UNSUPPORTED, *TOKEN_FIELDS)
        sections = (config.get(name) for name in _DECODERS)
        decoder = next((each for each in sections if each and isinstance(each, dict)), {})
        sources = [{name: x[name] for name in known if name in x} for x in (decoder, config)]
    else:
        sources = [{name: config[name] for name in TOKEN_FIELDS if name in config}, own]
    pairs = (pair for source in sources for pair in source.items())
    return {name: value for name, value in pairs if value is not None}


def supported_options(
    recommended: Mapping[str, Any], where: object, further: Collection[str] = ()
) -> dict[str, Any]:
    """Returns the options that are supported; one warning names those that are not.

    Options that do not change texts in transformers are not mentioned. `further` names options that
    this model has in addition to those of `GenerationConfig`.
    """
    known = {*_SUPPORTED, *further}
    found = {name: value for name, value in recommended.items() if name in known}
    strings = found.get("stop_strings")
    padding = found.get("pad_token_id")
    if isinstance(strings, str):
        found["stop_strings"] = [strings]
    left = [name for name in recommended if name not in found and _matters(name, recommended)]
    if isinstance(padding, int) and padding < 0 and TOKEN.allows(-padding):
        left.append("pad_token_id")
        del found["pad_token_id"]
    if left:
        listed = ", ".join(f"{name} = {shortened(recommended[name])}" for name in left)
        warn_once(f"{where}: recommended for generation, and ignored: {listed}")
    return found


def _several(tokens: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if tokens is None:
        return ()
    return tokens if isinstance(tokens, tuple) else (tokens,)


def _frozen(value: Any) -> Any:
    """Converts lists, arrays and dictionaries to tuples, and other scalars to Python's."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, np.ndarray | jax.Array) and value.ndim:
        value = value.tolist()
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else plain(value)


def _matters(name: str, recommended: Mapping[str, Any]) -> bool:
    if name in UNSUPPORTED:
        return recommended[name] not in UNSUPPORTED[name]
    return not any(fnmatch(name, pattern) for pattern in NEUTRAL)
