"""The steps of sentence-transformers after the model: pooling, and modules on vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError, shortened
from jaxformer.hub.weights.found import SINGLE
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.io.model_files import file_in, read_object
from jaxformer.models.heads.base import pool

CONFIG = "config.json"
_PICKLE = "pytorch_model.bin"
_VECTOR = "sentence_embedding"
Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_POOLS = {"cls": "first", "lasttoken": "last", "mean": "mean"}
_OLD_MODES: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The fields of older files, in the order in which their vectors are concatenated."""
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "ELU": jax.nn.elu,
    "GELU": lambda x: jax.nn.gelu(x, approximate=False),
    "Identity": lambda x: x,
    "LeakyReLU": jax.nn.leaky_relu,
    "Mish": jax.nn.mish,
    "ReLU": jax.nn.relu,
    "ReLU6": jax.nn.relu6,
    "SELU": jax.nn.selu,
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "Softplus": jax.nn.softplus,
    "Tanh": jnp.tanh,
}


def activation_of(path: str, where: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function of a PyTorch module with its default arguments."""
    name = path.rpartition(".")[2] if isinstance(path, str) else ""
    if not (name in _ACTIVATIONS and path.startswith("torch.nn.")):
        known = ", ".join(f"torch.nn.{each}" for each in _ACTIVATIONS)
        raise ConfigError(f"{where} = {shortened(path)}: must be one of {known}")
    return _ACTIVATIONS[name]


def pooled(hidden: jax.Array, valid: jax.Array, counted: jax.Array, mode: Mode) -> jax.Array:
    r"""Returns one vector for each text.

    .. math:: \frac{\sum_t w_t h_t}{\sum_t w_t} \quad \text{or} \quad \max_t h_t

    where w is 1 ("mean"), t + 1 ("weightedmean"), or 1 for a single token ("cls", "lasttoken").
    "mean_sqrt_len_tokens" divides the sum by the root of the number of tokens.

    Args:
        hidden: `[B, T, D]`, the states.
        valid: bool `[B, T]`, the tokens that are not padding, on either side.
        counted: bool `[B, T]`, the tokens to pool: all valid ones, or those after a prompt. A
            token's position t is the same in both cases.
        mode: The pooling mode.

    Returns:
        `[B, D]`; float32, or the dtype of `hidden`.
    """
    if mode in _POOLS:
        return pool(hidden, counted, _POOLS[mode])
    if mode == "max":
        return jnp.max(jnp.where(counted[:, :, None], hidden, -jnp.inf), axis=1)
    if mode == "mean_sqrt_len_tokens":
        count = jnp.sum(counted, axis=1, keepdims=True)
        return pool(hidden, counted, "mean").astype(jnp.float32) * jnp.sqrt(count)
    weights = jnp.where(counted, jnp.cumsum(valid, axis=1), 0).astype(jnp.float32)
    total = jnp.sum(hidden.astype(jnp.float32) * weights[:, :, None], axis=1)
    return total / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-9)


@dataclass(frozen=True)
class Pooling:
    """Pools the states of a text's tokens into one vector."""

    modes: tuple[Mode, ...] = ("mean",)
    """The pooling modes, whose vectors are concatenated."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled."""

    @classmethod
    def read(cls, folder: Path) -> "Pooling":
        """Reads the pooling in a module's folder."""
        values = _config(folder)
        modes = values.get("pooling_mode")
        if modes is None:
            modes = [mode for name, mode in _OLD_MODES.items() if values.get(name)] or ["mean"]
        modes = (modes,) if isinstance(modes, str) else tuple(modes)
        for mode in modes:
            if mode not in get_args(Mode):
                raise ConfigError(
                    f"{folder / CONFIG}: pooling_mode = {shortened(mode)}: must be one of "
                    f"{', '.join(get_args(Mode))}"
                )
        return cls(modes, bool(values.get("include_prompt", True)))

    def __call__(self, hidden: jax.Array, valid: jax.Array, counted: jax.Array) -> jax.Array:
        """Returns the vectors, float32 `[B, modes D]`; see `pooled` for the arguments."""
        found = [pooled(hidden, valid, counted, mode) for mode in self.modes]
        return jnp.concatenate(found, axis=-1).astype(jnp.float32)


Module = Callable[[jax.Array], jax.Array]
"""A step after pooling, from vectors float32 `[B, D]` to vectors."""


def read_normalize(folder: Path) -> Module:
    """Returns a function that scales vectors to length 1."""
    _check_on_vectors(folder, _config(folder))
    return partial(unit, wanted=True)


def read_dense(folder: Path) -> Module:
    """Returns a layer with an activation and an optional residual."""
    values = _config(folder)
    _check_on_vectors(folder, values)
    where = f"{folder / CONFIG}: activation_function"
    activation = activation_of(values.get("activation_function", "torch.nn.Tanh"), where)
    tensors = _tensors(folder)
    shape = (values.get("out_features"), values.get("in_features"))
    kernel = _tensor(tensors, "linear.weight", shape).T
    width = (shape[0],)
    has_bias = values.get("bias", True)
    bias = _tensor(tensors, "linear.bias", width) if has_bias else np.zeros(width, np.float32)
    residual = None
    if values.get("use_residual", False):
        square = shape[0] == shape[1]
        residual = np.eye(shape[0], dtype=np.float32)
        residual = residual if square else _tensor(tensors, "residual.weight", shape).T

    def dense(vectors: jax.Array) -> jax.Array:
        out = activation(_product(vectors, kernel) + bias[None])
        return out if residual is None else out + _product(vectors, residual)

    return dense


def read_layer_norm(folder: Path) -> Module:
    """Returns a layer norm with scale and shift."""
    tensors = _tensors(folder)
    width = (_config(folder).get("dimension"),)
    scale, bias = (_tensor(tensors, name, width) for name in ("norm.weight", "norm.bias"))

    def layer_norm(vectors: jax.Array) -> jax.Array:
        centred = vectors - jnp.mean(vectors, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * scale[None] + bias[None]

    return layer_norm


MODULES: dict[str, Callable[[Path], Module]] = {
    "Dense": read_dense,
    "Dropout": lambda folder: lambda vectors: vectors,  # only acts in training
    "LayerNorm": read_layer_norm,
    "Normalize": read_normalize,
}
"""Class of sentence-transformers -> function that reads the module in a folder."""


def _product(vectors: jax.Array, kernel: np.ndarray) -> jax.Array:
    return jnp.matmul(vectors, kernel, precision=jax.lax.Precision.HIGHEST)


def _config(folder: Path) -> dict[str, Any]:
    """Returns the values of a module's config.json; empty for older modules, which lack it."""
    return read_object(folder, CONFIG) or {} if folder.is_dir() else {}


def _check_on_vectors(folder: Path, values: dict[str, Any]) -> None:
    for name in ("module_input_name", "module_output_name"):
        if values.get(name) not in (None, _VECTOR):
            raise ConfigError(
                f"{folder / CONFIG}: {name} = {shortened(values[name])}: must be {_VECTOR!r}: "
                "a vector for each token (ColBERT) is not supported"
            )


def _tensors(folder: Path) -> TensorFiles:
    if file_in(folder, SINGLE) is None and file_in(folder, _PICKLE) is not None:
        raise ConfigError(
            f"{folder}: has {_PICKLE}, a pickle, which can run any code when it is read, but no "
            f"{SINGLE}: convert the whole folder, SentenceTransformer(DIR).save(FOLDER), and name "
            "that FOLDER"
        )
    return TensorFiles(folder, index=None)


def _tensor(tensors: TensorFiles, name: str, shape: tuple[Any, ...]) -> np.ndarray:
    """Reads a tensor of a module as float32."""
    found = tensors.tensors.get(name)
    if found is None or found.shape != shape:
        what = "is missing" if found is None else f"has shape {found.shape}"
        raise ConfigError(
            f"{tensors.folder}: {name} {what}: must have {shape}, as in {CONFIG}; fetch the "
            "folder again"
        )
    return np.asarray(tensors.read(name), np.float32)


def unit(vectors: jax.Array, wanted: bool) -> jax.Array:
    """Returns float32 vectors [B, D], scaled to length 1 if `wanted`."""
    vectors = vectors.astype(jnp.float32)
    if not wanted:
        return vectors
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / jnp.maximum(lengths, 1e-12)
