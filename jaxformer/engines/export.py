"""`export_model` and `verify_export`: exports for engines, and their receipts."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer import __version__
from jaxformer.checkpoints.run_dir import prepared_data, read_config
from jaxformer.checkpoints.saved_run import run_and_step
from jaxformer.engines.base import Engine, Format
from jaxformer.engines.compressed_tensors import CompressedTensorsFormat
from jaxformer.engines.ctranslate2 import CTranslate2Format
from jaxformer.engines.custom_code.format import CustomCodeFormat
from jaxformer.engines.gguf.format import GGUFFormat
from jaxformer.engines.mlx import MLXEngine, MLXFormat
from jaxformer.engines.onnx import ONNXFormat
from jaxformer.engines.receipts import Receipt, answers_of, is_exact, measure
from jaxformer.engines.speech import reference_of, writes_speech
from jaxformer.engines.stablehlo.format import StableHLOFormat
from jaxformer.engines.transformers import TransformersEngine
from jaxformer.errors import ConfigError, DataError, did_you_mean
from jaxformer.extras import MissingExtra
from jaxformer.io.files import write_whole
from jaxformer.io.model_files import is_hf_checkpoint, read_object
from jaxformer.io.notices import warn_once
from jaxformer.io.paths import folder_path
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.checkpoint import checked_dtype
from jaxformer.pretrained.export.formats import EXPORT_FORMATS
from jaxformer.pretrained.export.serving_files import write_json
from jaxformer.pretrained.model import Pretrained

DESCRIPTION = "export.json"
"""The file in an engine's export that describes the model and the format."""
ENGINE_FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        CompressedTensorsFormat(),
        CTranslate2Format(),
        GGUFFormat(),
        MLXFormat(),
        ONNXFormat(),
        StableHLOFormat(),
    )
}
"""The formats for engines by name; the other formats are Hugging Face folders."""
CUSTOM_CODE = CustomCodeFormat()
"""The format of `--custom-code`: a Hugging Face folder with its own code."""
_FORMATS: dict[str, Format] = ENGINE_FORMATS | {CUSTOM_CODE.name: CUSTOM_CODE}
HF_ENGINES: tuple[Engine, ...] = (TransformersEngine(), MLXEngine())
"""The engines that read a Hugging Face folder."""
ALL = "all"
"""The name for all installed engines that read an export."""


def export_model(
    pretrained: Pretrained,
    folder: str | Path,
    *,
    format: str,
    source: str,
    dtype: str | None = None,
    quantise: str | None = None,
    step: int | None = None,
) -> None:
    """Writes a model for an engine atomically.

    Args:
        pretrained: The model.
        folder: A new or empty folder.
        format: One of `ENGINE_FORMATS`, or "custom-code".
        source: The run or checkpoint of the model, for comparison in `verify_export`.
        dtype: "float32", "bfloat16" or "float16"; None keeps the dtype of the parameters.
        quantise: An integer format of the weights, one of the format's `quantisations`, or None.
        step: The step of the run; None: its newest.

    Raises:
        ConfigError: The folder is not empty, or the format cannot express the model.
        DataError: The disk is full.
        MissingExtra: A library that writes the format is not installed.
    """
    target = _FORMATS[format]
    dtype = checked_dtype(dtype)
    target.check_quantisation(quantise)
    try:
        target.check(pretrained, quantise)
    except ConfigError as error:
        raise ConfigError(f"{error}; {_supporting_formats(pretrained)}") from error
    kept = dtype or str(next(iter(pretrained.parameters.values())).dtype)
    description = {
        "format": format,
        "kind": _kind(pretrained),
        "architecture": pretrained.checkpoint.architecture.name,
        "dtype": kept,
        "source": source,
        "jaxformer": __version__,
    }
    description |= {} if quantise is None else {"quantise": quantise}
    description |= {} if step is None else {"step": step}

    def write(written: Path) -> None:
        target.write(pretrained, written, kept, quantise)
        write_json(written / DESCRIPTION, description)

    # A converter needs a temporary Hugging Face folder of the same size.
    sizes = [2 * array.nbytes for array in pretrained.parameters.values()]
    write_whole(folder, sum(sizes), write)


def _kind(pretrained: Pretrained) -> str:
    if writes_speech(pretrained):
        return "speech"
    if pretrained.config.is_encoder_decoder:
        return "encoder-decoder"
    return "decoder" if pretrained.config.causal else "encoder"


