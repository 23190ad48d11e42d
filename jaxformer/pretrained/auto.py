"""Loads models with their weights from runs and from Hugging Face checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints.run_data import kept_files
from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.data import Data
from jaxformer.data.labels import load_labels
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.data.tokenizers.specs import load_tokenizer
from jaxformer.distributed.sharding import MESH_AXES
from jaxformer.errors import ConfigError, check_argument
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.describe import describe_model
from jaxformer.hub.hf_config import CONFIG, is_hf_checkpoint
from jaxformer.hub.peft.files import is_adapter
from jaxformer.hub.tasks.label_names import label_settings
from jaxformer.hub.weights.arrays import check_finite
from jaxformer.hub.weights.file_layout import LAYOUT
from jaxformer.hub.weights.opening import Layout, read_layout
from jaxformer.io.model_files import file_in, read_object
from jaxformer.io.paths import AnyPath
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.pretrained.adapters import base_of, with_read_adapters
from jaxformer.pretrained.folders import model_folder
from jaxformer.pretrained.model import (
    Pretrained,
    checked_dtype,
    load_folder,
    shardings_of,
    with_adapter,
)
from jaxformer.zoo import FORMATS


def load(
    folder: str | Path,
    *,
    dtype: str | None = "float32",
    mesh: jax.sharding.Mesh | None = None,
    step: int | None = None,
    best: bool = False,
    adapter: str | Path | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    architecture: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    strict: bool = False,
    **model_fields: Any,
) -> Pretrained:
    """Returns a model: a complete checkpoint of a run, or a Hugging Face checkpoint.

    Args:
        folder: A run's folder, that of one of its checkpoints (RUN/checkpoints/300), or one with
            config.json and model.safetensors (or several files and their index); or that of a
            PEFT adapter, which names its base. Where there is no such folder, the name of a model
            on the hub: "org/name", or "org/name@revision". gs:// and s3:// URLs are folders too.
        dtype: The dtype of the parameters: "float32", "bfloat16" or "float16"; None keeps that of
            the files.
        mesh: The mesh that each parameter is sharded over when it is read; None: one device.
        step: Which checkpoint of the run; None: the newest.
        best: Take the checkpoint with the best value of the run's `train.metric`.
        adapter: The folder of a PEFT adapter (LoRA, DoRA, IA3, trainable tokens) to merge into the
            weights.
        adapters: The folders of adapters by name; `Pretrained.with_adapters` merges those that it
            is asked for.
        architecture: The class of a Hugging Face checkpoint, such as "BertModel"; None: the one
            that config.json names, or that of the body where the files have nothing else.
        revision: A branch, a tag or a commit of a model on the hub; None: main.
        token: Who asks the hub; None: HF_TOKEN, or that of `hf auth login`.
        cache_dir: The hub's cache; None: that of HF_HOME.
        strict: Whether a field of config.json that transformers' class does not know, and so
            ignores, is refused; otherwise a warning names it.
        **model_fields: Fields of our configuration that say how the model is computed:
            `compute_dtype`, `scan_layers`, `attention`, `remat`. Without `compute_dtype` it is
            computed in float32 if `dtype` is float32, else in bfloat16.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: There is no such folder or model, the system is unknown, or the configuration
            has a value that is not supported.
        DataError: The tensors are missing, damaged or do not fit, or a weight is not finite.
    """
    dtype = checked_dtype(dtype)
    axes = f"None, or a mesh with the axes {', '.join(MESH_AXES)}, as make_mesh makes it"
    fits = isinstance(mesh, jax.sharding.Mesh) and set(MESH_AXES) <= set(mesh.axis_names)
    check_argument("mesh", mesh, mesh is None or fits, axes)
    hub = {"token": token, "cache_dir": cache_dir}
    wanted = {"revision": revision, "architecture": architecture}
    folder = model_folder(folder, "folder", **wanted, **hub)
    fields = {"compute_dtype": "float32" if dtype == "float32" else "bfloat16"} | model_fields
    if adapter is None and is_adapter(folder):
        folder, adapter = base_of(folder, **hub), folder
    elif adapter is not None:
        adapter = model_folder(adapter, "adapter", **hub)
    if is_hf_checkpoint(folder):
        check_no_step(folder, step, best)
        wanted = {"architecture": architecture, "adapter": adapter, "strict": strict}
        model = load_folder(folder, dtype, mesh, **wanted, **fields)
    else:
        whole = architecture is None
        check_argument("architecture", architecture, whole, "None for a run, which has its heads")
        model = _load_run(SavedRun(folder, str(folder), step, best), dtype, mesh, fields)
        model = model if adapter is None else with_adapter(model, adapter, mesh)
    return with_read_adapters(model, adapters or {}, **hub)


def _load_run(
    run: SavedRun, dtype: str | None, mesh: jax.sharding.Mesh | None, fields: Mapping[str, Any]
) -> Pretrained:
    config = run.config.model.with_fields(**fields)
    checkpoint, home = describe_run(run, config), home_of(run.folder)
    abstract_model = AbstractModel(config.build)
    shardings = shardings_of(abstract_model, mesh)
    arrays = run.read(abstract_model.shapes)
    parameters = {
        # Each array is freed when it is placed, so that they are not all in memory twice.
        name: jax.device_put(
            _cast(f"{run.folder}: {name}", arrays.pop(name), dtype), shardings[name]
        )
        for name in abstract_model.shapes
    }
    return Pretrained(checkpoint, parameters, home, None if dtype else kept_layout(home))


def home_of(run: AnyPath) -> Path:
    """Returns the folder with the other files of a run: its checkpoint's, or its tokenizer's."""
    kept = kept_files(run)
    return kept / IMPORTED if (kept / IMPORTED).is_dir() else kept / "tokenizer"


def kept_layout(home: Path) -> Layout | None:
    """Returns the layout of the weights that a run started from; None if it keeps none."""
    file = file_in(home, LAYOUT)
    return None if file is None else read_layout(file)


def describe_run(run: SavedRun, model: ModelConfig) -> HFCheckpoint:
    """Returns the description of a run's model, with what travels from where it started.

    Args:
        run: The run.
        model: Its model, perhaps computed in another way.

    Raises:
        DataError: A file that the run keeps is damaged.
    """
    home, labels = home_of(run.folder), load_labels(kept_files(run.folder))
    kept = read_object(home, CONFIG)
    if kept is None:
        kept = _token_ids(home, run.config.data)
    return describe_model(model, FORMATS.values(), kept | label_settings(model, labels, kept))


def check_no_step(folder: Path, step: int | None, best: bool) -> None:
    """Checks that no step is asked for of a folder that has none.

    Args:
        folder: The folder of a Hugging Face checkpoint.
        step: The step that is asked for, if any.
        best: Whether the best step is asked for.

    Raises:
        ConfigError: One is asked for.
    """
    if best or step is not None:
        asked = "--best" if best else f"--step {step}"
        raise ConfigError(f"{asked}: {folder} is a Hugging Face checkpoint, which has no steps")


@np.errstate(over="ignore")  # the check reports it
def _cast(where: str, array: np.ndarray, dtype: str | None) -> np.ndarray:
    cast = array if dtype is None else array.astype(dtype, copy=False)
    check_finite(where, cast, array)
    return cast


def _token_ids(home: Path, data: Data) -> dict[str, Any]:
    """The ids of special tokens, of a model that this library made."""
    if tokenizer_file(home) is None:
        return {}
    tokenizer = load_tokenizer(home)
    end, pad = tokenizer.end_of_text_id, tokenizer.pad_id
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    start = data.start_id(tokenizer)
    return ids | ({} if start is None else {"decoder_start_token_id": start})
