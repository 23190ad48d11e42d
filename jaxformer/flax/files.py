"""Reads and writes the checkpoints of Flax classes."""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.errors import ConfigError, DataError
from jaxformer.flax.config import FlaxConfig, as_config
from jaxformer.flax.generation import options_of
from jaxformer.hub.hf_config import HFConfig, write_hf_config
from jaxformer.hub.weights.arrays import check_finite
from jaxformer.hub.weights.fitting import fitted_to_tensors
from jaxformer.hub.weights.flax_tree import write_flax
from jaxformer.hub.weights.msgpack_files import INDEX, SINGLE
from jaxformer.hub.weights.msgpack_writer import Array
from jaxformer.hub.weights.names import KnownNames
from jaxformer.hub.weights.opening import open_tensors
from jaxformer.hub.weights.tensors import Tensor
from jaxformer.io.model_files import GENERATION, file_in, read_json_object
from jaxformer.pretrained.auto import model_folder
from jaxformer.pretrained.push import push

_log = logging.getLogger(__name__)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
# Arguments of the old classes that say how to download, which the hub's library decides.
_UNUSED = (
    *("force_download", "local_files_only", "proxies", "resume_download", "trust_remote_code"),
    "from_pt",
)


class FilesMixin:
    """`from_pretrained`, `save_pretrained` and `push_to_hub`."""

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Returns a model with new parameters; `options` are those of the class."""
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
        own = {key: options.pop(key) for key in ("seed", "input_shape") if key in options}
        remat = options.pop("gradient_checkpointing", False)
        options = {key: value for key, value in options.items() if key not in _UNUSED}
        if config is None or isinstance(config, str | Path):
            where = folder if config is None else model_folder(config, "config", **hub)
            config = _config_of(where, cls)
        config = as_config(config)
        for key, value in options.items():
            setattr(config, key, value)
        model = cls(config, dtype=dtype, _do_init=False, gradient_checkpointing=remat, **own)
        params, missing = model._read(folder, ignore_mismatched_sizes)
        if file_in(folder, GENERATION) is not None:
            model.generation_config = SimpleNamespace(**read_json_object(folder / GENERATION))
        if not _do_init:
            return model, params
        model._is_initialized = True
        model.params = model.init_weights(model.key, params=params) if missing else params
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
        leaves = []
        for path, x in sorted(
            flatten_dict(unfreeze(self.params if params is None else params)).items()
        ):
            described = Array(path, Tensor(tuple(x.shape), np.dtype(x.dtype)))
            leaves.append((described, lambda x=x: np.asarray(jax.device_get(x))))
        for old in (*folder.glob("flax_model-*-of-*.msgpack"), folder / SINGLE, folder / INDEX):
            old.unlink(missing_ok=True)
        write_flax(folder, leaves, _bytes(max_shard_size))
        values = self.config.to_dict() | {
            "architectures": [self.architecture],
            "model_type": self.checkpoint.model_format.model_type,
        }
        write_hf_config(folder, json.loads(json.dumps(values, default=str)))
        if self.can_generate():
            tokens = {n: values[n] for n in _TOKENS if values.get(n) is not None}
            text = json.dumps(tokens | options_of(self.generation_config), indent=2, sort_keys=True)
            (folder / GENERATION).write_text(text + "\n", encoding="utf-8")
        if push_to_hub:
            push(folder, repo_id or folder.name, token=token)

    def push_to_hub(self, repo_id: str, params: Any = None, token: str | None = None) -> None:
        """Writes the model to a temporary folder and uploads it as `repo_id`."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, params, push_to_hub=True, token=token, repo_id=repo_id)

    def _read(self, folder: Path, ignore_mismatched: bool) -> tuple[dict[str, Any], list[str]]:
        """The parameters in a folder, and the names of those that it lacks."""
        files = open_tensors(folder, self.checkpoint)
        self.checkpoint = fitted_to_tensors(self.checkpoint, files)
        program = self.program
        arrays = [array for array in program.tree.arrays if array.placement is not None]
        known = KnownNames(files.tensors, self.checkpoint.model_format)
        names = known.find_all([array.placement.tensor for array in arrays])
        found, missing, changed = {}, [], []
        for array in arrays:
            own = names.get(array.placement.tensor)
            if own is None:
                missing.append("/".join(array.path))
                continue
            tensor = files.read(own)
            if tensor.shape != array.placement.shape:
                changed.append(f"{own} has shape {tensor.shape}, not {array.placement.shape}")
                missing.append("/".join(array.path))
                continue
            check_finite(f"{folder}: {own}", tensor, tensor)
            found[array.path] = jnp.array(array.view.write(tensor))
        if not found:
            raise DataError(f"{folder}: has no array of {type(self).__name__}")
        if changed and not ignore_mismatched:
            raise DataError(
                f"{folder}: {'; '.join(changed[:5])}: give ignore_mismatched_sizes=True for new "
                "values"
            )
        for text, which in (("the shapes did not match", changed), ("the files lack", missing)):
            if which:
                listed = ", ".join(which[:10]) + (" ..." if which[10:] else "")
                _log.warning("%s: %s, new values: %s", folder, text, listed)
        dtype = next(iter(found.values())).dtype
        for array in program.tree.arrays:
            if array.placement is None:
                found[array.path] = jnp.zeros(array.shape, dtype)
        return unflatten_dict(dict(sorted(found.items()))), missing


def _config_of(folder: Path, cls: type) -> Any:
    """The values of a folder's config.json, completed with the defaults of its model type."""
    from jaxformer.flax.program import describe

    values = HFConfig.of_folder(folder).values
    checkpoint = describe(values, cls.model_type, cls.architecture)
    return FlaxConfig(**{**checkpoint.hf_config.values, **_own(values, checkpoint)})


def _own(values: Mapping[str, Any], checkpoint: Any) -> Mapping[str, Any]:
    same = values.get("model_type") == checkpoint.model_format.model_type
    return values if same else {}


def _bytes(size: int | str) -> int:
    """A size in bytes, from a number or a text such as "200MB" or "1GiB"."""
    if isinstance(size, int):
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None:
        raise ConfigError(f'max_shard_size = {size!r}: must be bytes, or a text such as "200MB"')
    power = "KMGT".find(found[2].upper()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)
