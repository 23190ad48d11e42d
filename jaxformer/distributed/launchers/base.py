"""The return type of launchers, and the parsing of environment variables."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxformer.errors import ConfigError

Variables = Mapping[str, str]

BY_HAND = "--job.coordinator HOST:PORT, --job.num-processes and --job.process-id"
ALONE = "--job.num-processes 1"


class Processes(NamedTuple):
    """The arguments of `jax.distributed.initialize`; None for those that no launcher sets."""

    coordinator: str | None
    """HOST:PORT of process 0."""
    count: int | None
    index: int | None
    """The index of this process, from 0."""
    devices: tuple[int, ...] | None = None
    """The visible GPUs that this process uses; None for all."""
    cluster_knows: bool = False
    """Whether JAX can detect the values that are None."""


Launcher = Callable[[Variables], Processes | None]
"""Returns the processes that a launcher started, according to its environment variables, or None if
it did not start several; raises ConfigError if it did, but a variable is missing or invalid."""


def number(variables: Variables, name: str, least: int = 0) -> int | None:
    """Reads an integer."""
    text = variables.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ConfigError(f"{name} = {text[:80]!r}: must be an integer")
    if int(text) < least:
        raise ConfigError(f"{name} = {text}: must be at least {least}")
    return int(text)


def needed(variables: Variables, name: str, launcher: str) -> int:
    """Reads a non-negative integer that a launcher of several processes always sets."""
    value = number(variables, name)
    if value is None:
        raise ConfigError(
            f"{launcher} started several processes, but {name} is not set: set {BY_HAND}, or "
            f"train with this process alone with {ALONE}"
        )
    return value


def host_of(address: str) -> str:
    """Returns the host of an address without its port: "[fe80::1]" of "[fe80::1]:8080"."""
    if found := re.match(r"\[[^\]]*\]", address):
        return found[0]
    return f"[{address}]" if address.count(":") > 1 else address.partition(":")[0]


def job_port(job: int, variables: Variables) -> str:
    """Returns a port that is unlikely to collide with other jobs, by JAX's rule for job numbers."""
    last = 65535
    return variables.get("JAX_COORDINATOR_PORT") or str(last - 4095 + job % 4096)
