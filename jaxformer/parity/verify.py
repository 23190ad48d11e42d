"""Receipts: the outputs of transformers and jaxformer for the same checkpoint and inputs."""

import contextlib
import datetime
import importlib.metadata
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jaxformer
from jaxformer.checkpoints.checkpointer import content_hash
from jaxformer.checkpoints.files import write_json
from jaxformer.errors import ConfigError
from jaxformer.hub.remote.names import source_of
from jaxformer.hub.weights.opening import layout_of
from jaxformer.io.paths import any_path
from jaxformer.io.staging import name_of
from jaxformer.parity.compare import (
    Arrays,
    beyond_rounding,
    differences,
    errors,
    likeliest_agree,
    limit_of_rounding,
    real_parts,
    relative_difference,
    scores_name,
)
from jaxformer.parity.examples import PADDINGS, example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load, model_folder
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.reader import open_folder
from jaxformer.pretrained.writing import save

RECEIPT = "receipt.json"

_LAYERS = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
_STATES = ("last_hidden_state", "projected_states")
"""The outputs that are compared for models without scores."""


def verify(folder: str | Path, architecture: str | None = None) -> dict[str, Any]:
    """Runs transformers and jaxformer in float32 on the same inputs; writes receipt.json.

    No receipt is written into the hub cache.
    """
    folder = model_folder(folder, "folder", architecture=architecture)
    ours = load(folder, architecture=architecture)
    if ours.folder != folder:
        raise ConfigError(
            f"verify {folder}: this is a run, not an export; export it first: python -m jaxformer "
            f"export {folder} OUT_DIR"
        )
    with _readable(folder) as readable:
        theirs = Reference(readable, ours.checkpoint.architecture.name)
    examples = {padding: example_inputs(ours.checkpoint, padding) for padding in PADDINGS}
    expected = {padding: theirs.outputs(inputs) for padding, inputs in examples.items()}
    theirs.to_float64()
    cases = {
        padding: _compared(ours, inputs, expected[padding], theirs.outputs(inputs))
        for padding, inputs in examples.items()
    }
    worst = max(max(case["relative"].values()) for case in cases.values())
    file = open_folder(folder, architecture=architecture).file
    tensors = {name: file.tensor(name) for name in file.names}
    receipt = {
        "architecture": ours.checkpoint.architecture.name,
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "dtype": str(next(iter(tensors.values())).dtype),
        "content_hash": content_hash((f"params/{name}", x) for name, x in tensors.items()),
        "worst_relative_difference": worst,
        "agrees": not any(case["beyond_rounding"] for case in cases.values()),
        "cases": cases,
    }
    if source_of(folder) is None:
        write_json(any_path(name_of(folder), "folder") / RECEIPT, receipt)
    return receipt


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[Path]:
    """Returns a folder that transformers can read: a converted copy of a Flax checkpoint."""
    layout = layout_of(folder)
    if layout is not None and layout.kind == "hf":
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        save(load(folder, dtype=None), Path(scratch, "safetensors"))
        yield Path(scratch, "safetensors")


def _compared(ours: Pretrained, inputs: Arrays, expected: Arrays, exact: Arrays) -> dict[str, Any]:
    """Returns the part of the receipt for these inputs."""
    actual = forward(ours, inputs, output_hidden_states=True)
    name = scores_name(expected) or next(name for name in _STATES if name in expected)
    scores = real_parts(name, actual[name], expected[name], inputs)
    found = errors(actual, expected, exact, inputs)
    return {
        "relative": differences(actual, expected, inputs),
        "from_float64": {
            name: {"jaxformer": pair.ours, "transformers": pair.theirs}
            for name, pair in found.items()
        },
        "limit_of_rounding": limit_of_rounding(found),
        "beyond_rounding": sorted(beyond_rounding(found)),
        "compared": name,
        "largest_absolute_difference": float(np.max(np.abs(scores[0] - scores[1]))),
        "likeliest_agree": likeliest_agree(*scores),
        "layers": {
            kind: [
                relative_difference(*real_parts(kind, *layer, inputs))
                for layer in zip(actual[kind], expected[kind], strict=True)
            ]
            for kind in _LAYERS
            if kind in expected
        },
    }


def versions() -> dict[str, str]:
    """Returns the versions of all libraries that a comparison depends on."""
    names = ("jax", "flax", "torch", "transformers", "safetensors", "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"jaxformer": jaxformer.__version__, "python": platform.python_version(), **found}
