"""A run as every kind of cluster sees it: a name, the command of each process, the machines."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxformer.checks import check_argument
from jaxformer.distributed.chips import GPU_MEMORY_FRACTION
from jaxformer.distributed.slices import Slice
from jaxformer.errors import ArgumentError
from jaxformer.io.paths import is_remote, url_of

STOPPED = 75
"""The exit status of a run that was stopped and can go on: EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True)
class Job:
    """A training run to start."""

    config: str
    """The config as `jaxformer train` takes it."""
    run_dir: str
    """Where the run is kept: a folder that all processes reach, or a bucket."""
    name: str
    """A DNS label, which names the job on the cluster."""
    options: tuple[str, ...] = ()
    """Options of `jaxformer train`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of every process, and their values."""
    program: tuple[str, ...] = ("python", "-m", "jaxformer")
    """The words that start jaxformer."""

    def __post_init__(self):
        check_argument("name", self.name, is_label(self.name), _LABEL)
        check_argument("run-dir", self.run_dir, bool(self.run_dir.strip()), "a folder or a bucket")
        url_of(self.run_dir, "run-dir")
        check_argument("program", " ".join(self.program), bool(self.program), "a command")

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that each process runs."""
        own = ("--run-dir", self.run_dir, "--job.stopped-status", str(STOPPED))
        return (*self.program, "train", self.config, *own, *self.options)

    @property
    def is_remote(self) -> bool:
        """Whether the run is kept in a bucket."""
        return is_remote(self.run_dir)

    @property
    def compiled(self) -> str:
        """The folder of compiled programs, next to the run; "" if they are not kept."""
        place = self.run_dir.rstrip("/")
        is_bucket = self.is_remote and place.count("/") < 3
        return "" if is_bucket else f"{place[: place.rfind('/') + 1]}compiled"

    def variables(self, platform: Literal["cpu", "gpu", "tpu"]) -> dict[str, str]:
        """The variables of every process: what a run on a cluster should have, and the user's own.

        Args:
            platform: That of the devices. What is compiled for one CPU may not run on another, so
                it is not kept.

        Returns:
            Values by name; where the user gives a value, it is the one.
        """
        given = dict(self.environment)
        compiled = given.get("JAX_COMPILATION_CACHE_DIR", self.compiled)
        own = {"JAX_COMPILATION_CACHE_DIR": compiled} if compiled and platform != "cpu" else {}
        if platform == "gpu":
            own["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(GPU_MEMORY_FRACTION)
        if platform == "gpu" and is_remote(compiled):  # where XLA's own cache for GPUs cannot be
            own["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
        return own | given


_LABEL = (
    "a DNS label: at most 63 lower-case letters, digits and hyphens, with a letter first and no "
    "hyphen last"
)


def is_label(text: str) -> bool:
    """Whether a text is a DNS label that may name a service, as in RFC 1035."""
    return re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def default_name(config: str) -> str:
    """Returns a DNS label for a config: "llama-llama3-8b" for configs/llama.py:llama3-8b."""
    path, _, argument = config.partition(":")
    stem = path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    words = re.sub(r"[^a-z0-9]+", "-", f"{stem}-{argument}".lower()).strip("-")
    return (words if words[:1].isalpha() else f"run-{words}")[:40].strip("-")


def variables(assignments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Reads variables of the environment."""
    found = []
    for text in assignments:
        name, equals, value = text.partition("=")
        valid = equals and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and "\n" not in value
        check_argument("env", text, bool(valid), "NAME=VALUE, as in XLA_FLAGS=--xla_dump_to=dump")
        found.append((name, value))
    return tuple(found)


def check_plain(**values: str | None) -> None:
    """Checks values that a script or a manifest takes as one plain word."""
    for name, value in values.items():
        valid = value is None or re.fullmatch(r"[\w.,+:@%/=\[\]*-]+", value, re.ASCII) is not None
        check_argument(name.replace("_", "-"), value, valid, "one word without blanks or quotes")


def check_nodes(nodes: int | None, slices: Slice) -> None:
    """Checks a number of machines against the chips."""
    if nodes is not None and nodes != slices.hosts:
        raise ArgumentError(
            f"nodes = {nodes}: must be {slices.hosts}, the machines of {slices.name} with "
            f"{slices.chip.chips_per_host} chips each; leave --nodes out"
        )


def shell_lines(words: Sequence[str], indent: str = "    ") -> str:
    """A command for bash: quoted, an option with its values on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return f" \\\n{indent}".join(" ".join(line) for line in lines if line)
