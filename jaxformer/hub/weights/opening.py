"""Opens the weights of a folder and their layout, in the first format that exists."""

from pathlib import Path

import numpy as np

from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.weights.file_layout import FileLayout, Layout
from jaxformer.hub.weights.flax_layout import FlaxLayout
from jaxformer.hub.weights.flax_names import FlaxTensors
from jaxformer.hub.weights.flax_tree import optional_tensors
from jaxformer.hub.weights.found import weight_names_in
from jaxformer.hub.weights.msgpack_files import MsgpackFiles, has_msgpack
from jaxformer.hub.weights.tensors import Mxfp4Tensors, TensorFiles, Tensors
from jaxformer.hub.weights.views.fused_experts import SplitExperts, names_of_experts
from jaxformer.hub.weights.views.wrappers import unwrapped
from jaxformer.io.files import read_json
from jaxformer.io.model_files import file_in
from jaxformer.io.notices import warn_once


def open_tensors(folder: Path, checkpoint: HFCheckpoint) -> Tensors:
    """Opens the tensors of a folder under PyTorch's names; safetensors take precedence over
    msgpack.

    Warns if the Flax class computed different outputs than PyTorch's.
    """
    source: TensorFiles | MsgpackFiles
    if not _has_safetensors(folder) and has_msgpack(folder):
        source = MsgpackFiles(folder)
    else:
        names = weight_names_in(folder)
        if names.variant is not None:
            warn_once(
                f"{folder}: the weights of the variant {names.variant!r} are read: there are no "
                "others"
            )
        source = TensorFiles(folder, names.single, names.index)
        if source.formats != {"flax"}:
            names = names_of_experts(checkpoint.model_format.weight_map(checkpoint.config))
            return SplitExperts(Mxfp4Tensors(unwrapped(source, checkpoint)), names)
    flax = checkpoint.model_format.flax
    hf_config = checkpoint.hf_config
    for note in flax.notes(hf_config):
        warn_once(
            f"{folder}: the model follows config.json as PyTorch's class does, not Flax's: {note}"
        )
    lacking = flax.lacking(hf_config, checkpoint.architecture.name)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in lacking.items()}
    return FlaxTensors(source, {**zeros, **flax.fixed(hf_config)}, optional_tensors(checkpoint))


def layout_of(folder: Path) -> Layout | None:
    """Returns the layout of the weights in a folder.

    The layout is None for safetensors files written by Flax, and for MXFP4, which is never written.
    """
    if not _has_safetensors(folder) and has_msgpack(folder):
        return FlaxLayout.of_files(MsgpackFiles(folder))
    names = weight_names_in(folder)
    files = TensorFiles(folder, names.single, names.index)
    packed = Mxfp4Tensors(files).tensors.keys() != files.tensors.keys()
    return None if packed or files.formats == {"flax"} else FileLayout.of_folder(folder)


def read_layout(file: Path) -> Layout:
    """Reads a layout from a JSON file written by its `write` method."""
    kind = FlaxLayout if "files" in read_json(file) else FileLayout
    return kind.read(file)


def _has_safetensors(folder: Path) -> bool:
    names = weight_names_in(folder)
    return any(file_in(folder, name) is not None for name in (names.single, names.index))
