"""Selects a checkpoint of a run; reads and writes its parameters as plain arrays.

The checkpoint is the requested one, the best, or the newest intact one. Everything that opens a run
selects it here, so that evaluation, generation and export agree.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import jax
import numpy as np

from jaxformer.checkpoints import files
from jaxformer.checkpoints.checkpointer import Checkpointer, CheckpointError
from jaxformer.checkpoints.manifest import read_item, saved_validation
from jaxformer.checkpoints.restore import (
    array_shapes,
    damage_of,
    newest_whole,
    parameter_names,
    read_arrays,
    read_sharded,
    saved_config,
)
from jaxformer.checkpoints.run_dir import CHECKPOINTS, RunConfig, open_run_folder
from jaxformer.config.experiment import Config
from jaxformer.config.train import cost
from jaxformer.errors import ConfigError
from jaxformer.io.paths import AnyPath, any_path, run_path
from jaxformer.io.serialization import to_json
from jaxformer.models.frozen import SCALES, restored
from jaxformer.models.lora import FACTORS, adapted
from jaxformer.models.parameters import Parameters

_TRIES = 5
_Read = TypeVar("_Read")
_log = logging.getLogger(__name__)


class SavedRun:
    """A checkpoint of a run as plain parameters: averaged if the run keeps averages, low-rank
    factors merged.

    Args:
        folder: The run's folder, or the folder of one of its checkpoints: RUN/checkpoints/300.
        step: Which checkpoint, if the folder does not name one; None selects the newest intact one.
        best: Whether to select the one with the best value of `train.metric`.

    Raises:
        ConfigError: The folder is not a run, or the checkpoint does not exist.
        CheckpointError: All of its checkpoints are damaged.
    """

    def __init__(self, folder: AnyPath, step: int | None = None, best: bool = False):
        self.folder, step = run_and_step(folder, step, best)
        arrays = retry_if_deleted(self.folder, lambda: self._chosen(step, best))
        self.model = self.config.model
        self._stored = parameter_names(arrays, averaged=True)
        parts = (*FACTORS, SCALES)
        self.shapes = {n: arrays[a] for n, a in self._stored.items() if not n.endswith(parts)}
        """The shape of each parameter, by name."""
        self.adapted = frozenset(name for name in self.shapes if name + FACTORS[0] in self._stored)
        """The kernels that were trained through low-rank factors."""

    def _chosen(self, step: int | None, best: bool) -> dict[str, tuple[int, ...]]:
        """Selects the checkpoint and protects it from deletion; returns its arrays' shapes."""
        run = RunConfig(self.folder)
        self.step = chosen_step(self.folder, step, best)
        self._home = (self.folder / CHECKPOINTS / str(self.step)).absolute()
        self._hold = files.StepHold(self._home)
        self.config = saved_config(run, self.step)
        return array_shapes(self._home)

    @property
    def validation(self) -> dict[str, float]:
        """The validation metrics measured at this step, if any."""
        return files.validation_of(read_item(self._home, "meta"))

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into host memory."""
        names = list(names)
        found = self._read(name + part for name in names for part in ("", SCALES, *FACTORS))
        return {name: self._plain(name, found) for name in names}

    def read_factors(self) -> dict[str, np.ndarray]:
        """Reads the low-rank factors, by the name of the kernel and a name in `FACTORS`."""
        return self._read(name + part for name in self.adapted for part in FACTORS)

    def restore(
        self,
        shapes: Mapping[str, jax.ShapeDtypeStruct],
        shardings: Mapping[str, jax.sharding.Sharding],
    ) -> Parameters:
        """Reads parameters onto a mesh in their stored layout; each device reads only its shard."""
        wanted = {
            self._stored[name]: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[name])
            for name, x in shapes.items()
        }
        found = read_sharded(self._home, wanted)
        return {name: found[self._stored[name]] for name in shapes}

    def close(self) -> None:
        """Lets the run delete the checkpoint again; nothing can be read afterwards."""
        self._hold.close()

    def _read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads the given arrays that exist, in their stored layout."""
        arrays = {self._stored[name]: name for name in names if name in self._stored}
        stored = read_arrays(self._home, tuple(arrays))
        return {arrays[array]: value for array, value in stored if array in arrays}

    def _plain(self, name: str, found: Mapping[str, np.ndarray]) -> np.ndarray:
        kernel = restored(name, found) if name + SCALES in found else found[name]
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
    """Writes a run with a single checkpoint that contains only parameters."""
    folder = any_path(folder, "folder")
    open_run_folder(folder, config)
    checkpoints = Checkpointer(folder / CHECKPOINTS, to_json(config), keep=1)
    checkpoints.save(step, {"params": parameters}, validation)
    checkpoints.close()


