"""The parameters of a folder that transformers saved, read as those of a run are."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.hf_config import is_hf_checkpoint
from jaxformer.pretrained.model import open_folder


class SavedFolder:
    """What `SavedRun` is for a run: plain parameters, by our names.

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
    """The parameters in a folder: a run's, one of its checkpoints', or transformers'.

    Args:
        folder: RUN, RUN/checkpoints/300, or one with config.json and safetensors.
        asked_by: What named it, for messages: "--init-from".

    Raises:
        ConfigError: It is none of these, or cannot be read.
    """
    return SavedFolder(folder, asked_by) if is_hf_checkpoint(folder) else SavedRun(folder, asked_by)
