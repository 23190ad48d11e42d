"""`save`, and the files of an export: weights, config.json, and a model's other files."""

import logging
import shutil
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.checks import check_argument
from jaxformer.data.chat.template import TEMPLATE, find_template
from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.data.tokenizers.files import SETTINGS, tokenizer_in
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.describe import config_values
from jaxformer.hub.hf_config import write_hf_config
from jaxformer.hub.remote.names import write_source
from jaxformer.hub.weights.file_layout import Layout
from jaxformer.hub.weights.weight_file import described, tensor_of
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.files import move_into_place, temporary_folder, write_whole
from jaxformer.io.model_files import (
    CONFIG,
    LAYOUT,
    LICENSE,
    SIDE_FILES,
    TOKENIZER,
    copy_side_files,
    file_in,
    read_json_object,
    read_object,
)
from jaxformer.io.paths import folder_path
from jaxformer.models.parameters import Parameters
from jaxformer.pretrained.checkpoint import checked_dtype, template_folder
from jaxformer.pretrained.export.formats import EXPORT_FORMATS, ExportFormat, export_format
from jaxformer.pretrained.export.model_card import write_card
from jaxformer.pretrained.export.serving_files import write_json, write_serving_files
from jaxformer.pretrained.model import Pretrained, check_pretrained
from jaxformer.pretrained.prediction.image_settings import PROCESSOR, ImageSettings

_log = logging.getLogger(__name__)
_NO_CAPACITY = (
    "feed_forward.capacity = %g is left out: experts in transformers never drop tokens, so all "
    "tokens are computed, as in generation here"
)
_TOKENIZER_FIELDS = frozenset(
    name
    for name in SIDE_FILES
    if not name.endswith((LICENSE, "_config.json", "_template.json", ".jinja"))
) | {"tokenizer_config.json"}


def check_max_bytes(value: Any) -> None:
    """Raises ArgumentError unless a value is a file size in bytes, or None."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    fits = value is None or (is_number and value >= 1)
    check_argument("max_shard_bytes", value, fits, "at least 1, or None")


def write_weights(
    folder: Path,
    checkpoint: HFCheckpoint,
    parameters: Parameters,
    placements: list[Placement],
    *,
    layout: Layout | None = None,
    dtype: str | None = None,
    max_bytes: int | None = None,
    export_format: ExportFormat = EXPORT_FORMATS["hf"],
) -> np.dtype:
    """Writes the weight files of a model.

    If the tensors are those of the loaded files, names, order and dtypes are the same as there.
    """
    kept = layout if dtype is None else None
    placements = export_format.kept(checkpoint, placements)
    alike = kept is not None and kept.kind == export_format.name
    if alike and (max_bytes is None or kept.largest <= max_bytes):
        sources = kept.sources(checkpoint.model_format, placements)
        if sources is not None:
            kept.write_tensors(folder, lambda name: tensor_of(parameters, sources[name]))
            return kept.usual_dtype
    usual = dtype if kept is None else kept.usual_dtype
    kinds = described(parameters, placements, usual)
    if kept is not None:
        kinds = {
            name: kind._replace(dtype=kept.tensors.get(name, kind).dtype)
            for name, kind in kinds.items()
        }
    most = max_bytes or export_format.max_bytes
    export_format.write(folder, checkpoint, parameters, placements, kinds, most)
    return np.dtype(usual or next(iter(parameters.values())).dtype)


def write_config_and_other_files(
    folder: Path, checkpoint: HFCheckpoint, home: Path | None, dtype: np.dtype
) -> None:
    """Writes config.json, and copies a model's other files from `home`."""
    values = config_values(checkpoint)
    for stack in checkpoint.config.stacks:
        if (capacity := getattr(stack.feed_forward, "capacity", None)) is not None:
            _log.warning(_NO_CAPACITY, capacity)
            break
    source = file_in(home, CONFIG) if home else None
    name = "torch_dtype" if "torch_dtype" in values and "dtype" not in values else "dtype"
    if source is None or values.get(name, "float32") != dtype.name:
        values = values | {name: dtype.name}
    copy_other_files(folder, home)
    if _is_new_classifier(checkpoint, values, source):
        values = values | _named_padding(folder)
    write_hf_config(folder, values, home)
    if source is None:
        write_serving_files(folder, values, checkpoint.config.predicts_next_token)


def _is_new_classifier(
    checkpoint: HFCheckpoint, values: Mapping[str, Any], source: Path | None
) -> bool:
    """Whether training added a head that reads the last non-padding token of a row."""
    poolings = [getattr(head, "pooling", None) for head in getattr(checkpoint.config, "heads", ())]
    if "last" not in poolings or values.get("pad_token_id") is not None:
        return False
    return source is None or read_json_object(source).get("architectures") != values.get(
        "architectures"
    )


