"""Whether two runs mean the same by a token."""

from dataclasses import replace
from pathlib import Path

from jaxformer.config import Config
from jaxformer.data import Tokenizer, TokenizerFile, TrainTokenizer, load_tokenizer
from jaxformer.errors import ConfigError


def with_tokenizer_of_origin(config: Config) -> Config:
    """An experiment that starts from another run takes its tokenizer rather than train one.

    A tokenizer that is named, a file or bytes, stays.
    """
    trains = isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer)
    if config.init_from is None or not trains:
        return config
    folder = Path(config.init_from, "tokenizer")
    if not folder.is_dir():
        return config
    return replace(config, data=replace(config.data, tokenizer=TokenizerFile(str(folder))))


def check_same_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Checks that a run has the very tokenizer that another has.

    Args:
        tokenizer: This run's.
        folder: The other's.

    Raises:
        ConfigError: The tokenizers differ; says how to take the other's.
    """
    if tokenizer.fingerprint() != load_tokenizer(folder / "tokenizer").fingerprint():
        raise ConfigError(f"it has another tokenizer. {_remedy(folder)}")


def check_same_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Checks that every token that two runs' tokenizers both have is the same text.

    A tokenizer may have more tokens than the other, after them.

    Args:
        tokenizer: This run's.
        folder: The other's.

    Raises:
        ConfigError: A token differs; says which, and how to take the other's tokenizer.
    """
    pieces = zip(tokenizer.pieces(), load_tokenizer(folder / "tokenizer").pieces(), strict=False)
    for number, (ours, theirs) in enumerate(pieces):
        if ours != theirs:
            raise ConfigError(
                f"--init-from {folder}: its tokenizer is another: token {number} is {theirs!r} "
                f"there and {ours!r} here, so its embeddings stand for other tokens. "
                f"{_remedy(folder)}"
            )


def _remedy(folder: Path) -> str:
    return (
        f"Take its tokenizer: --data.tokenizer TokenizerFile --data.tokenizer.path "
        f"{folder / 'tokenizer'} (and --fresh, as this run's folder has one of its own by now)"
    )
