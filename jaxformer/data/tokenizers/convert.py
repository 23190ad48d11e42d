"""Tokenizers of model folders that have no tokenizer.json, as `transformers` makes them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from jaxformer.data.tokenizers import vocabularies
from jaxformer.data.tokenizers.sentencepiece import (
    CONTROL,
    UNKNOWN,
    Piece,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from jaxformer.data.tokenizers.tiktoken import is_tiktoken, tiktoken_tokenizer
from jaxformer.errors import ArgumentError, DataError
from jaxformer.io.files import ordinary_file
from jaxformer.io.model_files import TOKENIZER, read_object, small_file_in

_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model")
VOCABULARY, _WORDS = "vocab.json", "vocab.txt"
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_GENERIC = (None, "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")

Settings = dict[str, Any]
"""The fields of tokenizer_config.json."""


def tokenizer_file(folder: str | os.PathLike) -> Path | None:
    """Returns the file of a model's folder that holds its tokenizer; None if there is none.

    Args:
        folder: The folder.

    Raises:
        DataError: It leads out of the folder, or is too large.
    """
    for name in (TOKENIZER, *_MODELS):
        if (file := small_file_in(folder, name)) is not None:
            return file
    vocabulary = small_file_in(folder, VOCABULARY)
    if vocabulary is not None and small_file_in(folder, vocabularies.MERGES) is not None:
        return vocabulary
    named = sorted(path.name for path in Path(folder).glob("*.tiktoken"))
    return small_file_in(folder, named[0] if named else _WORDS)


def convert(file: Path, pattern: str | None = None) -> Tokenizer:
    """Reads a tokenizer file other than tokenizer.json.

    Args:
        file: A SentencePiece model, a file of tiktoken, vocab.txt, or vocab.json with merges.txt
            beside it. What config.json and tokenizer_config.json beside it say about the
            tokenizer's class and its special tokens counts, as in `transformers`.
        pattern: For a file of tiktoken, see `tiktoken_tokenizer`.

    Returns:
        The tokenizer.

    Raises:
        ArgumentError: The pattern is neither the name of an encoding nor can be used.
        DataError: The file is missing or damaged, or its class is not one of those known here.
    """
    file = ordinary_file(file)
    try:
        return _converted(file, pattern)
    except (DataError, ArgumentError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{file}: a special token or a setting in the files beside it cannot work: {error!r}"
        ) from error


def _converted(file: Path, pattern: str | None) -> Tokenizer:
    folder = file.parent
    settings = read_object(folder, "tokenizer_config.json")
    kind = _kind_of(file, settings or {}, read_object(folder, "config.json") or {})
    settings = {"add_bos_token": kind.begins} if settings is None else settings
    added = _added_tokens(folder, settings)
    if is_tiktoken(file):
        names = {id_: token.content for id_, token in added.items()}
        tokenizer = tiktoken_tokenizer(file, pattern, names or None)
    else:
        tokenizer = kind.make(file, settings)
    _add(tokenizer, file, added)
    names = _add_roles(tokenizer, kind.tokens, settings)
    if kind is not _PLAIN:
        _put_around(tokenizer, *kind.frame(names, settings))
    return tokenizer


# Special tokens -----------------------------------------------------------------------------------


def _added_tokens(folder: Path, settings: Settings) -> dict[int, AddedToken]:
    """Returns the added tokens by their ids; completes the settings from older files."""
    decoder = settings.get("added_tokens_decoder")
    if decoder:
        return {int(id_): _token(token) for id_, token in sorted(decoder.items(), key=_by_id)}
    settings |= read_object(folder, "special_tokens_map.json") or {}
    names = read_object(folder, "added_tokens.json") or {}
    special = {_content(settings.get(f"{role}_token")) for role in _ROLES}
    special |= {_content(token) for token in _further(settings)}
    return {
        id_: AddedToken(name, special=name in special, normalized=name not in special)
        for name, id_ in sorted(names.items(), key=lambda item: item[1])
    }


def _by_id(item: tuple[str, Any]) -> int:
    return int(item[0])


def _further(settings: Settings) -> list[Any]:
    """The special tokens without a role."""
    found = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    return list(found.values()) if isinstance(found, dict) else found


def _add(tokenizer: Tokenizer, file: Path, added: Mapping[int, AddedToken]) -> None:
    for id_, token in added.items():
        tokenizer.add_tokens([token])
        if (found := tokenizer.token_to_id(token.content)) != id_:
            raise DataError(
                f"{file}: the added token {token.content!r} should have the id {id_}, but the "
                f"vocabulary gives it {found}: get the files again"
            )


def _add_roles(
    tokenizer: Tokenizer, usual: Mapping[str, str], settings: Settings
) -> dict[str, str]:
    """Adds the tokens of the roles and those without one; returns the names by role."""
    names = {}
    for role in _ROLES:
        named = settings.get(f"{role}_token", usual.get(role))
        token = None if named is None else _token(named)
        # What nobody named is a special token only where the vocabulary has it.
        if token is not None and (
            f"{role}_token" in settings or tokenizer.token_to_id(token.content) is not None
        ):
            tokenizer.add_special_tokens([token])
            names[role] = token.content
    tokenizer.add_special_tokens([_token(token) for token in _further(settings)])
    return names


def _put_around(tokenizer: Tokenizer, single: list[str], pair: list[str]) -> None:
    inserted = {part.removesuffix(":1") for part in pair if part[0] != "$"}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in sorted(inserted)],
    )


def _token(value: Any) -> AddedToken:
    if not isinstance(value, dict):
        return AddedToken(str(value), special=True, normalized=False)
    fields = ("single_word", "lstrip", "rstrip", "normalized")
    return AddedToken(
        value["content"],
        special=value.get("special", True),
        **{name: bool(value.get(name, False)) for name in fields},
    )


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


# What is put around a text: the tokens for one text and for a pair --------------------------------

Frame = Callable[[dict[str, str], Settings], tuple[list[str], list[str]]]


def _switched(names: dict[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    bos = [names["bos"]] if settings.get("add_bos_token") and "bos" in names else []
    eos = [names["eos"]] if settings.get("add_eos_token") and "eos" in names else []
    second = [f"{token}:1" for token in bos], [f"{token}:1" for token in eos]
    single = [*bos, "$A", *eos]
    return single, [*single, *second[0], "$B:1", *second[1]]


def _bert(names: dict[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    cls, sep = names["cls"], names["sep"]
    return [cls, "$A", sep], [cls, "$A", sep, "$B:1", f"{sep}:1"]


def _roberta(names: dict[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    cls, sep = names["cls"], names["sep"]
    return [cls, "$A", sep], [cls, "$A", sep, sep, "$B", sep]


def _clip(names: dict[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    bos, eos = names["bos"], names["eos"]
    return [bos, "$A", eos], [bos, "$A", eos, eos, "$B", eos]


def _t5(names: dict[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    eos = names["eos"]
    return ["$A", eos], ["$A", eos, "$B", eos]


# SentencePiece models with the tokens that a family puts around them ------------------------------


def _sentencepiece(file: Path, settings: Settings) -> Tokenizer:
    return sentencepiece_tokenizer(read_sentencepiece(file))


def _llama_model(file: Path, settings: Settings) -> Tokenizer:
    prefix = settings.get("add_prefix_space")
    scheme = "always" if settings.get("legacy", False) else "first"
    metaspace = scheme if prefix or prefix is None else "never"
    return sentencepiece_tokenizer(read_sentencepiece(file), metaspace=metaspace)


def _gemma_model(file: Path, settings: Settings) -> Tokenizer:
    return sentencepiece_tokenizer(read_sentencepiece(file), metaspace="never")


def _t5_model(file: Path, settings: Settings) -> Tokenizer:
    model = read_sentencepiece(file)
    numbers = range(settings.get("extra_ids", 100) - 1, -1, -1)
    sentinels = [Piece(f"<extra_id_{number}>", kind=CONTROL) for number in numbers]
    return sentencepiece_tokenizer(model, [*model.pieces, *sentinels])


def _xlm_roberta_model(file: Path, settings: Settings) -> Tokenizer:
    model = read_sentencepiece(file)
    first = [Piece(name, kind=CONTROL) for name in ("<s>", "<pad>", "</s>")]
    unknown = Piece(model.pieces[model.unknown_id].text, kind=UNKNOWN)
    mask = Piece("<mask>", kind=CONTROL)
    return sentencepiece_tokenizer(model, [*first, unknown, *model.pieces[3:], mask])


def _albert_model(file: Path, settings: Settings) -> Tokenizer:
    before = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        before += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        before.append(normalizers.Lowercase())
    return sentencepiece_tokenizer(read_sentencepiece(file), before=before)


# The classes of transformers ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """What the name of a tokenizer's class stands for."""

    files: tuple[str, ...]
    """The names or endings of its files."""
    make: Callable[[Path, Settings], Tokenizer]
    tokens: dict[str, str] = field(default_factory=dict)
    """The usual special tokens by role."""
    frame: Frame = _switched
    begins: bool = False
    """Whether a text begins with BOS where there is no tokenizer_config.json."""


