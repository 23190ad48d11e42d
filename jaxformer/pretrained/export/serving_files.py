"""Files with which other programs serve a model that was trained here.

vLLM, SGLang, MLX-LM, TGI and the converters of llama.cpp and CTranslate2 read the special tokens,
the maximum length and the end token of an answer from them. A published checkpoint keeps its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.data.chat.dialogue.dialogue import Dialogue
from jaxformer.data.chat.template import SPECIAL_TOKENS, find_template, read_chat_template
from jaxformer.data.tokenizers.files import SETTINGS, read_tokenizer
from jaxformer.io.model_files import GENERATION, TOKENIZER, file_in, read_object

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""The fields of config.json in which vLLM looks for the number of positions."""


def write_serving_files(folder: Path, values: Mapping[str, Any], writes_text: bool) -> None:
    """Completes tokenizer_config.json, and writes the other files with special tokens.

    `values` are those of config.json. If the model `writes_text`, generation_config.json is
    written.
    """
    settings = read_object(folder, SETTINGS)
    if settings:
        settings |= _tokenizer_settings(folder, settings, values, writes_text)
        write_json(folder / SETTINGS, settings)
        named = {name: value for name, value in settings.items() if name.endswith("_token")}
        write_json(folder / SPECIAL_TOKENS, named)
    tokens = {name: values[name] for name in _TOKENS if values.get(name) is not None}
    if writes_text and tokens and file_in(folder, GENERATION) is None:
        end = _end_of_turn(folder) if settings else None
        if end is not None and end != tokens.get("eos_token_id"):
            tokens["eos_token_id"] = [tokens["eos_token_id"], end]
        write_json(folder / GENERATION, tokens)


def _tokenizer_settings(
    folder: Path, settings: Mapping[str, Any], values: Mapping[str, Any], writes_text: bool
) -> dict[str, Any]:
    """Returns missing fields of tokenizer_config.json: first token, maximum length, clean-up."""
    lengths = [values[name] for name in _LENGTHS if isinstance(values.get(name), int)]
    found: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    if lengths:
        found["model_max_length"] = min(lengths)
    begin, template = values.get("bos_token_id"), find_template(folder)
    # A template may use this token even if training texts did not begin with it.
    if writes_text and begin is not None and (template is None or "bos_token" not in template[1]):
        found["bos_token"] = read_tokenizer(folder / TOKENIZER).id_to_token(begin)
    return {name: value for name, value in found.items() if name not in settings}


def _end_of_turn(folder: Path) -> int | None:
    """Returns the token that ends an answer in the chat template, if any."""
    template = read_chat_template(folder)
    if template is None:
        return None
    return Dialogue(read_tokenizer(folder / TOKENIZER), template, folder).end_of_turn


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object in the style of transformers."""
    file.write_text(json.dumps(dict(values), indent=2) + "\n", encoding="utf-8")
