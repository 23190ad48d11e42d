"""Imports a Hugging Face checkpoint as a run."""

import logging
import math
from pathlib import Path

import jax.numpy as jnp

from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config.experiment import Config
from jaxformer.data import Data, DataConfig
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.images.text_pairs import ImageTextPairs
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerFile, load_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import check_unused, write_whole
from jaxformer.io.model_files import side_files
from jaxformer.io.paths import any_path, run_path
from jaxformer.pretrained.auto import load, model_folder
from jaxformer.pretrained.model import Pretrained, with_stored_compute_dtype
from jaxformer.pretrained.writing import keep_export_files

_log = logging.getLogger(__name__)


def import_folder(
    folder: str | Path,
    run_dir: str | Path,
    dtype: str | None = None,
    strict: bool = False,
    architecture: str | None = None,
) -> Pretrained:
    """Writes a run whose checkpoint of step 0 has the weights of a Hugging Face checkpoint."""
    check_unused(any_path(run_dir, "RUN_DIR"))
    run_dir = run_path(run_dir, "RUN_DIR")
    folder = model_folder(folder, "hf_dir", architecture=architecture)
    side_files(folder)
    model = load(folder, dtype=dtype, strict=strict, architecture=architecture)
    if model.folder != folder:
        raise ConfigError(f"import {folder}: this is a run already")
    kept = jnp.dtype(next(iter(model.parameters.values())).dtype)
    model = with_stored_compute_dtype(model)
    home = run_dir / IMPORTED
    tokenizer = _tokenizer_of(folder)
    config = Config(model.config, _data(model, home, tokenizer))

    def write(written: Path) -> None:
        write_run(written, config, 0, model.parameters)
        keep_export_files(written, folder, model.checkpoint, model.layout)
        if tokenizer is not None:
            tokenizer.save(written / "tokenizer")

    count = sum(math.prod(array.shape) for array in model.parameters.values())
    write_whole(run_dir, count * kept.itemsize, write)
    return model


def _data(model: Pretrained, home: Path, tokenizer: Tokenizer | None) -> Data:
    """Returns data that fit the model, with its tokenizer if any."""
    config = model.config
    reads = set(model.config.required)
    own = {} if tokenizer is None else {"tokenizer": TokenizerFile(str(home))}
    if "images" not in reads or "decoder_inputs" in reads:  # there is no data class for captions
        return DataConfig(**own)
    size = {"image_size": config.image_size, "channels": config.channels}
    return ImageTextPairs(**size, **own) if "inputs" in reads else Images(**size)


def _tokenizer_of(folder: Path) -> Tokenizer | None:
    """Returns the tokenizer for training, or None if it is missing or has no end-of-text token."""
    if tokenizer_file(folder) is None:
        return None
    try:
        return load_tokenizer(folder)
    except DataError as error:
        _log.warning("the run has no tokenizer to train with: %s", error)
        return None
