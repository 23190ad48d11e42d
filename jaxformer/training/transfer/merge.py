"""Merges the low-rank factors of a run into plain weights in a new run folder."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp

from jaxformer.checkpoints.run_dir import KEPT, kept_files
from jaxformer.checkpoints.saved_run import SavedRun, write_run
from jaxformer.config.experiment import Config
from jaxformer.errors import ConfigError
from jaxformer.io.files import check_unused, write_whole
from jaxformer.io.paths import any_path, run_path


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    source: Path
    folder: Path
    step: int
    """The step of the merged checkpoint."""
    kernels: tuple[str, ...]
    """The kernels whose factors were merged."""
    parameters: int
    """Number of parameters of the plain weights."""

    def report(self) -> str:
        """Returns the report for the screen."""
        lines = [
            f"{self.folder}: the weights of {self.source} at step {self.step}, "
            f"{self.parameters:,} parameters, with the factors of {len(self.kernels)} kernels "
            "merged",
            *(f"  {name}" for name in self.kernels),
            f"Next: python -m jaxformer evaluate {self.folder}, or start a run from it with "
            f"--init-from {self.folder}",
        ]
        return "\n".join(lines)


def merge(source: Path, target: Path, step: int | None = None, best: bool = False) -> Merged:
    """Writes the weights of a run with merged low-rank factors as a new run folder.

    The folder contains the configuration without factors, one checkpoint with only parameters, and
    the corresponding tokenizer and labels. It is written atomically.
    """
    source = run_path(source, "RUN_DIR")
    target = any_path(target, "OUT_DIR")
    saved = SavedRun(source, step, best)
    if not saved.adapted:
        raise ConfigError(
            f"merge {source}: the run did not train low-rank factors (train.lora), so there is "
            "nothing to merge"
        )
    check_unused(target)
    config = plain_config(saved.config, saved.folder)
    arrays = {name: jnp.asarray(array) for name, array in saved.read(saved.shapes).items()}

    def write(written: Path) -> None:
        write_run(written, config, saved.step, arrays, saved.validation)
        home = kept_files(saved.folder)
        for name in KEPT:
            if (kept := home / name).is_dir():
                shutil.copytree(kept, written / name)
            elif kept.exists():
                shutil.copy2(kept, written / name)

    write_whole(target, sum(array.nbytes for array in arrays.values()), write)
    count = sum(array.size for array in arrays.values())
    return Merged(source, target, saved.step, tuple(sorted(saved.adapted)), count)


def plain_config(config: Config, source: Path) -> Config:
    """Returns the configuration of merged weights: without factors, freezing and averages."""
    train = replace(config.train, lora=None, frozen=(), ema_decay=None)
    return replace(config, train=train, init_from=str(source), init_layers=None)
