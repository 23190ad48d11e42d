"""The models that an experiment names: opened, their tokenizers compared, their files kept."""

from typing import Any

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, IMPORTED
from jaxformer.data import Tokenizer, TokenizerFile, load_tokenizer
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.model_files import CONFIG, file_in
from jaxformer.io.paths import AnyPath
from jaxformer.io.staging import name_of
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.pretrained.writing import keep_beside


def open_named(name: str, field: str, **options: Any) -> Checkpoint:
    """Opens the model that a field of an experiment names; every error names the field."""
    try:
        return open_checkpoint(name, field, **options)
    except (ConfigError, DataError) as error:
        where = f"{field} = "
        message = str(error) if str(error).startswith(where) else f"{where}{name}: {error}"
        raise ConfigError(message) from error


def known_tokenizer(spec: Any) -> Tokenizer | None:
    """Returns the tokenizer that data name; None where they have none, or make it themselves."""
    return spec.fit(()) if isinstance(spec, TokenizerFile) else None


def check_same_tokenizer(tokenizer: Tokenizer, other: Checkpoint) -> None:
    """Raises ConfigError unless a run has the very tokenizer of another model."""
    if tokenizer.fingerprint() != _tokenizer_of(other).fingerprint():
        raise ConfigError(f"it has another tokenizer. {_remedy(other)}")


def check_tokenizer(spec: Any, origin: Checkpoint) -> None:
    """Checks, as `check_same_tokens`, the tokenizer that data name, if they have one."""
    if spec is not None:
        _tokenizer_of(origin)
        check_same_tokens(spec.fit(()), origin)


def check_same_tokens(tokenizer: Tokenizer, origin: Checkpoint) -> None:
    """Raises ConfigError unless the tokens that two tokenizers share stand for the same text."""
    pieces = zip(tokenizer.pieces(), _tokenizer_of(origin).pieces(), strict=False)
    for number, (here, there) in enumerate(pieces):
        if here != there:
            raise ConfigError(
                f"--init-from {name_of(origin.folder)}: its tokenizer is another: token {number} "
                f"is {there!r} there and {here!r} here, so its embeddings stand for other tokens. "
                f"{_remedy(origin)}"
            )


def keep_origin(folder: AnyPath, origin: Checkpoint, tokenizer: Tokenizer | None) -> None:
    """Keeps in a run's folder the files of the Hugging Face checkpoint that it starts from.

    Its export has them again: templates, special tokens, the generation config, label names.
    """
    begun = (folder / IMPORTED).exists() or saved_steps(folder / CHECKPOINTS)
    if begun or file_in(origin.home, CONFIG) is None:
        return
    same = tokenizer is None or tokenizer_file(origin.home) is None
    same = same or load_tokenizer(origin.home).fingerprint() == tokenizer.fingerprint()
    own = None if same else tokenizer
    keep_beside(folder, origin.home, origin.description, origin.layout, own)


def _tokenizer_of(other: Checkpoint) -> Tokenizer:
    if other.tokenizer is None:
        raise ConfigError(
            f"{name_of(other.folder)} has no tokenizer, so nothing says what its tokens are: write "
            "one there with transformers, AutoTokenizer.from_pretrained(NAME).save_pretrained("
            "FOLDER)"
        )
    return other.tokenizer


def _remedy(other: Checkpoint) -> str:
    where = name_of(other.tokenizer_folder)
    return f"Take its tokenizer: --data.tokenizer TokenizerFile --data.tokenizer.path {where}"
