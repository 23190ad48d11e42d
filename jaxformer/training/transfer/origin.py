"""Opens the models that an experiment names, compares tokenizers and keeps their files."""

from typing import Any

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, IMPORTED
from jaxformer.data import Data, Tokenizer, TokenizerFile, load_tokenizer
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.model_files import CONFIG, file_in
from jaxformer.io.paths import AnyPath
from jaxformer.io.staging import name_of
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.pretrained.writing import keep_export_files


def open_named(name: str, field: str, **options: Any) -> Checkpoint:
    """Opens the model that a field of an experiment names; errors name the field."""
    try:
        return open_checkpoint(name, field, **options)
    except (ConfigError, DataError) as error:
        where = f"{field} = "
        message = str(error) if str(error).startswith(where) else f"{where}{name}: {error}"
        raise ConfigError(message) from error


def check_same_tokenizer(tokenizer: Tokenizer, other: Checkpoint) -> None:
    """Raises ConfigError unless a run uses the same tokenizer as another model."""
    if tokenizer.fingerprint() != _tokenizer_of(other).fingerprint():
        raise ConfigError(f"it has a different tokenizer. {_remedy(other)}")


def check_known_tokenizer(data: Data, other: Checkpoint) -> None:
    """Calls `check_same_tokenizer` if the data names a tokenizer, before any is trained."""
    spec = getattr(data, "tokenizer", None)
    if isinstance(spec, TokenizerFile):
        check_same_tokenizer(spec.fit(()), other)


def check_tokenizer(spec: Any, origin: Checkpoint) -> None:
    """Checks the tokenizer that the data names, if any, with `check_same_tokens`."""
    if spec is not None:
        _tokenizer_of(origin)
        check_same_tokens(spec.fit(()), origin)


def check_same_tokens(tokenizer: Tokenizer, origin: Checkpoint) -> None:
    """Raises ConfigError unless ids in both tokenizers stand for the same tokens."""
    pieces = zip(tokenizer.pieces(), _tokenizer_of(origin).pieces(), strict=False)
    for number, (here, there) in enumerate(pieces):
        if here != there:
            raise ConfigError(
                f"--init-from {name_of(origin.folder)}: its tokenizer differs: token {number} is "
                f"{there!r} there and {here!r} here, so its embeddings would stand for other "
                f"tokens. {_remedy(origin)}"
            )


def keep_origin(folder: AnyPath, origin: Checkpoint, tokenizer: Tokenizer | None) -> None:
    """Copies the files of the Hugging Face checkpoint that a run starts from into the run's folder.

    Exporting the run restores them: templates, special tokens, generation config and label names.
    """
    begun = (folder / IMPORTED).exists() or saved_steps(folder / CHECKPOINTS)
    if begun or file_in(origin.home, CONFIG) is None:
        return
    same = tokenizer is None or tokenizer_file(origin.home) is None
    same = same or load_tokenizer(origin.home).fingerprint() == tokenizer.fingerprint()
    own = None if same else tokenizer
    keep_export_files(folder, origin.home, origin.description, origin.layout, own)


def _tokenizer_of(other: Checkpoint) -> Tokenizer:
    if other.tokenizer is None:
        raise ConfigError(
            f"{name_of(other.folder)} has no tokenizer, so the meaning of its tokens is unknown: "
            "write one there with transformers, "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    return other.tokenizer


def _remedy(other: Checkpoint) -> str:
    where = name_of(other.tokenizer_folder)
    return f"Use its tokenizer: --data.tokenizer TokenizerFile --data.tokenizer.path {where}"
