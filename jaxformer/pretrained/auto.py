"""Opens and loads saved models by name: runs, Hugging Face checkpoints, adapters."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax

from jaxformer.checkpoints.run_dir import CHECKPOINTS
from jaxformer.checks import check_argument
from jaxformer.distributed.sharding import MESH_AXES
from jaxformer.errors import ConfigError, shortened
from jaxformer.io.model_files import ADAPTER_CONFIG, is_adapter, is_hf_checkpoint
from jaxformer.io.paths import AnyPath, folder_path, is_remote
from jaxformer.pretrained.checkpoint import Checkpoint, RunCheckpoint, checked_dtype
from jaxformer.pretrained.model import KernelDtype, Pretrained


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
    weights: KernelDtype | None = None,
    **model_fields: Any,
) -> Pretrained:
    """Loads a model from a checkpoint of a run, or from a Hugging Face checkpoint.

    Args:
        folder: The folder of a run, of one of its checkpoints (RUN/checkpoints/300), of a Hugging
            Face checkpoint (config.json and model.safetensors, or several files and their index) or
            of a PEFT adapter, which names its base. gs:// and s3:// URLs are allowed. If the folder
            does not exist, the name of a model on the hub: "org/name", or "org/name@revision".
        dtype: The dtype of the parameters: "float32", "bfloat16" or "float16"; None keeps the dtype
            of the files.
        mesh: The mesh over which parameters are sharded; None: one device.
        step: Which checkpoint of the run; None: the newest.
        best: Whether to use the checkpoint with the best value of the run's `train.metric`.
        adapter: The folder of a PEFT adapter (LoRA, DoRA, IA3, trainable tokens) to merge into the
            weights.
        adapters: The folders of adapters by name; `Pretrained.with_adapters` merges the chosen
            ones.
        architecture: The class of a Hugging Face checkpoint, such as "BertModel"; None: the class
            in config.json, or the class without heads if the files have no heads.
        revision: A branch, a tag or a commit of a model on the hub; None: main.
        token: The access token for the hub; None: HF_TOKEN, or the token of `hf auth login`.
        cache_dir: The hub's cache; None: the cache in HF_HOME.
        strict: Whether to refuse fields of config.json that the class in transformers ignores;
            otherwise a warning lists them.
        weights: "int8": generation stores kernels in int8 with a scale for each output, half the
            bytes of bfloat16, and on a CPU also rounds their inputs to int8; None: kernels in the
            dtype of the parameters.
        **model_fields: Fields of our configuration that determine how the model is computed:
            `compute_dtype`, `scan_layers`, `attention`, `remat`. The default `compute_dtype` is
            float32 if `dtype` is float32, otherwise bfloat16.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The folder or model does not exist, the system is unknown, or the configuration
            has an unsupported value.
        DataError: The tensors are missing, damaged or do not fit, or a weight is not finite.
    """
    dtype = checked_dtype(dtype)
    axes = f"None, or a mesh with the axes {', '.join(MESH_AXES)}, as make_mesh makes it"
    fits = isinstance(mesh, jax.sharding.Mesh) and set(MESH_AXES) <= set(mesh.axis_names)
    check_argument("mesh", mesh, mesh is None or fits, axes)
    check_argument("weights", weights, weights in (None, *get_args(KernelDtype)), "int8, or None")
    hub = {"token": token, "cache_dir": cache_dir}
    fields = {"compute_dtype": "float32" if dtype == "float32" else "bfloat16"} | model_fields
    opened = open_checkpoint(
        folder,
        "folder",
        step=step,
        best=best,
        adapter=adapter,
        architecture=architecture,
        strict=strict,
        fields=fields,
        revision=revision,
        **hub,
    )
    model = replace(opened.load(dtype, mesh), weights=weights)
    return _with_adapters(model, adapters or {}, hub)


def open_checkpoint(
    name: str | Path,
    field: str,
    *,
    step: int | None = None,
    best: bool = False,
    adapter: str | Path | None = None,
    weights: bool = True,
    architecture: str | None = None,
    fields: Mapping[str, Any] | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    **of_files: bool,
) -> Checkpoint:
    """Opens a saved model; its parameters are read on demand.

    `of_files` are further options of `FolderCheckpoint`, unused for a run, which has all its parts.
    """
    hub = {"token": token, "cache_dir": cache_dir}
    folder = model_folder(
        name, field, revision=revision, weights=weights, architecture=architecture, **hub
    )
    home = folder
    if adapter is not None:
        adapter = model_folder(adapter, "adapter", **hub)
    elif is_adapter(folder):
        home, adapter = base_of(folder, **hub), folder
    if not is_hf_checkpoint(home):
        whole = architecture is None
        check_argument("architecture", architecture, whole, "None for a run, which has its heads")
        return RunCheckpoint(folder, step, best, weights, adapter, fields)
    if best or step is not None:
        option = "--best" if best else f"--step {step}"
        raise ConfigError(f"{option}: {home} is a Hugging Face checkpoint, which has no steps")
    from jaxformer.pretrained.hf_folder import FolderCheckpoint

    options = {"weights": weights, "architecture": architecture, "fields": fields}
    return FolderCheckpoint(folder, home, adapter, **options, **of_files)


def model_folder(
    model: str | Path,
    field: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    weights: bool = True,
    architecture: str | None = None,
    subfolder: str = "",
) -> AnyPath:
    """Returns the folder of a model; a model of the hub is downloaded to its cache.

    A folder on this machine takes precedence. Otherwise "org/name" and "org/name@revision" are
    names on the hub, but never a `Path` or a string that begins with a dot or a slash. From gs://
    and s3:// URLs, a model's files are copied to this machine; a run is read in place. In a
    repository of several models, `subfolder` is the model's folder ("text_encoder").
    """
    folder = folder_path(model, field)
    check = partial(_check_known, architecture=architecture)
    if is_remote(folder):
        from jaxformer.hub.remote.stores import remote_model

        return remote_model(folder / subfolder, field, weights, check)
    # If a step is missing from its run, the reader of the run lists the existing ones.
    is_step = folder.name.isdecimal() and folder.parent.name == CHECKPOINTS
    if os.path.isdir(folder.parent if is_step else folder):
        if revision is not None:
            raise ConfigError(
                f"revision = {revision!r}: must be None for {folder}, a folder on this machine"
            )
        return folder / subfolder
    # Imported here because runs and local folders do not need the hub.
    from jaxformer.hub.remote.download import fetch
    from jaxformer.hub.remote.names import hub_name

    named = hub_name(model)
    if named is None:
        raise ConfigError(
            f"{field} = {shortened(model)}: must be the folder of a run or of a Hugging Face "
            f"checkpoint, or the name of a model on the hub; looked from {Path.cwd()}"
        )
    if revision is not None:
        if named.revision not in (None, revision):
            raise ConfigError(f"revision = {revision!r}: {model} names another one; leave one out")
        named = hub_name(f"{named.repo}@{revision}")
        if named is None:
            raise ConfigError(f"revision = {revision!r}: must be a branch, a tag or a commit")
    options = {"token": token, "cache_dir": cache_dir, "weights": weights, "check": check}
    return fetch(named, field, **options, subfolder=subfolder)


def base_of(folder: Path, **hub: str | Path | None) -> Path:
    """Returns the Hugging Face checkpoint that a PEFT adapter changes."""
    from jaxformer.hub.peft.config import read_peft_config
    from jaxformer.hub.remote.names import hub_name

    name = read_peft_config(folder).base
    field = f"{folder / ADAPTER_CONFIG}: base_model_name_or_path"
    if name and is_remote(name):
        return model_folder(name, field)
    for place in (Path(name), folder / name) if name else ():
        if is_hf_checkpoint(place):
            return place
    if hub_name(name) is not None:
        return model_folder(name, field, **hub)
    raise ConfigError(
        f"{field} = {name!r}: must be the folder of a Hugging Face checkpoint here; "
        'jaxformer.load(BASE, adapter="ADAPTER") takes another base'
    )


def _with_adapters(
    model: Pretrained, adapters: Mapping[str, str | Path], hub: Mapping[str, Any]
) -> Pretrained:
    """Returns the model with the folders of its adapters, and checks that they fit."""
    if not adapters:
        return model
    from jaxformer.pretrained.reader import open_with_adapter

    folders = {
        name: model_folder(folder, f"adapters[{name!r}]", **hub)
        for name, folder in adapters.items()
    }
    for folder in folders.values():
        open_with_adapter(model, folder)
    return replace(model, adapters=folders)


def _check_known(folder: Path, architecture: str | None) -> None:
    """Checks that a model can be read, before its weights are downloaded."""
    if not is_adapter(folder):
        from jaxformer.zoo.folders import read_folder

        read_folder(folder, architecture=architecture)
