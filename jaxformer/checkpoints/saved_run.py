"""The parameters of a run, read and written as plain arrays."""

from collections.abc import Iterable, Mapping

import jax
import numpy as np

from jaxformer.checkpoints import files
from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.manifest import read_item
from jaxformer.checkpoints.restore import (
    array_shapes,
    parameter_names,
    read_arrays,
    restore_parameters,
)
from jaxformer.checkpoints.run_dir import CHECKPOINTS, RunConfig, open_run_folder
from jaxformer.checkpoints.select import chosen_step, read_steadily, run_and_step, saved_config
from jaxformer.config.experiment import Config
from jaxformer.io.paths import AnyPath, any_path
from jaxformer.io.serialization import to_json
from jaxformer.models.frozen import SCALES, restored
from jaxformer.models.lora import FACTORS, adapted
from jaxformer.models.parameters import Parameters


class SavedRun:
    """A checkpoint of a run as plain parameters: averaged if it keeps averages, factors merged.

    Args:
        folder: The run's, or that of one of its checkpoints: RUN/checkpoints/300.
        step: Which checkpoint, where the folder does not say; None: the newest that is whole.
        best: Whether the one with the best value of `train.metric` is wanted.

    Raises:
        ConfigError: The folder is no run, or has no such checkpoint.
        CheckpointError: All of its checkpoints are damaged.
    """

    def __init__(self, folder: AnyPath, step: int | None = None, best: bool = False):
        self.folder, step = run_and_step(folder, step, best)
        arrays = read_steadily(self.folder, lambda: self._chosen(step, best))
        self.model = self.config.model
        self._stored = parameter_names(arrays, averaged=True)
        parts = (*FACTORS, SCALES)
        self.shapes = {n: arrays[a] for n, a in self._stored.items() if not n.endswith(parts)}
        """The shape of each parameter, by its name."""
        self.adapted = frozenset(name for name in self.shapes if name + FACTORS[0] in self._stored)
        """The kernels that learned through factors."""

    def _chosen(self, step: int | None, best: bool) -> dict[str, tuple[int, ...]]:
        """Chooses the checkpoint, and keeps it from being deleted; returns its arrays' shapes."""
        run = RunConfig(self.folder)
        self.step = chosen_step(self.folder, step, best)
        self._home = (self.folder / CHECKPOINTS / str(self.step)).absolute()
        self._hold = files.StepHold(self._home)
        self.config = saved_config(run, self.step)
        return array_shapes(self._home)

    @property
    def validation(self) -> dict[str, float]:
        """What was measured at this step, if anything."""
        return files.validation_of(read_item(self._home, "meta"))

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into the host's memory."""
        names = list(names)
        found = self._read(name + part for name in names for part in ("", SCALES, *FACTORS))
        return {name: self._plain(name, found) for name in names}

    def read_factors(self) -> dict[str, np.ndarray]:
        """Reads the low-rank factors, by the names of their kernels and `FACTORS`."""
        return self._read(name + part for name in self.adapted for part in FACTORS)

    def restore(
        self,
        shapes: Mapping[str, jax.ShapeDtypeStruct],
        shardings: Mapping[str, jax.sharding.Sharding],
    ) -> Parameters:
        """Reads parameters to a mesh as they are stored, each device its own part.

        Args:
            shapes: Of each parameter, by name.
            shardings: Where each parameter shall be.
        """
        averaged = self.config.train.ema_decay is not None
        return restore_parameters(self._home, shapes, shardings, averaged)

    def close(self) -> None:
        """Lets the run delete the checkpoint; nothing more can be read."""
        self._hold.close()

    def _read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads those of the arrays that there are, as they are stored."""
        arrays = {self._stored[name]: name for name in names if name in self._stored}
        stored = read_arrays(self._home, tuple(arrays))
        return {arrays[array]: value for array, value in stored if array in arrays}

    def _plain(self, name: str, found: Mapping[str, np.ndarray]) -> np.ndarray:
        kernel = restored(name, found)
        if name in self.adapted:
            a, b = (found[name + suffix] for suffix in FACTORS)
            kernel = adapted(kernel.astype(np.float32), a, b, self.config.train.lora.scale)
        return np.asarray(kernel)


def write_run(
    folder: AnyPath,
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
    folder = any_path(folder, "folder")
    open_run_folder(folder, config)
    checkpoints = Checkpointer(folder / CHECKPOINTS, to_json(config), keep=1)
    checkpoints.save(step, {"params": parameters}, validation)
    checkpoints.close()
