"""What a launcher tells, and how variables of the environment are read."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from jaxformer.errors import ConfigError

Variables = Mapping[str, str]

BY_HAND = "--job.coordinator HOST:PORT, --job.num-processes and --job.process-id"
ALONE = "--job.num-processes 1"


class Processes(NamedTuple):
    """What `jax.distributed.initialize` needs to know; None: the launcher does not say it."""

    coordinator: str | None
    """HOST:PORT of process 0."""
    count: int | None
    """How many processes there are."""
    index: int | None
    """This one's index, from 0."""
    devices: tuple[int, ...] | None = None
    """Which of the GPUs that it sees are this process's; None: all of them."""
    cluster_knows: bool = False
    """Whether JAX can ask the cluster for what is None."""


class Launcher(Protocol):
    """Something that starts several processes."""

    def detect(self, variables: Variables) -> Processes | None:
        """Reads what this launcher tells a process.

        Args:
            variables: The environment.

        Returns:
            None where it did not start this process, or started it alone.

        Raises:
            ConfigError: It started several processes, and a variable is missing or cannot be.
        """


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
    """Reads an integer of at least 0 that a launcher of several processes always sets."""
    value = number(variables, name)
    if value is None:
        raise ConfigError(
            f"{launcher} started several processes, but {name} is not set: give {BY_HAND}, or let "
            f"this process train alone with {ALONE}"
        )
    return value


def host_of(address: str) -> str:
    """Returns the host of an address without its port: "[fe80::1]" of "[fe80::1]:8080"."""
    if found := re.match(r"\[[^\]]*\]", address):
        return found[0]
    return f"[{address}]" if address.count(":") > 1 else address.partition(":")[0]


def job_port(job: int, variables: Variables) -> str:
    """Returns a port that jobs beside this one hardly have: JAX's own rule for job numbers."""
    last = 65535
    return variables.get("JAX_COORDINATOR_PORT") or str(last - 4095 + job % 4096)