def run_and_step(
    folder: AnyPath, step: int | None = None, best: bool = False
) -> tuple[AnyPath, int | None]:
    """Splits RUN/checkpoints/300 into the run and the step; returns a run's folder unchanged."""
    folder = run_path(folder, "run_dir")
    if not (folder.name.isdecimal() and folder.parent.name == CHECKPOINTS):
        return folder, step
    named = int(folder.name)
    if best or step not in (None, named):
        option = "--best" if best else f"--step {step}"
        raise ConfigError(
            f"{option}: {folder} is a single checkpoint; name the run, {folder.parent.parent}"
        )
    return folder.parent.parent, named


def chosen_step(run: AnyPath, step: int | None = None, best: bool = False) -> int:
    """Returns the step of an intact checkpoint of a run; warns about damaged ones it skips."""
    run = run_path(run, "run_dir")
    folder = run / CHECKPOINTS
    if best and step is not None:
        raise ConfigError(f"--step {step} and --best cannot be combined; leave one out")
    if step is None and not best:
        found = newest_whole(folder, _warn)
        if found is not None:
            return found
        if files.saved_steps(folder) or files.damaged_checkpoints(folder):
            raise CheckpointError(f"Every checkpoint in {folder} is damaged: none can be read")
        raise ConfigError(f"{run} has no complete checkpoint yet")
    steps = files.saved_steps(folder)
    available = ", ".join(map(str, steps)) or "none"
    option = "--best" if best else f"--step {step}"
    if best and (step := best_step(run)) is None:
        raise ConfigError(
            f"--best: no checkpoint in {folder} was measured by train.metric; choose one with "
            f"--step from {available}"
        )
    problem = damage_of(folder / str(step)) if step in steps else None
    if step not in files.saved_steps(folder):
        raise ConfigError(f"{option}: no such checkpoint; {folder} contains {available}")
    if problem:
        raise ConfigError(
            f"{option}: the checkpoint is damaged ({problem}); leave out {option.split()[0]} to "
            f"use the newest intact checkpoint in {folder}"
        )
    return step


def retry_if_deleted(run: AnyPath, read: Callable[[], _Read]) -> _Read:
    """Selects and reads a checkpoint; does so again if the run deleted it meanwhile."""
    for _ in range(_TRIES):
        before = files.saved_steps(run / CHECKPOINTS)
        try:
            return read()
        except Exception:
            # Several processes select together, so they would also have to fail together.
            if jax.process_count() > 1 or files.saved_steps(run / CHECKPOINTS) == before:
                raise
    return read()


def best_step(run: AnyPath) -> int | None:
    """Returns the kept step with the best value of the run's `train.metric`."""
    metric = RunConfig(run).config.train.metric
    folder = run / CHECKPOINTS
    measured = {step: saved_validation(folder / str(step)) for step in files.saved_steps(folder)}
    return files.best_step({step: cost(metric, v.get(metric)) for step, v in measured.items()})


def _warn(step_folder: AnyPath, problem: str) -> None:
    _log.warning("Skipping the damaged checkpoint %s (%s).", step_folder, problem)
