"""A run on any kind of cluster: its name, the command of each process, and the machines."""

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
"""The exit status of a stopped run that can be continued: EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True)
class Job:
    """A training run to start."""

    config: str
    """The config argument of `jaxformer train`."""
    run_dir: str
    """The run's folder: a shared folder or a bucket."""
    name: str
    """The name of the job on the cluster, a DNS label."""
    options: tuple[str, ...] = ()
    """Options of `jaxformer train`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables of every process."""
    program: tuple[str, ...] = ("python", "-m", "jaxformer")
    """The command that starts jaxformer."""

    def __post_init__(self):
        check_argument("name", self.name, is_label(self.name), _LABEL)
        check_argument("run-dir", self.run_dir, bool(self.run_dir.strip()), "a folder or a bucket")
        url_of(self.run_dir, "run-dir")
        check_argument("program", " ".join(self.program), bool(self.program), "a command")

    @property
    def command(self) -> tuple[str, ...]:
        """The command that each process runs, as a list of arguments."""
        own = ("--run-dir", self.run_dir, "--job.stopped-status", str(STOPPED))
        return (*self.program, "train", self.config, *own, *self.options)

    @property
    def is_remote(self) -> bool:
        """Whether the run is stored in a bucket."""
        return is_remote(self.run_dir)

    @property
    def compiled(self) -> str:
        """The compilation cache next to the run; "" if there is none."""
        place = self.run_dir.rstrip("/")
        is_bucket = self.is_remote and place.count("/") < 3
        return "" if is_bucket else f"{place[: place.rfind('/') + 1]}compiled"

    def variables(self, platform: Literal["cpu", "gpu", "tpu"]) -> dict[str, str]:
        """Returns the environment variables of every process: defaults for clusters, and the
        user's.

        Args:
            platform: The platform of the devices. Programs compiled for one CPU may not run on
                another, so they are not cached.

        Returns:
            Values by name; the user's values take precedence.
        """
        given = dict(self.environment)
        compiled = given.get("JAX_COMPILATION_CACHE_DIR", self.compiled)
        own = {"JAX_COMPILATION_CACHE_DIR": compiled} if compiled and platform != "cpu" else {}
        if platform == "gpu":
            own["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(GPU_MEMORY_FRACTION)
        if platform == "gpu" and is_remote(compiled):  # where XLA's GPU cache is not supported
            own["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
        return own | given


_LABEL = (
    "a DNS label: at most 63 lower-case letters, digits and hyphens, with a letter first and no "
    "hyphen last"
)


def is_label(text: str) -> bool:
    """Whether a text is a DNS label that is valid for a service, as in RFC 1035."""
    return re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def default_name(config: str) -> str:
    """Returns a DNS label for a config: "llama-llama3-8b" for configs/llama.py:llama3-8b."""
    path, _, argument = config.partition(":")
    stem = path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    words = re.sub(r"[^a-z0-9]+", "-", f"{stem}-{argument}".lower()).strip("-")
    return (words if words[:1].isalpha() else f"run-{words}")[:40].strip("-")


def variables(assignments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parses environment variables."""
    found = []
    for text in assignments:
        name, equals, value = text.partition("=")
        valid = equals and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and "\n" not in value
        check_argument("env", text, bool(valid), "NAME=VALUE, as in XLA_FLAGS=--xla_dump_to=dump")
        found.append((name, value))
    return tuple(found)


def check_plain(**values: str | None) -> None:
    """Checks values that must be a single plain word in a script or manifest."""
    for name, value in values.items():
        valid = value is None or re.fullmatch(r"[\w.,+:@%/=\[\]*-]+", value, re.ASCII) is not None
        check_argument(name.replace("_", "-"), value, valid, "one word without blanks or quotes")


def check_nodes(nodes: int | None, slices: Slice) -> None:
    """Checks that a number of machines matches the chips."""
    if nodes is not None and nodes != slices.hosts:
        raise ArgumentError(
            f"nodes = {nodes}: must be {slices.hosts}, the machines of {slices.name} with "
            f"{slices.chip.chips_per_host} chips each; leave --nodes out"
        )


def shell_lines(words: Sequence[str], indent: str = "    ") -> str:
    """Formats a command for bash: quoted, with one option per line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return f" \\\n{indent}".join(" ".join(line) for line in lines if line)
