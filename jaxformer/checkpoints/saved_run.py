"""The parameters of a run, read and written as plain arrays."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxformer.checkpoints import files
from jaxformer.checkpoints.checkpointer import Checkpointer, CheckpointError
from jaxformer.checkpoints.manifest import read_item
from jaxformer.checkpoints.restore import array_shapes, read_arrays
from jaxformer.checkpoints.run_dir import CHECKPOINTS, RunConfig, open_run_folder
from jaxformer.checkpoints.select import chosen_step, run_and_step, saved_config
from jaxformer.config.experiment import Config
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import to_json
from jaxformer.models.lora import FACTORS, adapted, is_factor
from jaxformer.models.parameters import Parameters


class SavedRun:
    """A checkpoint of a run as plain parameters: averaged if it keeps averages, factors merged.

    Args:
        folder: The run's, or that of one of its checkpoints: RUN/checkpoints/300.
        asked_by: What named the folder, for messages: "--init-from".
        step: Which checkpoint, where the folder does not say; None: the newest that is whole.
        best: Whether the one with the best value of `train.metric` is wanted.

    Raises:
        ConfigError: The folder is no run, or has no such checkpoint.
        CheckpointError: All of its checkpoints are damaged.
    """

    def __init__(self, folder: Path, asked_by: str, step: int | None = None, best: bool = False):
        try:
            folder, step = run_and_step(folder, step, best)
            run = RunConfig(folder)
            self.step = chosen_step(folder, step, best)
            self.config = saved_config(run, self.step)
        except (ConfigError, CheckpointError) as error:
            raise type(error)(f"{asked_by}: {error}") from error
        self.folder, self.model = folder, self.config.model
        self._home = (folder / CHECKPOINTS / str(self.step)).absolute()
        arrays = array_shapes(self._home)
        self._prefix = "ema/" if any(name.startswith("ema/") for name in arrays) else "params/"
        names = {name.removeprefix(self._prefix): name for name in arrays if self._has(name)}
        self.shapes = {name: arrays[names[name]] for name in names if not is_factor(name)}
        """The shape of each parameter, by its name."""
        self.adapted = frozenset(name for name in self.shapes if name + FACTORS[0] in names)
        """The kernels that learned through factors."""

    @property
    def validation(self) -> dict[str, float]:
        """What was measured at this step, if anything."""
        return files.validation_of(read_item(self._home, "meta"))

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into the host's memory."""
        wanted = {name: (name, *self._factors_of(name)) for name in names}
        stored = tuple(self._prefix + part for parts in wanted.values() for part in parts)
        found = {
            name.removeprefix(self._prefix): array
            for name, array in read_arrays(self._home, stored)
        }
        return {name: self._merged([found[p] for p in parts]) for name, parts in wanted.items()}

    def _has(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def _factors_of(self, name: str) -> list[str]:
        return [name + suffix for suffix in FACTORS] if name in self.adapted else []

    def _merged(self, arrays: list[np.ndarray]) -> np.ndarray:
        if len(arrays) == 1:
            return arrays[0]
        return np.asarray(adapted(*arrays, self.config.train.lora.scale))


def write_run(
    folder: Path,
    config: Config,
    step: int,
    parameters: Parameters,
    validation: Mapping[str, float] | None = None,
) -> None:
    """Writes a run of one checkpoint, which has parameters and nothing else.

    Args:
        folder: Absent or empty.
        config: The run's.
        step: That of the checkpoint.
        parameters: Of the model, by name.
        validation: What was measured of them, if anything.

    Raises:
        ConfigError: The folder holds something.
    """
    open_run_folder(folder, config)
    checkpoints = Checkpointer(folder / CHECKPOINTS, to_json(config), keep=1)
    checkpoints.save(step, {"params": parameters}, validation)
    checkpoints.close()
