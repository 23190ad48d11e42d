"""Reads and writes the checkpoints of Flax classes."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from jaxformer.errors import ArgumentError, did_you_mean
from jaxformer.generation.config import TOKEN_FIELDS
from jaxformer.hub.flax_api.config import FlaxConfig, as_config, options_of
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.fitting import fitted_to_tensors
from jaxformer.hub.weights.flax_tree import byte_count, write_flax_folder
from jaxformer.hub.weights.opening import open_tensors
from jaxformer.io.model_files import GENERATION, read_object
from jaxformer.pretrained.auto import model_folder
from jaxformer.pretrained.export.push import push
from jaxformer.pretrained.flax_program import describe_flax

OF_CLASS = ("dtype", "seed", "input_shape", "gradient_checkpointing", "add_pooling_layer")
"""The options of a class; other options are fields of the config."""
# Arguments of the old classes that have no effect here.
_UNUSED = (
    "force_download",
    "from_pt",
    "local_files_only",
    "proxies",
    "resume_download",
    "trust_remote_code",
)


class FilesMixin:
    """`from_pretrained`, `save_pretrained` and `push_to_hub`."""

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Returns a model with new parameters; `options` are the arguments of the class."""
        return cls(config, **options)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        dtype: Any = jnp.float32,
        *,
        config: Any = None,
        ignore_mismatched_sizes: bool = False,
        _do_init: bool = True,
        **options: Any,
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Loads a checkpoint: flax_model.msgpack or model.safetensors, of Flax or of PyTorch.

        Args:
            name: A folder, or "org/name" on the hub.
            dtype: The dtype of the computation; parameters keep the dtype of the files.
            config: A config that replaces config.json, or the folder or name of another
                config.json.
            ignore_mismatched_sizes: Whether to replace arrays of a wrong shape by new ones.
            _do_init: Whether the model keeps the parameters; otherwise they are returned.
            **options: `subfolder`, `revision`, `token` and `cache_dir` of the hub, arguments of
                the class (`seed`, ...), or fields of the config.

        Returns:
            The model; with `_do_init=False` the model and its parameters. Parameters that the files
            lack are initialized, with a warning; with `_do_init=False` they are missing.

        Raises:
            ArgumentError: An option is neither an argument nor a field that the class reads.
            ConfigError: The model does not exist, or belongs to another class.
            DataError: The files are damaged, or an array has a wrong shape.
        """
        hub = pop_hub(options)
        folder = model_folder(name, "name", **hub)
        own = {key: options.pop(key) for key in OF_CLASS if key in options}
        values = config_values(name, config, **hub)
        if config is None or isinstance(config, str | Path):
            known = describe_flax(values, cls.model_type, cls.architecture).hf_config.values
            same = values.get("model_type") == known["model_type"]
            config = FlaxConfig(**{**known, **(values if same else {})})
        config = as_config(config)
        for key, value in options.items():
            if key not in _UNUSED:
                setattr(config, key, value)
        model = cls(config, dtype=dtype, _do_init=False, **own)
        for key in (options.keys() - set(_UNUSED)) & model.checkpoint.hf_config.ignored.keys():
            nearest = did_you_mean(key, (*vars(config).keys() - {key}, "num_labels", *OF_CLASS))
            raise ArgumentError(
                f"{key}: is neither an argument nor a field of the config that {cls.__name__} "
                f"reads{nearest}"
            )
        files = open_tensors(folder, model.checkpoint)
        model.checkpoint = fitted_to_tensors(model.checkpoint, files)
        model_format = model.checkpoint.model_format
        params = model.program.tree.read(files, model_format, ignore_mismatched_sizes)
        model.generation_config = SimpleNamespace(**(read_object(folder, GENERATION) or {}))
        if not _do_init:
            return model, params
        model._is_initialized = True
        complete = flatten_dict(params).keys() >= model.required_params
        model.params = params if complete else model.init_weights(model.key, params=params)
        return model

    def save_pretrained(
        self,
        folder: str | Path,
        params: Any = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "10GB",
        token: str | None = None,
        repo_id: str | None = None,
    ) -> None:
        """Writes config.json and flax_model.msgpack, or several files and their index.

        Args:
            folder: The folder; files of an earlier model in it are replaced.
            params: The parameters; None: the parameters of the model.
            push_to_hub: Whether to upload the folder as well.
            max_shard_size: The maximum size of a file: bytes, or a string such as "200MB".
            token: The access token for the hub.
            repo_id: "org/name" on the hub; None: the name of the folder.
        """
        kind = self.checkpoint.model_format.model_type
        values = self.config.to_dict() | {"architectures": [self.architecture], "model_type": kind}
        tokens = {n: values[n] for n in TOKEN_FIELDS if values.get(n) is not None}
        options = tokens | options_of(self.generation_config) if self.can_generate() else None
        params = self.params if params is None else params
        folder = Path(folder)
        write_flax_folder(folder, params, values, options, byte_count(max_shard_size))
        if push_to_hub:
            push(folder, repo_id or folder.name, token=token)

    def push_to_hub(self, repo_id: str, params: Any = None, token: str | None = None) -> None:
        """Uploads the model as `repo_id`."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, params, push_to_hub=True, token=token, repo_id=repo_id)


def pop_hub(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the arguments of `model_folder` from options, and returns them."""
    old = options.pop("use_auth_token", None)
    names = ("subfolder", "revision", "token", "cache_dir")
    return {"token": old} | {name: options.pop(name) for name in names if name in options}


def config_values(name: str | Path, config: Any, **hub: Any) -> dict[str, Any]:
    """Returns the values of `config` if given, otherwise those of a folder's config.json."""
    if config is None:
        return HFConfig.of_folder(model_folder(name, "name", **hub)).values
    if isinstance(config, str | Path):
        return HFConfig.of_folder(model_folder(config, "config", **hub | {"subfolder": ""})).values
    return as_config(config).to_dict()
