"""Training of subword tokenizers: the same texts give the same tokenizer."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jaxformer.errors import DataError

END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
# A tokenizer keeps a few hundred bytes per token while it works; longer texts are fed in parts.
_PART_CHARACTERS = 1 << 18
_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WAV2VEC2 = ["<pad>", "<s>", "</s>", "<unk>"]
_T5 = ["<pad>", "</s>", "<unk>"]


def byte_alphabet() -> list[str]:
    """Returns the character that byte-level tokenizers write for each of the 256 bytes, in order.

    A printable Latin-1 byte is written as itself, the others as the characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]


def default_special_tokens(kind: str) -> list[str]:
    """Returns the special tokens that every tokenizer of a kind has."""
    return {"bpe": [END_OF_TEXT, PAD], "unigram": _T5, "wordpiece": _BERT}[kind]


def train(kind: str, vocab_size: int, texts: Iterable[str]) -> tuple[Tokenizer, str, str]:
    """Trains a tokenizer with at most `vocab_size` tokens; also returns end-of-text and padding."""
    texts = iter(texts)
    first = next(texts, None)
    if first is None:
        raise DataError(f"no text to train a {kind} tokenizer on")
    parts = (part for text in itertools.chain([first], texts) for part in cut(text))
    return {"bpe": _bpe, "wordpiece": _wordpiece, "unigram": _unigram}[kind](vocab_size, parts)


def characters(alphabet: str) -> tuple[Tokenizer, str, str]:
    """Like `train`, with the special tokens of wav2vec 2.0, "|" for a blank, and each character."""
    names = [*_WAV2VEC2, "|", *alphabet]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = character_tokenizer(vocabulary, unknown="<unk>", delimiter="|")
    tokenizer.add_special_tokens(_WAV2VEC2)
    return tokenizer, "</s>", "<pad>"


def character_tokenizer(
    vocabulary: dict[str, int], *, unknown: str | None, delimiter: str
) -> Tokenizer:
    """Returns a tokenizer with a token for each character, as `Wav2Vec2CTCTokenizer` has; the
    delimiter stands for the blank between words.
    """
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Replace(" ", delimiter)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(delimiter, " "), decoders.Fuse()])
    return tokenizer


def cut(text: str) -> list[str]:
    """Cuts a long text into parts, after a line if possible; a short text is one part."""
    parts, start = [], 0
    while len(text) - start > _PART_CHARACTERS:
        end = start + _PART_CHARACTERS
        newline = text.rfind("\n", start, end)
        end = end if newline < 0 else newline + 1
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def bpe_merges(ids: Mapping[str, int], order: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces that a BPE merges; `order` is the rank of each piece."""
    found = sorted(
        (place, ids[text[:cut]], ids[text[cut:]], text[:cut], text[cut:])
        for text, place in order.items()
        for cut in range(1, len(text))
        if text[:cut] in order and text[cut:] in order
    )
    return [(left, right) for *_, left, right in found]


def piece_reader(tokenizer: Tokenizer) -> Callable[[str], str]:
    """Returns a function from a vocabulary's entries to texts, with a space before whole words.

    Byte-level tokenizers write a substitute for each byte, WordPiece marks pieces that continue a
    word, SentencePiece those that begin one.
    """
    if isinstance(tokenizer.model, models.WordPiece):
        prefix = tokenizer.model.continuing_subword_prefix
        return lambda entry: entry[len(prefix) :] if entry.startswith(prefix) else f" {entry}"
    if "ByteLevel" in str(tokenizer.decoder):
        byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}

        def text_of(entry: str) -> str:
            if not byte_of.keys() >= set(entry):  # a token added as plain text
                return entry
            return bytes(byte_of[character] for character in entry).decode(errors="replace")

        return text_of
    return lambda entry: entry.replace("\u2581", " ")


def byte_level(model: models.Model) -> Tokenizer:
    """Returns a tokenizer with a model of the characters of `byte_alphabet`."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(vocab_size: int, texts: Iterable[str]) -> tuple[Tokenizer, str, str]:
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=default_special_tokens("bpe"),
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer, END_OF_TEXT, PAD


def _wordpiece(vocab_size: int, texts: Iterable[str]) -> tuple[Tokenizer, str, str]:
    texts = list(texts)
    # The trainer numbers the continuations ("##a") in the order of a randomly seeded hash map and
    # breaks ties by number. Naming them as special tokens, sorted, fixes their numbers.
    alphabet = _train_wordpiece(1, texts, [])
    continuations = sorted(token for token in alphabet.get_vocab() if token.startswith("##"))
    if alphabet.get_vocab_size() > vocab_size:
        raise DataError(
            f"vocab_size: the texts' alphabet alone takes {alphabet.get_vocab_size()} WordPiece "
            f"tokens, more than {vocab_size}; raise it, or use kind='bpe', which works on bytes"
        )
    tokenizer = _train_wordpiece(vocab_size, texts, continuations)
    definition = json.loads(tokenizer.to_str())
    definition["added_tokens"] = definition["added_tokens"][: len(_BERT)]
    return Tokenizer.from_str(json.dumps(definition)), "[SEP]", "[PAD]"


def _train_wordpiece(vocab_size: int, texts: list[str], continuations: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=_BERT + continuations, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(vocab_size: int, texts: Iterable[str]) -> tuple[Tokenizer, str, str]:
    tokenizer = byte_level(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=_T5,
        unk_token="<unk>",
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    definition = json.loads(tokenizer.to_str())
    definition["model"]["vocab"] = _ordered(definition["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(definition)), "</s>", "<pad>"


def _ordered(vocab: list) -> list:
    """Returns a unigram vocabulary with the same order and scores in every run.

    The trainer sums in the order of a randomly seeded hash map, so scores differ in their last
    bits. In the same order it gives unused bytes the lowest scores, in steps.
    """
    special, learned = vocab[: len(_T5)], vocab[len(_T5) :]
    lowest, step = min(score for _, score in learned), 1e-4
    handed = sorted(p for p, score in learned if len(p) == 1 and score <= lowest + 256 * step)
    scores = dict(learned)
    scores |= {piece: lowest + rank * step for rank, piece in enumerate(handed)}
    rounded = [[piece, round(score, 6)] for piece, score in scores.items()]
    return special + sorted(rounded, key=lambda entry: (-entry[1], entry[0]))