_END = "<|endoftext|>"
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
_ROBERTA |= {"cls": "<s>", "mask": "<mask>"}
_GPT2 = {"bos": _END, "eos": _END, "unk": _END}
_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_GEMMA = {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
_ALBERT = {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}
_ALBERT |= {"sep": "[SEP]", "cls": "[CLS]", "mask": "[MASK]"}
_CLIP = {"bos": "<|startoftext|>", "eos": _END, "unk": _END, "pad": _END}
_QWEN = {"eos": _END, "unk": _END, "pad": _END}
_MODEL, _WORD, _MERGED = (".model",), (_WORDS,), (VOCABULARY,)

_PLAIN = _Kind(_MODEL, _sentencepiece)
_KINDS = {
    "AlbertTokenizer": _Kind(_MODEL, _albert_model, _ALBERT, _bert),
    "BertTokenizer": _Kind(_WORD, vocabularies.wordpiece, _BERT, _bert),
    "CLIPTokenizer": _Kind(_MERGED, vocabularies.clip, _CLIP, _clip),
    "GPT2Tokenizer": _Kind(_MERGED, vocabularies.byte_level, _GPT2),
    "GemmaTokenizer": _Kind(_MODEL, _gemma_model, _GEMMA, begins=True),
    "LlamaTokenizer": _Kind(_MODEL, _llama_model, _LLAMA, begins=True),
    "MPNetTokenizer": _Kind(_WORD, vocabularies.wordpiece, _ROBERTA | {"unk": "[UNK]"}, _roberta),
    "OpenAIGPTTokenizer": _Kind(_MERGED, vocabularies.openai_gpt, {"unk": "<unk>"}),
    "Qwen2Tokenizer": _Kind(_MERGED, vocabularies.qwen, _QWEN),
    "RobertaTokenizer": _Kind(_MERGED, vocabularies.byte_level, _ROBERTA, _roberta),
    "T5Tokenizer": _Kind(_MODEL, _t5_model, _T5, _t5),
    "XLMRobertaTokenizer": _Kind(_MODEL, _xlm_roberta_model, _ROBERTA, _roberta),
}
_SAME = {
    "BartTokenizer": "RobertaTokenizer",
    "CodeGenTokenizer": "GPT2Tokenizer",
    "CodeLlamaTokenizer": "LlamaTokenizer",
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "ErnieTokenizer": "BertTokenizer",
    "LEDTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
    "MT5Tokenizer": "T5Tokenizer",
    "Phi3Tokenizer": "LlamaTokenizer",
    "Qwen3Tokenizer": "Qwen2Tokenizer",
}
_CLASS_OF_MODEL = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie"), "BertTokenizer"),
    **dict.fromkeys(("clip", "clip_text_model"), "CLIPTokenizer"),
    **dict.fromkeys(("codegen", "gpt2", "gpt_neo", "gptj", "opt", "phi"), "GPT2Tokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3"), "LlamaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3"), "Qwen2Tokenizer"),
    **dict.fromkeys(("bart", "roberta"), "RobertaTokenizer"),
    **dict.fromkeys(("mt5", "t5"), "T5Tokenizer"),
    "albert": "AlbertTokenizer",
    "mpnet": "MPNetTokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}


def _kind_of(file: Path, settings: Settings, config: dict[str, Any]) -> _Kind:
    """Returns the kind of tokenizer that the files beside a vocabulary say it is."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    name = name.removesuffix("Fast") if isinstance(name, str) else None
    model_type = config.get("model_type")
    if name in _GENERIC:
        name = _CLASS_OF_MODEL.get(model_type)
    kind = _KINDS.get(_SAME.get(name, name))
    if is_tiktoken(file):
        return _PLAIN
    if kind is None and name is None and file.suffix not in (".json", ".txt"):
        return _PLAIN
    if kind is None or not file.name.endswith(kind.files):
        known = ", ".join(sorted({*_KINDS, *_SAME}))
        raise DataError(
            f"{file}: tokenizer_class = {name!r}: must be one of {known}, beside the files of "
            "that class. transformers can write a tokenizer.json for others: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return kind
