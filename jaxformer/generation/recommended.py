"""The options of generation that a model's files recommend, as transformers reads them."""

from collections.abc import Mapping
from dataclasses import fields
from fnmatch import fnmatch
from typing import Any

from jaxformer.errors import shortened
from jaxformer.generation.checks import TOKEN
from jaxformer.generation.config import GenerationConfig
from jaxformer.io.model_files import GENERATION, read_object
from jaxformer.io.notices import warn_once
from jaxformer.pretrained.model import Pretrained

_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_DECODERS = ("decoder", "generator", "text_config")
"""The sections of config.json whose options count where it does not say itself; the first one."""
# Options that transformers does not have.
_OURS = ("presence_penalty", "frequency_penalty", "seed")
# Options of transformers that change the texts there and are not supported, and their values
# without effect. Some of them transformers itself leaves to code of others.
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
"""How transformers computes, what it returns, and tokens that are read elsewhere: no text
changes."""
_HONOURED = frozenset(field.name for field in fields(GenerationConfig)) - {*_OURS}


def recommendations(pretrained: Pretrained) -> dict[str, Any]:
    """The options that a model's files recommend.

    As in transformers, those of config.json count where there is no generation_config.json. The
    tokens that begin, end and pad texts are taken from there as well if that file does not say.

    Args:
        pretrained: The model.

    Returns:
        The options by name, as in JSON, without null; also unknown ones of generation_config.json.

    Raises:
        DataError: generation_config.json cannot be read.
    """
    config, folder = pretrained.token_values, pretrained.folder
    config = pretrained.checkpoint.hf_config.values if config is None else config
    own = None if folder is None else read_object(folder, GENERATION)
    if own is None:
        known = (*_HONOURED, *UNSUPPORTED, *_TOKENS)
        sections = (config.get(name) for name in _DECODERS)
        decoder = next((each for each in sections if each and isinstance(each, dict)), {})
        sources = [{name: x[name] for name in known if name in x} for x in (decoder, config)]
    else:
        sources = [{name: config[name] for name in _TOKENS if name in config}, own]
    found: dict[str, Any] = {}
    for source in sources:
        found |= {name: value for name, value in source.items() if value is not None}
    return found


def honoured(recommended: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Returns the options that are honoured; one warning names those that are not.

    What changes no text in transformers is not mentioned.

    Args:
        recommended: The options by name, as in JSON.
        where: The model's folder, for the warning.
    """
    found = {name: value for name, value in recommended.items() if name in _HONOURED}
    strings, padding = found.get("stop_strings"), found.get("pad_token_id")
    if isinstance(strings, str):
        found["stop_strings"] = [strings]
    left = [name for name in recommended if name not in found and _matters(name, recommended)]
    if TOKEN.allows(-padding if isinstance(padding, int) else None) and padding < 0:
        left.append("pad_token_id")
        del found["pad_token_id"]
    if left:
        listed = ", ".join(f"{name} = {shortened(recommended[name])}" for name in left)
        warn_once(f"{where}: recommended for generation, and ignored: {listed}")
    return found


def _matters(name: str, recommended: Mapping[str, Any]) -> bool:
    if name in UNSUPPORTED:
        return recommended[name] not in UNSUPPORTED[name]
    return not any(fnmatch(name, pattern) for pattern in NEUTRAL)
