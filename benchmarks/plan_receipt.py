"""Receipts: the compiler's figures for a recipe on a slice, stored for later comparisons."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jaxformer.config import Config, load_config
from jaxformer.distributed.sharding import MESH_AXES, MeshConfig
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import DataError
from jaxformer.io.files import replacing
from jaxformer.plan import memory
from jaxformer.plan.closed_form import work_of
from jaxformer.plan.collectives import Collective
from jaxformer.plan.compiler import compile_step, versions
from jaxformer.plan.trace import trace_step

GROWTH = 1.05
"""How much more memory than in its receipt a recipe may need."""


@dataclass(frozen=True)
class Receipt:
    """The figures of the compiler and the closed form for one recipe; bytes are of one device."""

    recipe: str
    """The file in configs/ and its size: "llama.py:llama3-8b"."""
    chips: str
    """The slice: "v5p:4x4x4"."""
    mesh: dict[str, int]
    """Devices along each axis."""
    rows: int
    """Rows of a batch."""
    lengths: dict[str, int]
    """Tokens of a row."""
    remat: str
    """What is computed again in the backward pass."""
    fits: bool
    """Whether it fits."""
    peak_bytes: int
    """The compiler's peak."""
    argument_bytes: int
    """The compiler's state and batch."""
    temporary_bytes: int
    """The room that the compiler assigns to temporaries, with the gaps between them."""
    seconds: float
    """How long it took to compile."""
    collectives: list[dict[str, Any]]
    """By the compiled program, in one step: kind, axes, bytes, count."""
    buffers: list[dict[str, Any]]
    """The compiler's largest arrays at its peak, and the lines that ask for them."""
    versions: dict[str, str]
    """Of what compiled."""
    date: str
    """When it was compiled."""
    predicted_bytes: int = 0
    """The peak in closed form."""
    predicted_parts: dict[str, int] | None = None
    """The same, by what it is for."""
    predicted_collectives: list[dict[str, Any]] | None = None
    """What the program asks to be sent."""
    flops: float = 0.0
    """Model FLOPs of a step on all devices together, counted analytically."""

    @property
    def ratio(self) -> float:
        """The predicted peak over the compiler's."""
        return self.predicted_bytes / self.peak_bytes


def experiment(spec: str, mesh: Mapping[str, int] | None) -> Config:
    """The experiment of a receipt.

    Args:
        spec: Its file and size.
        mesh: The devices along each axis; None: the experiment's mesh.

    Returns:
        The experiment.
    """
    config = load_config(spec)
    return config if mesh is None else replace(config, mesh=MeshConfig(**mesh))


def compiled(recipe: str, spec: str, chips: str, mesh: Mapping[str, int] | None) -> Receipt:
    """The receipt of a recipe, without predictions.

    Args:
        recipe: The name of the receipt.
        spec: The experiment's file and size.
        chips: The slice, see `parse_chips`.
        mesh: The devices along each axis; None: the experiment's mesh.

    Returns:
        The receipt.

    Raises:
        ConfigError: The experiment cannot run on so many devices.
    """
    config, slice_ = experiment(spec, mesh), parse_chips(chips)
    step = compile_step(config, slice_)
    return Receipt(
        recipe=recipe,
        chips=chips,
        mesh=dict(zip(MESH_AXES, config.mesh.sizes(slice_.num_devices), strict=True)),
        rows=config.data.batch_size,
        lengths=dict(config.row_lengths),
        remat=str(getattr(config.model, "remat", "none")),
        fits=step.fits,
        peak_bytes=step.peak_bytes,
        argument_bytes=step.argument_bytes,
        temporary_bytes=step.temporary_bytes,
        seconds=round(step.seconds, 1),
        collectives=_listed(step.collectives),
        buffers=[buffer._asdict() for buffer in step.buffers[:6]],
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def predicted(receipt: Receipt, spec: str) -> Receipt:
    """A receipt with the predictions of the current closed form.

    Args:
        receipt: The receipt of this recipe.
        spec: The experiment's file and size.

    Returns:
        The receipt with new predictions.
    """
    config = experiment(spec, receipt.mesh)
    step = trace_step(config, parse_chips(receipt.chips))
    found = memory.estimate(step)
    flops = config.model.flops(config.row_lengths).training(causal=False)
    return replace(
        receipt,
        predicted_bytes=found.peak,
        predicted_parts=dict(found.parts),
        predicted_collectives=_listed(work_of(step.config, step.slice).collectives),
        flops=flops * step.tokens,
    )


def read(path: Path) -> dict[str, Receipt]:
    """The receipts of a file, by recipe.

    Args:
        path: A file of `write`.

    Returns:
        The receipts.

    Raises:
        DataError: The file does not contain receipts.
    """
    try:
        return {
            each["recipe"]: Receipt(**each) for each in json.loads(path.read_text())["receipts"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: must be a file of receipts, as benchmarks/plan_receipts.py writes it; {error}"
        ) from error


def write(path: Path, receipts: Mapping[str, Receipt]) -> None:
    """Writes receipts as JSON."""
    rows = [asdict(receipts[name]) for name in sorted(receipts)]
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"receipts": rows}, indent=1) + "\n")


def line(receipt: Receipt) -> str:
    """One receipt in one line: the recipe, the slice, both peaks and their ratio."""
    gib = 2**30
    return (
        f"{receipt.recipe:26} {receipt.chips:14} compiler {receipt.peak_bytes / gib:6.2f} GiB, "
        f"predicted {receipt.predicted_bytes / gib:6.2f} GiB ({receipt.ratio:.2f})"
        + ("" if receipt.fits else ", does not fit")
    )


def _listed(found: list[Collective]) -> list[dict[str, Any]]:
    return [each._asdict() | {"axes": list(each.axes)} for each in found]
