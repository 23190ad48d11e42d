"""Whether two models mean the same by a token."""

from dataclasses import replace
from pathlib import Path

from jaxformer.checkpoints.saved_run import run_and_step
from jaxformer.config.experiment import Config
from jaxformer.data import Tokenizer, TokenizerFile, TrainTokenizer, load_tokenizer
from jaxformer.errors import ConfigError


def with_tokenizer_of_origin(config: Config) -> Config:
    """An experiment that starts from another model takes its tokenizer rather than train one.

    A tokenizer that is named, a file or bytes, stays.
    """
    trains = isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer)
    if config.init_from is None or not trains:
        return config
    folder = tokenizer_folder(Path(config.init_from))
    if folder is None:
        return config
    return replace(config, data=replace(config.data, tokenizer=TokenizerFile(str(folder))))


def tokenizer_folder(origin: Path) -> Path | None:
    """Where the tokenizer of a run, of one of its checkpoints or of transformers' folder is."""
    run, _ = run_and_step(origin)
    places = (run / "tokenizer", run)
    return next((place for place in places if (place / "tokenizer.json").is_file()), None)


def check_same_tokenizer(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that a run has the very tokenizer that another model has.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run's or transformers'.

    Raises:
        ConfigError: The tokenizers differ, or there is none; says how to take the other's.
    """
    folder = _existing(origin)
    if tokenizer.fingerprint() != load_tokenizer(folder).fingerprint():
        raise ConfigError(f"it has another tokenizer. {_remedy(folder)}")


def check_same_tokens(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that every token that two models' tokenizers both have is the same text.

    A tokenizer may have more tokens than the other, after them.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run's, one of its checkpoints', or transformers'.

    Raises:
        ConfigError: A token differs (says which), or there is no tokenizer; says how to take the
            other's.
    """
    folder = _existing(origin)
    pieces = zip(tokenizer.pieces(), load_tokenizer(folder).pieces(), strict=False)
    for number, (ours, theirs) in enumerate(pieces):
        if ours != theirs:
            raise ConfigError(
                f"--init-from {origin}: its tokenizer is another: token {number} is {theirs!r} "
                f"there and {ours!r} here, so its embeddings stand for other tokens. "
                f"{_remedy(folder)}"
            )


def _existing(origin: Path) -> Path:
    folder = tokenizer_folder(origin)
    if folder is None:
        raise ConfigError(
            f"{origin} has no tokenizer.json, so nothing says what its tokens are: write one there "
            "with transformers, AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    return folder


def _remedy(folder: Path) -> str:
    return f"Take its tokenizer: --data.tokenizer TokenizerFile --data.tokenizer.path {folder}"