def engines_for(folder: Path, names: Sequence[str]) -> list[Engine]:
    """Returns the engines that can run an export.

    Engines in `names` must be installed.
    """
    readers = {engine.name: engine for engine in _readers(description_of(folder))}
    chosen = list(readers) if ALL in names else names
    found = []
    for name in chosen:
        if name not in readers:
            raise ConfigError(
                f"--engines {name}: must be all or among {', '.join(readers)}, which read "
                f"{folder}{did_you_mean(name, readers)}"
            )
        try:
            readers[name].check(folder)
            readers[name].require()
        except (MissingExtra, ConfigError) as error:
            if ALL not in names:
                raise
            warn_once(f"left out: {error}")
            continue
        found.append(readers[name])
    if not found:
        raise ConfigError(f"--engines {' '.join(names)}: no engine that runs {folder} is installed")
    return found


def verify_export(
    folder: Path,
    engines: Sequence[Engine],
    source: str | None = None,
) -> list[Receipt]:
    """Runs an export in engines from `engines_for`; returns a receipt for each.

    It is compared with the run or checkpoint `source`; None: the one in export.json, or the folder
    itself if it is a Hugging Face checkpoint.

    Raises:
        ConfigError: The source does not exist, or is not a model of texts or speech that an engine
            supports.
    """
    description = description_of(folder)
    where = source or description.get("source", str(folder))
    try:
        model = load(where, step=description.get("step"))
    except ConfigError as error:
        raise ConfigError(
            f"{folder} was exported from {where}, which cannot be read ({error}): name the run or "
            "checkpoint with --reference"
        ) from error
    reference = reference_of(model)
    answers = answers_of(reference)
    rows = [] if is_exact(description) else validation_rows(where)
    return [measure(engine, folder, description, reference, answers, rows) for engine in engines]


def validation_rows(source: str, count: int = 16, length: int = 256) -> list[np.ndarray]:
    """Returns the first tokens of some rows of a run's validation data, if available.

    A row of several texts, such as conversations, counts as several.
    """
    folder = folder_path(source, "--reference")
    if is_hf_checkpoint(folder):
        return []
    run, _ = run_and_step(folder)
    try:
        rows = itertools.islice(prepared_data(read_config(run).data, run).validation.rows(), count)
        return [text[:length] for row in rows for text in _texts(row)][:count]
    except (ConfigError, DataError) as error:
        warn_once(f"no perplexity is measured, since the validation data cannot be read: {error}")
        return []


def _texts(row: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the tokens of the texts in a row; empty for other data."""
    if set(row) == {"inputs", "targets", "weights"}:
        return [row["inputs"]]
    if set(row) != {"inputs", "targets", "weights", "segments", "positions"}:
        return []
    inputs, segments = row["inputs"], row["segments"]
    texts = [inputs[segments == number] for number in np.unique(segments[segments > 0])]
    return [text for text in texts if len(text) > 1]  # one token predicts nothing


def _supporting_formats(pretrained: Pretrained) -> str:
    """Describes the formats that support a model, for the error message of another format."""
    checks: dict[str, Callable[[], None]] = {
        "hf": lambda: EXPORT_FORMATS["hf"].check(
            pretrained.checkpoint, pretrained.parameters, pretrained.placements
        )
    }
    others = ENGINE_FORMATS | {"hf with --custom-code": CUSTOM_CODE}
    checks |= {
        name: partial(each.check, pretrained, None)
        for name, each in others.items()
        if not each.is_quantised
    }
    found = []
    for name, check in checks.items():
        with contextlib.suppress(ConfigError, DataError, MissingExtra):
            check()
            found.append(name)
    return f"formats that can hold it: {', '.join(found) or 'none'}"


def description_of(folder: Path) -> Mapping[str, Any]:
    """Returns the contents of export.json; empty for a Hugging Face folder."""
    return read_object(folder, DESCRIPTION) or {}


def is_for_engine(folder: str | Path) -> bool:
    """Returns whether a folder is an export for an engine, not a Hugging Face checkpoint."""
    return Path(folder, DESCRIPTION).is_file()


def _readers(description: Mapping[str, Any]) -> Sequence[Engine]:
    name = description.get("format")
    return _FORMATS[name].engines if name in _FORMATS else HF_ENGINES
