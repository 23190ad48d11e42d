"""Low-rank adaptation: kernels that learn through the product of two thin matrices."""

import fnmatch
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import RATE, check_field, check_fields, check_types
from jaxformer.errors import ConfigError, closest, did_you_mean
from jaxformer.functional.kernels import Adapted
from jaxformer.models.frozen import frozen_shapes, kernel_in, num_layer_axes, restored, stored
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.nn.layers import normal

FACTORS = (".lora_a", ".lora_b")
"""The suffixes of the factors' names, after that of their kernel."""
ALL_LINEAR = "all-linear"
"""The target that stands for every kernel outside the heads."""

# Runs of older versions have these patterns; models may have no pooler and no head parameters.
_MAY_MATCH_NOTHING = ("heads.*", "pooler.*")
# Keep the factors' random numbers apart from those of the model, which the seed alone decides.
_FACTORS_KEY = 0x4C6F5241
_DROPOUT_KEY = 0x64726F70


@dataclass(frozen=True)
class LoRA:
    r"""Which kernels learn through factors, and what else learns; all other parameters stay.

    .. math:: y = x W + \lambda\, (\mathrm{dropout}(x) A) B, \qquad \lambda = \frac{\alpha}{r}

    W is `[*inputs, *outputs]`, A `[*inputs, r]` and B `[r, *outputs]`. A starts random, with a
    standard deviation of one over the root of the number of inputs, and B at zero, so that
    training starts from the model as it is.

    W is frozen: it has no gradient and no optimizer state, and A B is not computed in training.

    References:
        Hu et al., LoRA (https://arxiv.org/abs/2106.09685);
        Kalajdzievski, rsLoRA (https://arxiv.org/abs/2312.03732);
        Dettmers et al., QLoRA (https://arxiv.org/abs/2305.14314).
    """

    rank: int = 8
    """r, the columns of A and rows of B."""
    alpha: float = 16.0
    """The product of the factors is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("*.query.kernel", "*.value.kernel")
    """The kernels: patterns of their names, names of layers ("query"), or "all-linear"."""
    trained: tuple[str, ...] | None = None
    """Parameters that learn besides the factors, as patterns of their names; None: the heads over
    labels (classification, tags, spans, numbers), as in PEFT, and no head over the vocabulary."""
    exclude: tuple[str, ...] = ()
    """Targets that get no factors after all, in the same form."""
    use_rslora: bool = False
    """Multiply the product by alpha / sqrt(rank): the updates keep their size at high ranks."""
    dropout: float = 0.0
    """Dropout of what the factors read."""
    base_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """The dtype of frozen matrices; "int8": kernels in int8 with a scale for each output, and
    embeddings and heads over the vocabulary in bfloat16."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "rank", self.rank >= 1, "at least 1")
        check_field(self, "alpha", 0 < self.alpha < math.inf, "a positive, finite number")
        check_field(self, "targets", len(self.targets) > 0, "one pattern at least")
        check_fields(self, dropout=RATE)

    @property
    def scale(self) -> float:
        """What multiplies the product of the factors."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


class AbstractLoraModel:
    """A model whose parameters are those of another and the factors of some of its kernels.

    It has the interface of `AbstractModel`. A factor's name is that of its kernel and one of
    `FACTORS`. Parameters that stay have the dtype that `lora.base_dtype` names.
    """

    def __init__(self, base: AbstractModel, lora: LoRA, heads: Collection[str] = ()):
        """Finds the kernels; allocates nothing.

        Args:
            base: The model without factors.
            lora: Its adaptation.
            heads: The names of the heads over labels, which learn whole by default.

        Raises:
            ConfigError: A pattern of `lora` matches no parameter, or a target is no kernel.
        """
        self.base, self.lora = base, lora
        excluded = set(_kernels(base, lora.exclude, "exclude"))
        able = frozenset(base.learning)
        if lora.trained is None:
            owners = tuple(f"heads.{head}." for head in heads)
            besides = [name for name in base.learning if name.startswith(owners)]
            excluded.update(besides)
        else:
            besides = [name for name in _matching(base, lora.trained) if name in able]
        found = _kernels(base, lora.targets, "targets")
        self.targets = tuple(name for name in found if name in able and name not in excluded)
        if not self.targets:
            raise ConfigError(
                f"train.lora.targets = {lora.targets}: must leave a kernel that is not in "
                f"train.lora.exclude = {lora.exclude} and does not learn whole"
            )
        factors = [name + suffix for name in self.targets for suffix in FACTORS]
        self.learning = (*besides, *factors)
        """The names of the parameters that may learn."""
        self.shapes, self.axes = frozen_shapes(base, lora.base_dtype, besides)
        self.kernels, self.largest = base.kernels, base.largest
        for name in self.targets:
            axes, shape = base.axes[name], base.shapes[name].shape
            layers = num_layer_axes(axes)
            inputs = layers + base.kernels[name]
            a = (*axes[:inputs], "rank"), (*shape[:inputs], lora.rank)
            b = (
                (*axes[:layers], "rank", *axes[inputs:]),
                (*shape[:layers], lora.rank, *shape[inputs:]),
            )
            for suffix, (factor_axes, factor_shape) in zip(FACTORS, (a, b), strict=True):
                self.axes[name + suffix] = factor_axes
                self.shapes[name + suffix] = jax.ShapeDtypeStruct(factor_shape, jnp.float32)

    def init(self, key: jax.Array) -> Parameters:
        """Fresh parameters; those of the base model are the same as without factors."""
        parameters: Parameters = {}
        for name, value in self.base.init(key).items():
            parameters |= stored(name, value, self.shapes)
        keys = jax.random.split(jax.random.fold_in(key, _FACTORS_KEY), len(self.targets))
        for name, own_key in zip(self.targets, keys, strict=True):
            a, b = (self.shapes[name + suffix].shape for suffix in FACTORS)
            inputs = math.prod(a[num_layer_axes(self.axes[name]) : -1])
            parameters[name + FACTORS[0]] = normal(inputs**-0.5)(own_key, a)
            parameters[name + FACTORS[1]] = jnp.zeros(b, jnp.float32)
        return parameters

    def module(self, parameters: Parameters, key: jax.Array | None = None) -> nnx.Module:
        """The adapted model with these arrays (or tracers).

        Args:
            parameters: By name.
            key: The key of the factors' dropout; None in evaluation.

        Returns:
            The base model's module, whose targets are `Adapted`.
        """
        kernels = {name: kernel_in(name, parameters) for name in self.base.shapes}
        dropout, scale = self.lora.dropout, self.lora.scale
        for number, name in enumerate(self.targets):
            own_key = None
            if key is not None and dropout:
                own_key = jax.random.fold_in(jax.random.fold_in(key, _DROPOUT_KEY), number)
                if num_layer_axes(self.axes[name]):
                    own_key = jax.random.split(own_key, self.shapes[name].shape[0])
            a, b = (parameters[name + suffix] for suffix in FACTORS)
            kernels[name] = Adapted(kernels[name], a, b, own_key, scale, dropout)
        return self.base.module(kernels)

    def merged(self, parameters: Parameters) -> Parameters:
        """The parameters of an equivalent plain model, with the factors multiplied out.

        Returns:
            The parameters by name; those that are kept in bfloat16 or int8 are in bfloat16.
        """
        plain = {name: restored(name, parameters) for name in self.base.shapes}
        for name in self.targets:
            a, b = (parameters[name + suffix] for suffix in FACTORS)
            plain[name] = adapted(plain[name].astype(jnp.float32), a, b, self.lora.scale)
        return {
            name: value.astype(jnp.promote_types(self.shapes[name].dtype, jnp.bfloat16))
            for name, value in plain.items()
        }


def abstract_model_of(
    config: ModelConfig, lora: LoRA | None = None
) -> AbstractModel | AbstractLoraModel:
    """The structure of a model, with factors if it has an adaptation.

    Args:
        config: The model.
        lora: Its adaptation.

    Returns:
        The structure.

    Raises:
        ConfigError: A pattern of `lora` matches no parameter, or a target is no kernel.
    """
    base = AbstractModel(config.build)
    if lora is None:
        return base
    labels = [head.name for head in config.heads if not head.over_vocabulary]
    return AbstractLoraModel(base, lora, labels)


def adapted(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """The kernel plus the scaled product of its factors; stacked layers each have their own.

    Args:
        kernel: `[*layers, *inputs, *outputs]`.
        a: `[*layers, *inputs, r]`.
        b: `[*layers, r, *outputs]`.
        scale: What multiplies the product.

    Returns:
        The adapted kernel, of the same shape.
    """
    leading = a.ndim + b.ndim - kernel.ndim - 2
    batch = tuple(range(leading))
    product = jax.lax.dot_general(
        a, b, (((a.ndim - 1,), (leading,)), (batch, batch)), precision=jax.lax.Precision.HIGHEST
    )
    return kernel + scale * product


def is_factor(name: str) -> bool:
    """Whether a parameter is a low-rank factor of a kernel."""
    return name.endswith(FACTORS)


def _kernels(base: AbstractModel, patterns: Iterable[str], field: str) -> dict[str, None]:
    """The kernels that patterns of a field of `LoRA` name, in their order."""
    found: dict[str, None] = {}
    for pattern in patterns:
        names = _named(base, pattern)
        others = [name for name in names if name not in base.kernels]
        if others or not names:
            problem = f"{others[0]}, which is no kernel" if others else "no parameter"
            raise ConfigError(
                f"train.lora.{field}: {pattern!r} matches {problem}{_nearest(base, pattern)}"
            )
        found |= dict.fromkeys(names)
    return found


def _named(base: AbstractModel, pattern: str) -> list[str]:
    """The parameters that a pattern of targets names."""
    if pattern == ALL_LINEAR:
        return [name for name in base.kernels if not name.startswith("heads.")]
    if not set("*?[.") & set(pattern) and pattern not in base.shapes:
        pattern = f"*.{pattern}.kernel"
    return [name for name in base.shapes if fnmatch.fnmatchcase(name, pattern)]


def _matching(base: AbstractModel, patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in base.shapes if fnmatch.fnmatchcase(name, pattern)]
        if not names and pattern not in _MAY_MATCH_NOTHING:
            listed = ", ".join(closest(pattern, base.shapes, 3) or list(base.shapes)[:5])
            raise ConfigError(
                f"train.lora.trained: {pattern!r} matches no parameter; there are {listed}, ..."
            )
        found |= dict.fromkeys(names)
    return tuple(found)


def _nearest(base: AbstractModel, pattern: str) -> str:
    """A phrase with the patterns of kernels that are most like one, and all there are."""
    parts = [name.split(".") for name in base.kernels]
    short = dict.fromkeys("*." + ".".join(p[-2:]) if len(p) > 2 else ".".join(p) for p in parts)
    return f"{did_you_mean(pattern, short, 2)}; the kernels are {', '.join(short)}"
