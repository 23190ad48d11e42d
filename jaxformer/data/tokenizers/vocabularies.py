"""Vocabularies of older models as tokenizers: vocab.txt, and vocab.json with merges.txt."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jaxformer.data.tokenizers.tiktoken import QWEN_PATTERN
from jaxformer.errors import DataError
from jaxformer.io.files import read_bytes

MERGES = "merges.txt"
_CLIP_PATTERN = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def wordpiece(file: Path, settings: dict) -> Tokenizer:
    """BERT's tokenizer, from its vocab.txt."""
    try:
        lines = read_bytes(file).decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 at byte {error.start}") from error
    lines = lines[:-1] if not lines[-1] else lines
    vocabulary = {token: id_ for id_, token in enumerate(lines)}
    unknown = _content(settings.get("unk_token", "[UNK]"))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def byte_level(file: Path, settings: dict) -> Tokenizer:
    """The tokenizer of GPT-2, RoBERTa and BART."""
    tokenizer = Tokenizer(_bpe(file))
    prefix = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen(file: Path, settings: dict) -> Tokenizer:
    """The tokenizer of Qwen 2 and 3."""
    tokenizer = Tokenizer(_bpe(file))
    tokenizer.normalizer = normalizers.NFC()
    prefix = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def clip(file: Path, settings: dict) -> Tokenizer:
    """The tokenizer of CLIP."""
    unknown = _content(settings.get("unk_token", "<|endoftext|>"))
    tokenizer = Tokenizer(_bpe(file, unk_token=unknown, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_PATTERN), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def openai_gpt(file: Path, settings: dict) -> Tokenizer:
    """The tokenizer of the first GPT."""
    unknown = _content(settings.get("unk_token", "<unk>"))
    tokenizer = Tokenizer(_bpe(file, unk_token=unknown, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return tokenizer


def _bpe(file: Path, **fields: str) -> models.BPE:
    merges = file.with_name(MERGES)
    try:
        return models.BPE(*models.BPE.read_file(str(file), str(merges)), **fields)
    except Exception as error:  # the Rust library raises bare Exception
        raise DataError(f"{file} with {merges}: not a vocabulary and merges: {error}") from error


def _content(token: object) -> str:
    return token["content"] if isinstance(token, dict) else str(token)