def _named_padding(folder: Path) -> dict[str, int]:
    """Gives a tokenizer a padding token, which transformers requires and no row may end with."""
    settings = read_object(folder, SETTINGS)
    if not settings or file_in(folder, TOKENIZER) is None:
        return {}
    tokenizer = tokenizer_in(folder)
    ends = tokenizer.encode("a").ids[-1:]
    for name in ("pad_token", "eos_token", "unk_token"):
        token = settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        padding = tokenizer.token_to_id(token) if isinstance(token, str) else None
        if padding is not None and padding not in ends:
            write_json(folder / SETTINGS, settings | {"pad_token": token})
            return {"pad_token_id": padding}
    return {}


def copy_other_files(folder: Path, home: Path | None) -> None:
    """Copies a model's files from `home`, except for its configuration."""
    own = _own_preprocessor(home)
    copy_side_files(home, folder, without=() if own is None else (PREPROCESSOR, PROCESSOR))
    if own is not None:
        shutil.copyfile(own, folder / PREPROCESSOR)
    template = own_template(home)
    if template is not None:
        (folder / TEMPLATE).write_text(template, encoding="utf-8")


def _own_preprocessor(home: Path | None) -> Path | None:
    """Returns a run's image preprocessing file, unless the checkpoint's file is equivalent."""
    if home is None or home.name != IMPORTED:
        return None
    kept = home.with_name("tokenizer")
    own = file_in(kept, PREPROCESSOR)
    if own is None or not any(file_in(home, name) for name in (PREPROCESSOR, PROCESSOR)):
        return own
    ours = ImageSettings.of_folder(kept)
    theirs = ImageSettings.of_folder(home)
    return None if ours.reads_as(theirs) else own


def own_template(home: Path | None) -> str | None:
    """Returns the chat template of a run's training, unless it is the checkpoint's."""
    if home is None or (own := template_folder(home)) == home:
        return None
    (_, text), theirs = find_template(own), find_template(home)
    return None if theirs is not None and theirs[1] == text else text


def keep_export_files(
    run: Path,
    home: Path,
    checkpoint: HFCheckpoint,
    layout: Layout | None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Stores in a run's folder the files that an export needs in addition to the weights."""
    kept = run / IMPORTED
    with temporary_folder(kept) as temporary:
        write_hf_config(temporary, config_values(checkpoint), home)
        if tokenizer is None:
            copy_side_files(home, temporary)
        else:
            copy_side_files(home, temporary, without=_TOKENIZER_FIELDS)
            tokenizer.save(temporary)
            if template := find_template(home):
                (temporary / TEMPLATE).write_text(template[1], encoding="utf-8")
        write_source(temporary, home)
        if layout is not None:
            layout.write(temporary / LAYOUT)
        move_into_place(temporary, kept)


def save(
    pretrained: Pretrained,
    folder: str | Path,
    *,
    format: str = "hf",
    dtype: str | None = None,
    max_shard_bytes: int | None = None,
    model_card: str | None = None,
) -> None:
    """Writes a Hugging Face checkpoint atomically.

    Args:
        pretrained: The model.
        folder: A new or empty folder.
        format: "hf" for model.safetensors, or "flax" for flax_model.msgpack of transformers 4.
        dtype: The dtype of the tensors: "float32", "bfloat16" or "float16"; None keeps the dtype of
            the parameters, or of the checkpoint if they were loaded without a dtype.
        max_shard_bytes: The maximum size of a file, unless a single tensor is larger; None: 5 GB,
            or as in the checkpoint.
        model_card: The text of README.md; None: the file is not written.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The folder is not empty, or no system or Flax class can express the model.
        DataError: The disk is full, or a weight is not finite, possibly only in the new dtype.
    """
    check_pretrained("pretrained", pretrained)
    folder = folder_path(folder, "folder")
    dtype = checked_dtype(dtype)
    target_format = export_format(format)
    target_format.check(pretrained.checkpoint, pretrained.parameters, pretrained.placements)
    check_max_bytes(max_shard_bytes)
    target = jnp.dtype(dtype or next(iter(pretrained.parameters.values())).dtype)
    sizes = [shape.size for shape in pretrained.abstract_model.shapes.values()]

    def write(written: Path) -> None:
        kept = write_weights(
            written,
            pretrained.checkpoint,
            pretrained.parameters,
            pretrained.placements,
            layout=pretrained.layout,
            dtype=dtype,
            max_bytes=max_shard_bytes,
            export_format=target_format,
        )
        write_config_and_other_files(written, pretrained.checkpoint, pretrained.folder, kept)
        write_card(written, model_card)

    write_whole(folder, sum(sizes) * target.itemsize, write)
