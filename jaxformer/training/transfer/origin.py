"""The model that a run starts from or learns from: its parameters and its tokenizer."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.checkpoints.select import run_and_step
from jaxformer.config.experiment import Config
from jaxformer.data import Tokenizer, TokenizerFile, TrainTokenizer, load_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.hf_config import is_hf_checkpoint
from jaxformer.pretrained.model import open_folder


class SavedFolder:
    """The parameters of a Hugging Face checkpoint, with the interface of `SavedRun`.

    Args:
        folder: With config.json and safetensors.
        asked_by: What named the folder, for messages: "--init-from".

    Raises:
        ConfigError: The system or one of its settings is not known, or its tensors do not fit.
    """

    adapted: frozenset[str] = frozenset()
    step = 0

    def __init__(self, folder: Path, asked_by: str):
        try:
            self._opened = open_folder(folder)
        except (ConfigError, DataError) as error:
            raise ConfigError(f"{asked_by}: {error}") from error
        self.folder = folder
        self.model = self._opened.checkpoint.config
        self.shapes = {name: x.shape for name, x in self._opened.abstract_model.shapes.items()}
        """The shape of each parameter, by its name."""

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into the host's memory."""
        return {name: self._opened.read(name) for name in names}


def open_saved(folder: Path, asked_by: str) -> SavedRun | SavedFolder:
    """Opens the parameters of a run, of one of its checkpoints, or of a Hugging Face checkpoint.

    Args:
        folder: RUN, RUN/checkpoints/300, or one with config.json and safetensors.
        asked_by: The option that names the folder, for messages: "--init-from".

    Returns:
        The parameters, not read yet.

    Raises:
        ConfigError: It is none of these, or cannot be read.
    """
    return SavedFolder(folder, asked_by) if is_hf_checkpoint(folder) else SavedRun(folder, asked_by)


def with_tokenizer_of_origin(config: Config) -> Config:
    """The experiment with the tokenizer of the model that it starts from, unless it names one."""
    trains = isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer)
    if config.init_from is None or not trains:
        return config
    folder = tokenizer_folder(Path(config.init_from))
    if folder is None:
        return config
    return replace(config, data=replace(config.data, tokenizer=TokenizerFile(str(folder))))


def tokenizer_folder(origin: Path) -> Path | None:
    """The folder with the tokenizer of a run, a checkpoint or a Hugging Face checkpoint, if any."""
    run, _ = run_and_step(origin)
    places = (run / "tokenizer", run)
    return next((place for place in places if (place / "tokenizer.json").is_file()), None)


def check_same_tokenizer(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that a run has the very tokenizer that another model has.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run or a Hugging Face checkpoint.

    Raises:
        ConfigError: The tokenizers differ, or there is none; says how to take the other's.
    """
    folder = _existing(origin)
    if tokenizer.fingerprint() != load_tokenizer(folder).fingerprint():
        raise ConfigError(f"it has another tokenizer. {_remedy(folder)}")


def check_same_tokens(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that the tokens that two models' tokenizers share stand for the same text.

    A tokenizer may have additional tokens at the end.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run, one of its checkpoints, or a Hugging Face checkpoint.

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
