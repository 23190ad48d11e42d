"""Special tokens by role, and their names in tokenizers."""

import json
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer

from jaxformer.errors import ConfigError, DataError

Role = Literal["cls", "sep", "mask", "sentinels"]


class Frame(NamedTuple):
    """The special tokens around one text or two, and the token types of all parts."""

    gaps: tuple[tuple[int, ...], ...]
    """The tokens before the first text and after each text."""
    gap_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]


def frame_of(rust: Tokenizer, texts: int) -> Frame | None:
    """Returns the special tokens that a tokenizer's post-processor puts around its texts."""
    if rust.post_processor is None:
        return None
    # Several tokens, to distinguish a text from any tokens around it.
    encodings = [rust.encode(text, add_special_tokens=False) for text in ("a b c", "d e f")[:texts]]
    whole = rust.post_process(*encodings, *[None] * (2 - texts), add_special_tokens=True)
    places = [place for place, mark in enumerate(whole.special_tokens_mask) if not mark]
    sizes = [len(encoding.ids) for encoding in encodings]
    starts = [places[sum(sizes[:number])] for number in range(texts)]
    ends = [0, *(start + size for start, size in zip(starts, sizes, strict=True))]
    stops = [*starts, len(whole.ids)]
    gaps = [slice(end, stop) for end, stop in zip(ends, stops, strict=True)]
    return Frame(
        tuple(tuple(whole.ids[gap]) for gap in gaps),
        tuple(tuple(whole.type_ids[gap]) for gap in gaps),
        tuple(whole.type_ids[start] for start in starts),
    )


def special_tokens_in(rust: Tokenizer) -> dict[int, str]:
    """Returns the names of the special tokens of a tokenizer, by their ids."""
    added = rust.get_added_tokens_decoder().items()
    return {id_: token.content for id_, token in added if token.special}


NUM_SENTINELS = 100
# The tokens of each role with their usual names; a trained tokenizer gets the first.
_NAMES: dict[Role, tuple[tuple[str, ...], ...]] = {
    "cls": (("[CLS]", "<s>", "<cls>"),),
    "sep": (("[SEP]", "</s>", "<sep>"),),
    "mask": (("[MASK]", "<mask>"),),
    "sentinels": tuple((f"<extra_id_{number}>",) for number in range(NUM_SENTINELS)),
}


def ids_of(role: Role, token_id: Callable[[str], int | None]) -> list[int]:
    """Returns the ids of a role's tokens, in their order."""
    found = [_first_id(names, token_id) for names in _NAMES[role]]
    if None in found:
        names = " or ".join(_NAMES[role][found.index(None)])
        raise ConfigError(
            f"the tokenizer has no token for {role!r}, which the objective needs: add {names} to "
            "its file as a special token, or let data.tokenizer = TrainTokenizer() or Bytes() "
            "make a tokenizer that has it"
        )
    return found


def mask_names() -> tuple[str, ...]:
    """Returns the usual names of the mask token."""
    return _NAMES["mask"][0]


def names_to_add(roles: Collection[Role], token_id: Callable[[str], int | None]) -> list[str]:
    """Returns the names of the roles' tokens that a tokenizer lacks, in the order of their ids.

    The sentinels come last and backwards, so that the first has the highest id, as in T5.
    """
    ordered = [role for role in roles if role != "sentinels"]
    if "sentinels" in roles:
        ordered.append("sentinels")
    tokens = [names for role in ordered for names in reversed(_NAMES[role])]
    return [names[0] for names in tokens if _first_id(names, token_id) is None]


def _first_id(names: Iterable[str], token_id: Callable[[str], int | None]) -> int | None:
    return next((i for i in map(token_id, names) if i is not None), None)


# Names of special tokens that are ordinary text --------------------------------------------------

_STRIPS = ("lstrip", "rstrip", "single_word")
_CODE = "\U00017000\U00014400{}\U00012000"


def codes_of(rust: Tokenizer) -> dict[int, str]:
    """Returns, by id, a name for each special token that no text contains by chance."""
    return {id_: _CODE.format(id_) for id_ in special_tokens_in(rust)}


def names_as_text(rust: Tokenizer) -> Tokenizer:
    """Returns a tokenizer for which the name of a special token in a text is ordinary text.

    The tokenizers library has an option not to look for special tokens in a text, but a model that
    has one among its pieces may still find it.
    """
    rust.encode_special_tokens = True
    unknown = getattr(rust.model, "unk_token", None)
    for id_ in codes_of(rust):
        name = rust.id_to_token(id_)
        if name != unknown and id_ in rust.encode(name, add_special_tokens=False).ids:
            copied = with_codes(rust)
            copied.encode_special_tokens = True
            return copied
    return rust


def with_codes(rust: Tokenizer) -> Tokenizer:
    """Returns a copy, without a post-processor, that knows special tokens only by their codes."""
    codes = {rust.id_to_token(id_): code for id_, code in codes_of(rust).items()}
    definition: dict[str, Any] = json.loads(rust.to_str())
    added = [
        token | {"content": codes[token["content"]]} | dict.fromkeys(_STRIPS, False)
        if token["content"] in codes
        else token
        for token in definition["added_tokens"]
    ]
    model = dict(definition["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {codes.get(name, name): id_ for name, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[codes.get(name, name), *score] for name, *score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not _makes(pair, codes)]
    if model.get("unk_token") in codes:
        model["unk_token"] = codes[model["unk_token"]]
    rest = {"post_processor": None, "truncation": None, "padding": None}
    copied = Tokenizer.from_str(
        json.dumps(definition | rest | {"added_tokens": added, "model": model})
    )
    names = rust.get_vocab(with_added_tokens=True)
    renamed = {codes.get(name, name): id_ for name, id_ in names.items()}
    if copied.get_vocab(with_added_tokens=True) != renamed:
        raise DataError(
            "tokenizer.json: the ids of its added tokens are not those that the tokenizers "
            "library gives them: load and save it once with transformers"
        )
    return copied


def _makes(pair: str | Sequence[str], names: Container[str]) -> bool:
    """Whether a BPE merge contains one of the names."""
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left in names or right in names or left + right in names
