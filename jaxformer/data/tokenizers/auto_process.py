"""Asks transformers which tokenizer a folder has; `auto.py` runs this file as a script.

It imports nothing of this library. Tokenizers need no PyTorch, whose import would take seconds and
half a gigabyte, so transformers finds none here.
"""

import json
import os
import sys
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models

_ANY = ("tekken.json", "tiktoken.model", "tokenizer.json", "tokenizer.model")
"""The files that every class with a backend reads, whatever its own are."""
_EXAMPLES = (
    "It's a red boat, isn't it?", " two  blanks\tand\n\nlines ", "Zürich 42 日本 привет 😀 ﬁ",
    "Hello <unk>", "MKTAYIAKQR <mask> L A G", "",
)  # fmt: skip
"""Texts whose ids show whether two tokenizers are the same."""
CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
    (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""What `clean_up_tokenization_spaces` replaces in a decoded text, in this order."""


def main(folder: str, answer: str) -> None:
    """Writes what transformers makes of a folder."""
    sys.modules["torch"] = None
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    has_backend = isinstance(getattr(found, "backend_tokenizer", None), Tokenizer)
    reads = {*type(found).vocab_files_names.values(), *(_ANY if has_backend else ())}
    if reads and not any(os.path.exists(os.path.join(folder, name)) for name in reads):
        # Without a file its vocabulary would be a few special tokens.
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
    """Returns what `python_classes.py` builds a tokenizer from."""
    frames = [found.build_inputs_with_special_tokens(*ids) for ids in ([[-1]], [[-1], [-2]])]
    around = {id_ for frame in frames for id_ in frame if id_ >= 0}
    added = {id_: token.__getstate__() for id_, token in sorted(found.added_tokens_decoder.items())}
    for id_ in added.keys() & {*found.all_special_ids}:
        added[id_]["special"] = True
    return {
        "vocabulary": found.get_vocab() | getattr(found, "lang_token_to_id", {}),
        "unknown": found.unk_token,
        "lower": getattr(found, "do_lower_case", False),
        "added": added,
        "frames": frames,
        "names": {id_: found.convert_ids_to_tokens(id_) for id_ in around},
        "examples": [(text, found(text)["input_ids"]) for text in _EXAMPLES],
    }


def definition(found) -> str:
    """Returns the tokenizer.json of a tokenizer of transformers, which gives its ids and texts."""
    rust = complete(found)
    stored = json.loads(rust.to_str())
    for token in stored["added_tokens"]:
        # A token that was special before stays so, though its last definition says otherwise.
        token["special"] |= not rust.decode([token["id"]], skip_special_tokens=True)
    return json.dumps(stored, ensure_ascii=False)


def cleaned(text: str) -> str:
    """Returns a text with all of `CLEANED` replaced."""
    for old, new in CLEANED:
        text = text.replace(old, new)
    return text


def complete(found) -> Tokenizer:
    """Returns the backend of a tokenizer of transformers, which then decodes as the whole does."""
    rust = found.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    replaced: list[tuple[str | Regex, str]] = []
    if "decode" in vars(rust):  # CLIP's class has put its own in place
        replaced += [(rust.model.end_of_word_suffix, " "), (Regex(r"\A\s+|\s+\z"), "")]
    forced = found.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    if found.clean_up_tokenization_spaces and (forced or not isinstance(rust.model, models.BPE)):
        replaced += CLEANED
    if replaced:
        # Without a decoder tokens are joined by blanks; no token begins with this prefix.
        first = rust.decoder or decoders.WordPiece(prefix="\ufdd0", cleanup=False)
        steps = [decoders.Replace(*pair) for pair in replaced]
        rust.decoder = decoders.Sequence([first, decoders.Fuse(), *steps])
    return rust


if __name__ == "__main__":
    main(*sys.argv[1:])
