"""Reads and writes the checkpoints of Flax classes."""

import json
import logging
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import jax.numpy as jnp
from flax.core import unfreeze

from jaxformer.errors import ConfigError, DataError
from jaxformer.flax.config import FlaxConfig, as_config, options_of
from jaxformer.flax.program import describe
from jaxformer.generation.config import TOKEN_FIELDS
from jaxformer.hub.hf_config import HFConfig, write_hf_config
from jaxformer.hub.weights.fitting import fitted_to_tensors
from jaxformer.hub.weights.flax_tree import write_tree_of
from jaxformer.hub.weights.opening import open_tensors
from jaxformer.io.model_files import GENERATION, read_object
from jaxformer.pretrained.auto import model_folder
from jaxformer.pretrained.push import push

_log = logging.getLogger(__name__)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
_OF_CLASS = ("seed", "input_shape", "gradient_checkpointing", "add_pooling_layer")
# What these arguments of the old classes said does not matter here.
_UNUSED = (
    *("force_download", "from_pt", "local_files_only", "proxies", "resume_download"),
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
        subfolder: str = "",
        revision: str | None = None,
        token: str | None = None,
        use_auth_token: str | None = None,
        cache_dir: str | Path | None = None,
        ignore_mismatched_sizes: bool = False,
        _do_init: bool = True,
        **options: Any,
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Loads a checkpoint: flax_model.msgpack or model.safetensors, of Flax or of PyTorch.

        Args:
            name: A folder, or "org/name" on the hub.
            dtype: The dtype of the computation; parameters have that of the files.
            config: Replaces config.json; or the folder or the name of another one.
            subfolder: The folder of the model in `name`, such as "text_encoder".
            revision: A branch, a tag or a commit.
            token: The access token for the hub.
            use_auth_token: The old name of `token`.
            cache_dir: The cache of the hub.
            ignore_mismatched_sizes: Whether an array of another shape is replaced by a new one.
            _do_init: Whether the model holds the parameters; otherwise they are returned.
            **options: Fields of the config, or arguments of the class (`seed`, ...).

        Returns:
            The model; with `_do_init=False` the model and its parameters. Those that the files
            lack are new, with a warning; with `_do_init=False` they are missing.

        Raises:
            ConfigError: There is no such model, or it belongs to another class.
            DataError: The files are damaged, or an array has another shape.
        """
        hub = {"revision": revision, "token": token or use_auth_token, "cache_dir": cache_dir}
        folder = model_folder(name, "name", subfolder=subfolder, **hub)
        own = {key: options.pop(key) for key in _OF_CLASS if key in options}
        if config is None or isinstance(config, str | Path):
            where = folder if config is None else model_folder(config, "config", **hub)
            values = HFConfig.of_folder(where).values
            known = describe(values, cls.model_type, cls.architecture).hf_config.values
            same = values.get("model_type") == known["model_type"]
            config = FlaxConfig(**{**known, **(values if same else {})})
        config = as_config(config)
        for key, value in options.items():
            if key not in _UNUSED:
                setattr(config, key, value)
        model = cls(config, dtype=dtype, _do_init=False, **own)
        params, complete = model._read(folder, ignore_mismatched_sizes)
        model.generation_config = SimpleNamespace(**(read_object(folder, GENERATION) or {}))
        if not _do_init:
            return model, params
        model._is_initialized = True
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
            params: The parameters; None: those of the model.
            push_to_hub: Whether to upload the folder as well.
            max_shard_size: The largest size of a file: bytes, or a text such as "200MB".
            token: The access token for the hub.
            repo_id: "org/name" on the hub; None: the name of the folder.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tree = unfreeze(self.params if params is None else params)
        write_tree_of(folder, tree, _bytes(max_shard_size))
        kind = self.checkpoint.model_format.model_type
        named = {"architectures": [self.architecture], "model_type": kind}
        values = json.loads(json.dumps(self.config.to_dict() | named, default=str))
        write_hf_config(folder, values)
        if self.can_generate():
            tokens = {n: values[n] for n in TOKEN_FIELDS if values.get(n) is not None}
            options = tokens | options_of(self.generation_config)
            text = json.dumps(options, indent=2, sort_keys=True)
            (folder / GENERATION).write_text(text + "\n", encoding="utf-8")
        if push_to_hub:
            push(folder, repo_id or folder.name, token=token)

    def push_to_hub(self, repo_id: str, params: Any = None, token: str | None = None) -> None:
        """Uploads the model as `repo_id`."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, params, push_to_hub=True, token=token, repo_id=repo_id)

    def _read(self, folder: Path, ignore_mismatched: bool) -> tuple[Mapping[str, Any], bool]:
        """The parameters in a folder, and whether it has all of them."""
        files = open_tensors(folder, self.checkpoint)
        self.checkpoint = fitted_to_tensors(self.checkpoint, files)
        found = self.program.tree.read(files, self.checkpoint.model_format)
        changed = list(found.changed.values())
        if changed and not ignore_mismatched:
            raise DataError(
                f"{folder}: {'; '.join(changed[:5])}: give ignore_mismatched_sizes=True for new "
                "values"
            )
        for what, names in (("the shapes did not match", changed), ("missing", found.missing)):
            if names:
                listed = ", ".join(names[:10]) + " ..." * (len(names) > 10)
                _log.warning("%s: %s, so these are new: %s", folder, what, listed)
        return found.tree, not (changed or found.missing)


def _bytes(size: int | str) -> int:
    """A size in bytes, from a number or a text such as "200MB" or "1GiB"."""
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise ConfigError(f'max_shard_size = {size!r}: must be bytes, or a text such as "200MB"')
    power = "KMGT".find(found[2].upper()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)
