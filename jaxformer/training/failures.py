"""Turns device errors into messages: out of memory, or a lost process."""

import contextlib
from collections.abc import Iterator

import jax

from jaxformer.checkpoints.checkpointer import CheckpointError
from jaxformer.checkpoints.files import saved_steps
from jaxformer.config.experiment import Config
from jaxformer.distributed.join import LOST
from jaxformer.errors import ArgumentError, DataError, RunError, StorageError, first_line
from jaxformer.io.paths import AnyPath

OF_DEVICES = (jax.errors.JaxRuntimeError, ValueError)
"""The types of XLA's errors; JAX raises some of them as ValueError."""
# Phrases in the messages of JAX's collectives and coordination service.
_PEERS = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "oordination service", "heartbeat")


class OutOfMemory(RunError):
    """A step needs more memory than is available; the message lists remedies."""


class ProcessLost(RunError):
    """Another process of the job has ended; the message names the step to resume from."""


def out_of_memory(error: BaseException) -> bool:
    """Whether a Python or XLA exception reports that memory ran out."""
    exhausted = "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, OF_DEVICES) and exhausted)


@contextlib.contextmanager
def explained(config: Config, checkpoints: AnyPath) -> Iterator[None]:
    """Turns errors of the devices into OutOfMemory or ProcessLost; other errors pass unchanged."""
    try:
        yield
    except (ArgumentError, DataError):
        raise
    except (MemoryError, *OF_DEVICES, CheckpointError) as error:
        try:
            steps = saved_steps(checkpoints)
        except StorageError:  # it is unknown which checkpoints are kept
            raise error from error.__cause__
        if out_of_memory(error):
            raise OutOfMemory(_too_large(config, error, steps)) from error
        if (reason := _lost(error)) is not None:
            raise ProcessLost(f"{LOST} ({reason}). {_kept(steps)}") from error
        raise


def _lost(error: BaseException | None) -> str | None:
    """Returns the first line of the error or its cause that reports a lost process."""
    while error is not None and jax.process_count() > 1:
        if any(word in str(error) for word in _PEERS):
            return first_line(error)
        error = error.__cause__ or error.__context__
    return None


def _too_large(config: Config, error: BaseException, steps: list[int]) -> str:
    """Lists remedies; once a checkpoint exists, only fields that a continued run may change."""
    train = config.train
    model = config.model
    mesh = config.mesh
    changes = [
        f"data.batch_size = {config.data.batch_size}: lower it",
        f"train.gradient_accumulation = {train.gradient_accumulation}: raise it",
    ]
    if steps:
        coming = "data.ramp: smaller batches for the stages that have not begun"
        changes = [coming] if config.data.ramp else []
    for name, part in (model.parts or {"": model}).items():
        if part.remat != "full":
            field = ".".join(filter(None, ("model", name, "remat")))
            changes.append(f"{field} = {part.remat!r}: set it to 'full'")
    changes.append(f"mesh.fsdp = {mesh.fsdp}: shard the parameters over more devices")
    if train.loss_chunk is None:
        changes.append("train.loss_chunk = None: set it, for example to 128")
    listed = "; ".join(changes)
    return f"out of memory ({first_line(error)}). Change one of: {listed}. {_kept(steps)}"


def _kept(steps: list[int]) -> str:
    if not steps:
        return "No checkpoint was saved yet: the run starts from the beginning."
    kept = f"The checkpoint of step {steps[-1]} is kept"
    return f"{kept}: rerun the same command to continue from there."
