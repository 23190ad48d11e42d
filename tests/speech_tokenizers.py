"""The vocabulary of characters that wav2vec 2.0's tokenizer has."""

import json
from pathlib import Path

from saved_folders import save_tiny

LETTERS = "|ETAOINSHRDLUMWCFGYPBVK'XJQZ"
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
VOCABULARY |= {letter: number for number, letter in enumerate(LETTERS, start=4)}


def save_characters(folder: Path, **settings) -> None:
    """Writes vocab.json and tokenizer_config.json as transformers does."""
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    values = {
        "bos_token": "<s>",
        "do_lower_case": False,
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "replace_word_delimiter_char": " ",
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "unk_token": "<unk>",
        "word_delimiter_token": "|",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values | settings))


def save_speaker(folder: Path, kind: str = "wav2vec2") -> Path:
    """Saves a small random model with a CTC head over 23 characters, and their tokenizer."""
    save_tiny(kind, folder)
    (folder / "tokenizer.json").unlink()
    save_characters(folder)
    vocabulary = {token: number for token, number in VOCABULARY.items() if number < 23}
    vocabulary["<unk>"], vocabulary["<pad>"] = 0, 3  # the blank of the small model
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return folder
