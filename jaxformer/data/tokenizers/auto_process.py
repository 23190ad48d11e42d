"""Reads a folder's tokenizer with transformers; `auto.py` runs this file as a script.

It imports nothing from this library, and hides PyTorch from transformers: tokenizers do not need
it, and its import would take seconds and half a gigabyte.
"""

import json
import os
import sys
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models

_ANY = ("tekken.json", "tiktoken.model", "tokenizer.json", "tokenizer.model")
"""The files that every class with a backend reads in addition to its own."""
_EXAMPLES = (
    "It's a red boat, isn't it?", " two  blanks\tand\n\nlines ", "Zürich 42 日本 привет 😀 ﬁ",
    "Hello <unk>", "MKTAYIAKQR <mask> L A G", "",
)  # fmt: skip
"""Texts whose ids show whether two tokenizers are equal."""
CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
    (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""The replacements of `clean_up_tokenization_spaces` in a decoded text, in order."""


def main(folder: str, answer: str) -> None:
    """Writes the tokenizer of a folder, as transformers reads it."""
    sys.modules["torch"] = None
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    has_backend = isinstance(getattr(found, "backend_tokenizer", None), Tokenizer)
    reads = {*type(found).vocab_files_names.values(), *(_ANY if has_backend else ())}
    if reads and not any(os.path.exists(os.path.join(folder, name)) for name in reads):
        # Without a file, its vocabulary would only have a few special tokens.
        raise ValueError(f"{type(found).__name__} reads {' or '.join(sorted(reads))}")
    header = {
        "class": type(found).__name__,
        "padding_side": found.padding_side,
        "special_tokens": found.special_tokens_map,
        "split_special_tokens": found.split_special_tokens,
    }
    header |= {} if has_backend else {"python": description(found)}
    with open(answer, "w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        file.write(definition(found) if has_backend else "")


def description(found) -> dict[str, Any]:
    """Returns the description from which `python_classes.py` builds a tokenizer."""
    frames = [found.build_inputs_with_special_tokens(*ids) for ids in ([[-1]], [[-1], [-2]])]
    around = {id_ for frame in frames for id_ in frame if id_ >= 0}
    added = {id_: token.__getstate__() for id_, token in sorted(found.added_tokens_decoder.items())}
    for id_ in added.keys() & {*found.all_special_ids}:
        added[id_]["special"] = True
    delimiter = getattr(found, "word_delimiter_token", None)
    for token in added.values():
        token["special"] &= token["content"] != delimiter  # it is the blank between words
    return {
        "vocabulary": found.get_vocab() | getattr(found, "lang_token_to_id", {}),
        "unknown": found.unk_token,
        "delimiter": delimiter,
        "lower": getattr(found, "do_lower_case", False),
        "added": added,
        "frames": frames,
        "names": {id_: found.convert_ids_to_tokens(id_) for id_ in around},
        "examples": [(text, found(text)["input_ids"]) for text in _EXAMPLES],
    }


def definition(found) -> str:
    """Returns a tokenizer.json that gives the ids and texts of a tokenizer of transformers."""
    rust = complete(found)
    stored = json.loads(rust.to_str())
    for token in stored["added_tokens"]:
        # A token that was special stays special, even if its last definition contradicts this.
        token["special"] |= not rust.decode([token["id"]], skip_special_tokens=True)
    return json.dumps(stored, ensure_ascii=False)


def cleaned(text: str) -> str:
    """Returns a text with all of `CLEANED` replaced."""
    for old, new in CLEANED:
        text = text.replace(old, new)
    return text


def complete(found) -> Tokenizer:
    """Returns the backend of a tokenizer of transformers, changed to decode like the tokenizer."""
    rust = found.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    replaced: list[tuple[str | Regex, str]] = []
    if "decode" in vars(rust):  # CLIP's class has already set its own
        replaced += [(rust.model.end_of_word_suffix, " "), (Regex(r"\A\s+|\s+\z"), "")]
    forced = found.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    if found.clean_up_tokenization_spaces and (forced or not isinstance(rust.model, models.BPE)):
        replaced += CLEANED
    if replaced:
        # Without a decoder, tokens are joined with blanks; no token begins with this prefix.
        first = rust.decoder or decoders.WordPiece(prefix="\ufdd0", cleanup=False)
        steps = [decoders.Replace(*pair) for pair in replaced]
        rust.decoder = decoders.Sequence([first, decoders.Fuse(), *steps])
    return rust


if __name__ == "__main__":
    main(*sys.argv[1:])
