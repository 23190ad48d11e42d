"""Joining and leaving a job of several processes, and virtual devices on a CPU."""

import atexit
import contextlib
import ctypes
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import jax
from jaxlib import _jax as runtime

from jaxformer.distributed.cluster import DistributedConfig, find_processes
from jaxformer.distributed.lifelines import Lifelines
from jaxformer.distributed.sharding import MESH_AXES, MeshConfig
from jaxformer.errors import ConfigError, RunError

__all__ = ["DistributedConfig", "join", "leave", "make_cpu_devices"]

LOST = (
    "another process of this job has ended or cannot be reached, or a clock has jumped by "
    "minutes; see the output of that process"
)
_leaving = threading.Event()
_reporting = threading.Event()
"""Set in a process that ends early and reports the reason."""
_parted = threading.Event()
"""Set after the last synchronization of all processes."""
_exit_lock = threading.Lock()
"""Several processes may be lost at once; only one of the threads that detect it reports it."""


def join(job: DistributedConfig) -> int:
    """Connects to the other processes of a job; returns their number, or 1 if it is unknown."""
    found = find_processes(job, os.environ)
    if found is None:
        return 1
    asks = None in (found.coordinator, found.count, found.index)
    if found.coordinator is not None:
        _wait_for_host(found.coordinator, job.initialization_timeout)
    try:
        with _exit_on_disconnect():
            jax.distributed.initialize(
                found.coordinator,
                found.count,
                found.index,
                found.devices,
                # Otherwise JAX uses one GPU per process of a launcher, no matter how many there
                # are.
                cluster_detection_method=None if asks else "deactivate",
                initialization_timeout=job.initialization_timeout,
                heartbeat_timeout_seconds=job.heartbeat_timeout,
            )
    except Exception as error:  # libraries for cluster detection raise various errors
        _leaving.set()
        if asks:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"JAX cannot detect the other processes ({reason}): set --job.coordinator "
                "HOST:PORT, --job.num-processes and --job.process-id"
            ) from error
        if not isinstance(error, RuntimeError | ValueError | TypeError | LookupError | OSError):
            raise
        raise RunError(
            f"process {found.index} of {found.count} could not connect to the others at "
            f"{found.coordinator} within job.initialization_timeout = "
            f"{job.initialization_timeout} s: check that process 0 is running, that its port is "
            "free and reachable, and that all processes were started"
        ) from error
    _watch_others()
    return found.count or 1


def leave(status: int, failed: bool) -> int:
    """Leaves the job of several processes, if there is one; returns the exit status.

    A process that has failed exits here, so that the others, which may be waiting for it in the
    middle of a step, are notified at once. It also exits, with status 1, if the others ended early.
    """
    if not jax.distributed.is_initialized():
        return status
    _leaving.set()
    if failed:
        _reporting.set()
    else:
        try:
            jax.distributed.shutdown()
            _parted.set()
            return status
        except RuntimeError:
            _reporting.set()
            status = _report_lost()
    time.sleep(1)  # if all fail for the same reason, each reports it before the first one is gone
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def make_cpu_devices(mesh: MeshConfig, num_processes: int = 1) -> None:
    """Creates virtual devices on the CPU cores if a mesh needs several devices.

    A number of devices set by the user is kept, and a mesh larger than the number of cores fails
    later with a message that explains how to get more devices. Accelerators are not affected.
    """
    chosen = "JAX_NUM_CPU_DEVICES" in os.environ
    forced = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    sizes = (getattr(mesh, name) for name in MESH_AXES)
    devices = math.prod(size for size in sizes if size != -1) // num_processes
    if not (chosen or forced) and 1 < devices <= len(os.sched_getaffinity(0)):
        jax.config.update("jax_num_cpu_devices", devices)


@contextlib.contextmanager
def _exit_on_disconnect() -> Iterator[None]:
    """Lets connections made within it end this process with a message when another one is lost.

    By default JAX's client ends the process with a C++ stack trace. It supports a callback, for
    which `jax.distributed.initialize` has no argument. If jaxlib cannot convert the callback's
    argument to Python (0.10), the resulting exception reaches the C++ terminate handler.
    """
    if "JAX_LOGGING_LEVEL" not in os.environ:
        jax.config.update("jax_logging_level", "CRITICAL")
    create = runtime.get_distributed_runtime_client
    runtime.get_distributed_runtime_client = partial(
        create, missed_heartbeat_callback=_exit_as_lost
    )
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc++.1.dylib" if sys.platform == "darwin" else "libstdc++.so.6")
        library._ZSt13set_terminatePFvvE(_TERMINATE)  # std::set_terminate
    try:
        yield
    finally:
        runtime.get_distributed_runtime_client = create


def _watch_others() -> None:
    """Opens the connections through which this process detects that another one has died."""
    from jax._src.distributed import global_state as job

    if job.num_processes == 1:
        return
    host = job.coordinator_address.rpartition(":")[0].strip("[]")
    lifelines = Lifelines(job.client, job.process_id, host, _exit_on_loss)
    atexit.register(lifelines.release)


def _exit_as_lost(*_: object) -> None:
    """Ends this process, unless it is about to report a failed step itself."""
    if _leaving.wait(timeout=3):
        time.sleep(60)
    _end_as_lost()


def _exit_on_loss() -> None:
    """Ends this process after another one died, even while it waits for the others in `leave`."""
    if _reporting.wait(timeout=3):
        time.sleep(60)
    if not _parted.is_set():
        _end_as_lost()


def _end_as_lost() -> None:
    with _exit_lock:
        os._exit(_report_lost())


_TERMINATE = ctypes.CFUNCTYPE(None)(_exit_as_lost)  # kept alive, since C++ may call it


def _wait_for_host(address: str, timeout: float) -> None:
    """Waits until the host name of process 0 resolves; that of a pod resolves once it runs."""
    host = address.rpartition(":")[0].strip("[]")
    end = time.monotonic() + timeout
    while True:
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() > end:
                raise ConfigError(
                    f"job.coordinator = {address!r}: must name a host that can be resolved; "
                    f"{host} was not found within job.initialization_timeout = {timeout} s "
                    f"({error.strerror or error}): check that process 0 is running and that the "
                    "name is correct"
                ) from error
        time.sleep(min(1.0, timeout / 10))


def _report_lost() -> int:
    resume = "if the run has checkpoints, rerun the same command to continue from the newest"
    print(f"error: {LOST} ({resume})", file=sys.stderr, flush=True)
    return 1
