"""Special tokens by role, and the names that tokenizers give them."""

from collections.abc import Callable, Collection, Iterable
from typing import Literal

from jaxformer.errors import ConfigError

Role = Literal["cls", "sep", "mask", "sentinels"]

NUM_SENTINELS = 100
# The tokens of each role, each with its usual names; the first is what a trained tokenizer gets.
_NAMES: dict[Role, tuple[tuple[str, ...], ...]] = {
    "cls": (("[CLS]", "<s>", "<cls>"),),
    "sep": (("[SEP]", "</s>", "<sep>"),),
    "mask": (("[MASK]", "<mask>"),),
    "sentinels": tuple((f"<extra_id_{number}>",) for number in range(NUM_SENTINELS)),
}


def ids_of(role: Role, token_id: Callable[[str], int | None]) -> list[int]:
    """Returns the ids of a role's tokens, in their order.

    Args:
        role: The purpose of the tokens: "cls" opens a row, "sep" ends a part of it, "mask"
            replaces a hidden token, and the 100 "sentinels" hidden spans.
        token_id: Returns a token's id, or None where the tokenizer lacks it.

    Raises:
        ConfigError: The tokenizer lacks one of them, under all its usual names.
    """
    found = [_first_id(names, token_id) for names in _NAMES[role]]
    if None in found:
        names = " or ".join(_NAMES[role][found.index(None)])
        raise ConfigError(
            f"the tokenizer has no token for {role!r}, which the objective needs: add {names} to "
            "its file as a special token, or let data.tokenizer = TrainTokenizer() or Bytes() "
            "make a tokenizer that has it"
        )
    return found


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
