"""The tokenizer of a run: made at the first start, saved in the run's folder, never replaced."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jaxformer.data.tokenizers.files import TOKENIZER_FILES
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, load_tokenizer
from jaxformer.errors import DataError
from jaxformer.io.files import (
    DIGESTS,
    add_digests,
    check_digests,
    move_into_place,
    read_bytes,
    read_json,
    remove_folder,
    temporary_folder,
    write_digests,
)

_SPEC = "spec.json"
_log = logging.getLogger(__name__)


def load_or_train_tokenizer(
    folder: str | os.PathLike,
    spec: TokenizerSpec,
    texts: Iterable[str],
    special_tokens: Sequence[Role] = (),
) -> Tokenizer:
    """Returns the tokenizer in `folder/tokenizer`, which the first call makes and saves.

    Raises:
        ConfigError: It lacks a special token.
        DataError: The folder holds another tokenizer, or this one cannot be loaded or trained.
    """
    home = Path(folder, "tokenizer")
    asked = repr(spec)
    if special_tokens:
        asked += f" with special tokens ({', '.join(special_tokens)})"

    def write(temporary: Path) -> None:
        start = time.perf_counter()
        tokenizer = spec.fit(texts, special_tokens)
        tokenizer.save(temporary)
        (temporary / _SPEC).write_text(json.dumps(asked), encoding="utf-8")
        write_digests(temporary / DIGESTS, (*TOKENIZER_FILES, _SPEC))
        seconds = time.perf_counter() - start
        _log.info("Tokenizer of %d tokens ready in %.1f s", tokenizer.vocab_size, seconds)

    if not home.is_dir():
        with temporary_folder(home) as temporary:
            write(temporary)
            move_into_place(temporary, home)
    if (home / DIGESTS).exists():
        _repair(home, write)
    elif not (home / _SPEC).exists():
        raise DataError(f"{home} is in the way: it lacks the {_SPEC} of a run's tokenizer")
    made_by = read_json(home / _SPEC, str)
    if made_by != asked:
        raise DataError(
            f"{home} holds the tokenizer {made_by}, but {asked} is configured: use another "
            "folder, or delete this one if no model depends on it"
        )
    tokenizer = load_tokenizer(home)
    add_digests(home / DIGESTS, (*TOKENIZER_FILES, _SPEC))
    return tokenizer


def _repair(home: Path, write: Callable[[Path], None]) -> None:
    """Rebuilds a damaged tokenizer, if this gives exactly the same files."""
    try:
        check_digests(home / DIGESTS, (*TOKENIZER_FILES, _SPEC))
        return
    except DataError as error:
        damage = error
    try:
        with temporary_folder(home) as temporary:
            write(temporary)
            if read_bytes(temporary / DIGESTS) != read_bytes(home / DIGESTS):
                raise DataError("the same experiment now gives another tokenizer")
            remove_folder(home)
            move_into_place(temporary, home)
    except DataError as error:
        raise DataError(
            f"{damage}, and it cannot be made again: {error}. Put a copy of the file back, or "
            "use another folder"
        ) from error
    _log.warning("%s; restored", damage)
