"""Writes a Hugging Face folder for the converters of engines, which expect transformers 4's fields.

CTranslate2 4.8 and MLX-LM 0.32 require fields that transformers 5 has renamed or removed, a token
for every row of the embedding table, and names for the first and the unknown token.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from jaxformer.data.tokenizers.files import SETTINGS, TOKENIZER_FILES, read_tokenizer
from jaxformer.engines.speech import NO_TIMESTAMPS
from jaxformer.errors import ConfigError, first_line
from jaxformer.hub.hf_config import write_hf_config
from jaxformer.hub.model_format import completed
from jaxformer.io.model_files import CONFIG, TOKENIZER, file_in, read_object
from jaxformer.pretrained.export.serving_files import write_json
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import save

_STEPS = 1500
"""The index of Whisper's last timestamp, 30 seconds."""
_ALIASES = {"n_ctx": "n_positions", "rotary_emb_base": "rope_theta"}


@contextmanager
def refusals(sentence: str) -> Iterator[None]:
    """Turns any exception of a converter into a ConfigError."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{sentence}: {first_line(error)}") from error


def save_for_converter(pretrained: Pretrained, folder: Path, dtype: str | None) -> None:
    """Writes a model as a Hugging Face folder for an engine's converter."""
    save(pretrained, folder, dtype=dtype)
    values = read_object(folder, CONFIG) or {}
    write_hf_config(folder, _older_fields(pretrained) | values)
    if file_in(folder, TOKENIZER) is not None:
        _fill_vocabulary(folder, values["vocab_size"])
        _name_tokens(folder, values)


def _older_fields(pretrained: Pretrained) -> dict[str, Any]:
    """Returns fields of config.json as in transformers 4."""
    checkpoint = pretrained.checkpoint
    values = completed(checkpoint.hf_config, checkpoint.model_format).values
    rope = values.get("rope_parameters") or {}
    if "rope_theta" not in rope:  # one for each type of layer, not supported in transformers 4
        rope = {}
    found: dict[str, Any] = {
        "position_embedding_type": "absolute",
        "normalize_before": False,  # in BART
    }
    found |= {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    if "partial_rotary_factor" in found:
        found["rotary_pct"] = found["partial_rotary_factor"]
    if rope.get("rope_type", "default") != "default":
        found["rope_scaling"] = rope | {"type": rope["rope_type"]}
    both = values | found
    return found | {name: both[other] for name, other in _ALIASES.items() if other in both}


def _fill_vocabulary(folder: Path, size: int) -> None:
    """Adds tokens to the tokenizer for the remaining ids of the embedding table."""
    tokenizer = read_tokenizer(folder / TOKENIZER)
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    if count >= size:
        return
    names = _new_names(range(count, size), tokenizer.token_to_id(NO_TIMESTAMPS))
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.save(str(folder / TOKENIZER))


def _new_names(tokens: range, no_timestamps: int | None) -> list[str]:
    """Returns names for tokens; after "<|notimestamps|>", timestamps 0.02 seconds apart."""
    names = []
    for token in tokens:
        step = _STEPS + 1 if no_timestamps is None else token - no_timestamps - 1
        names.append(f"<|{0.02 * step:.2f}|>" if step <= _STEPS else f"<|unused_{token}|>")
    return names


def _name_tokens(folder: Path, values: Mapping[str, Any]) -> None:
    """Names the tokens that converters require: those of config.json, or else the end of text."""
    settings = read_object(folder, SETTINGS) or {}
    tokenizer = read_tokenizer(folder / TOKENIZER)
    end = settings.get("eos_token") or settings.get("sep_token") or settings.get("pad_token")
    for role in ("bos", "eos", "pad", "unk"):
        number = values.get(f"{role}_token_id")
        token = tokenizer.id_to_token(number) if isinstance(number, int) else None
        settings[f"{role}_token"] = settings.get(f"{role}_token") or token or end
    write_json(folder / TOKENIZER_FILES[1], settings)
