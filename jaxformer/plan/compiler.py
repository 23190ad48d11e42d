"""Compiles a training step with the TPU compiler on a machine without a TPU."""

import contextlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from jaxformer.config import Config, validate
from jaxformer.distributed.sharding import make_mesh
from jaxformer.distributed.slices import Slice
from jaxformer.errors import RunError
from jaxformer.plan.assignment import CompiledBuffer, largest_buffers, read_assignment
from jaxformer.plan.collectives import Collective, collectives
from jaxformer.plan.hlo import Module
from jaxformer.plan.trace import train_program

INSTALL = (
    "the TPU compiler is not installed: run pip install --no-deps --target libtpu "
    "'libtpu>=0.0.42,<0.1', then set PYTHONPATH=libtpu (Linux on x86)"
)
# Otherwise libtpu queries the cloud's metadata server.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The two cores of a v4 chip are one device.
_OPTIONS = {"v4": {"chip_config_name": "megacore"}}


@dataclass(frozen=True)
class CompiledStep:
    """A compiled training step. Bytes are those of one device."""

    usable_bytes: int
    """The memory available to a program."""
    peak_bytes: int
    """Peak memory, as in `memory_analysis()` of the finished program."""
    argument_bytes: int
    """Bytes of the state and the batch."""
    temporary_bytes: int
    """Bytes of all temporary arrays, including the gaps between them."""
    seconds: float
    """The compilation time."""
    collectives: list[Collective]
    buffers: list[CompiledBuffer]
    """The largest arrays at peak memory."""

    @property
    def assigned_bytes(self) -> int:
        """The memory of all arrays, with the gaps between them."""
        return self.argument_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool:
        """Whether all arrays fit in the device's memory."""
        return self.assigned_bytes <= self.usable_bytes


def is_installed() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def versions() -> dict[str, str]:
    """The versions of jax, jaxlib and libtpu."""
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}


def topology_devices(slice_: Slice) -> list[jax.Device]:
    """Returns compile-only devices of a slice."""
    if not is_installed():
        raise RunError(INSTALL)
    from jax.experimental import topologies

    chip = slice_.chip.name
    # Without wraparound links, XLA implements gathers by reducing zeros.
    wraps = (*slice_.wraps, *[False] * (3 - len(slice_.wraps)))
    options = dict(_OPTIONS.get(chip, {}), wrap=wraps)
    if slice_.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if slice_.num_slices > 1:
        options["num_slices"] = slice_.num_slices
    name = f"{chip}:{slice_.shape}"
    with _environment():
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    return list(found.devices)


def compile_step(config: Config, slice_: Slice) -> CompiledStep:
    """Compiles the training step of an experiment for TPUs, until all memory is assigned.

    The compiler runs in a separate process, which is then stopped: generating the code takes
    minutes longer.
    """
    if not is_installed():
        raise RunError(INSTALL)
    validate(config, slice_.num_devices)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _compile_separately(folder, config, slice_)
        if not has_assigned_memory(folder):
            # User-defined components may not be picklable; then compile, and raise errors, in this
            # process.
            compile_into(folder, config, slice_)
        step = read_dump(folder, config, slice_)
    return replace(step, seconds=time.perf_counter() - start)


def _compile_separately(folder: Path, config: Config, slice_: Slice) -> None:
    """Compiles in a separate process until memory is assigned; requires a picklable experiment."""
    try:
        experiment = pickle.dumps((config, slice_))
    except (pickle.PicklingError, AttributeError, TypeError):
        return
    process = multiprocessing.get_context("spawn").Process(
        target=_compile_on_cpu, args=(folder, experiment)
    )
    process.start()
    while process.is_alive() and not has_assigned_memory(folder):
        process.join(timeout=0.2)
    process.join(timeout=2.0)  # until the files are complete
    process.kill()
    process.join()


def _compile_on_cpu(folder: Path, experiment: bytes) -> None:
    """Compiles a pickled experiment and slice."""
    try:
        config, slice_ = pickle.loads(experiment)
    except (ImportError, AttributeError):
        return  # a component's module cannot be imported here
    jax.config.update("jax_platforms", "cpu")
    compile_into(folder, config, slice_)


def compile_into(folder: Path, config: Config, slice_: Slice) -> Any:
    """Compiles a step with XLA's dump."""
    validate(config, slice_.num_devices)
    with _environment():
        mesh = make_mesh(config.mesh, topology_devices(slice_))
        program = train_program(config, mesh)
        lowered = program.lower(config.data.batch_size, config.batch_lengths)
        # jaxlib cannot parse the programs of newer compilers, and a program that does not fit
        # exists only in the dump.
        options = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
        try:
            return lowered.compile(compiler_options=options).memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return None


def has_assigned_memory(folder: Path) -> bool:
    """Whether XLA has written all files that `read_dump` reads."""
    return any(folder.glob("*jit__updated*.after_optimizations_after_buffer_assignment.txt"))


def read_dump(folder: Path, config: Config, slice_: Slice) -> CompiledStep:
    """Reads the dump of a step."""
    module = Module(_dumped(folder, ".txt"))
    assignment = read_assignment(
        _dumped(folder, "-buffer-assignment.txt"), _dumped(folder, "-live-range.txt")
    )
    if not assignment.kept:
        raise RunError(
            f"the memory of a program cannot be read from the dump of libtpu "
            f"{versions()['libtpu']}: install another version (0.0.42 and 0.0.52 are known), or "
            "plan with --no-compile"
        )
    return CompiledStep(
        usable_bytes=int(slice_.chip.memory.value),
        peak_bytes=assignment.peak,
        argument_bytes=assignment.kept,
        temporary_bytes=assignment.temporary,
        seconds=0.0,
        collectives=collectives(module, config.mesh.axis_sizes(slice_.num_devices)),
        buffers=largest_buffers(module, assignment),
    )


def _dumped(folder: Path, ending: str) -> str:
    """Returns XLA's dump of the largest compiled program, which is the step."""
    files = folder.glob(f"*.after_optimizations{ending}")
    return max(files, key=lambda path: path.stat().st_size).read_text()


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Sets environment variables that libtpu reads at startup, unless they are set already."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
