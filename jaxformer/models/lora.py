"""Low-rank adaptation: kernels that learn through the product of two thin matrices."""

import fnmatch
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError, check_field, closest, did_you_mean
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.nn.layers import normal

FACTORS = (".lora_a", ".lora_b")
"""The suffixes of the factors' names, after that of their kernel."""

# These patterns may match nothing: models may have no pooler and no head parameters.
_TRAINED = ("heads.*", "pooler.*")
# Keeps the factors' random numbers apart from those of the model, which the seed alone decides.
_FACTORS_KEY = 0x4C6F5241


@dataclass(frozen=True)
class LoRA:
    r"""Which kernels learn through factors, and what else learns; all other parameters stay.

    .. math:: W' = W + \frac{\alpha}{r} A B

    W is `[*inputs, *outputs]`, A `[*inputs, r]` and B `[r, *outputs]`. A starts random, with a
    standard deviation of one over the root of the number of inputs, and B at zero, so that
    training starts from the model as it is.

    The sum is taken in each step: memory for gradients and moments of the adapted kernels is that
    of a full copy and of the factors alone, respectively.

    References:
        Hu et al., LoRA (https://arxiv.org/abs/2106.09685).
    """

    rank: int = 8
    """r, the columns of A and rows of B."""
    alpha: float = 16.0
    """The product of the factors is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("*.query.kernel", "*.value.kernel")
    """The kernels, as patterns of their names."""
    trained: tuple[str, ...] = _TRAINED
    """Parameters that learn besides, as patterns of their names."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "rank", self.rank >= 1, "at least 1")
        check_field(self, "alpha", 0 < self.alpha < math.inf, "a positive, finite number")
        check_field(self, "targets", len(self.targets) > 0, "one pattern at least")

    @property
    def scale(self) -> float:
        """What multiplies the product of the factors."""
        return self.alpha / self.rank


class AbstractLoraModel:
    """A model whose parameters are those of another and the factors of some of its kernels.

    It has the interface of `AbstractModel`. A factor's name is that of its kernel and one of
    `FACTORS`.
    """

    def __init__(self, base: AbstractModel, lora: LoRA):
        """Finds the kernels; allocates nothing.

        Raises:
            ConfigError: A pattern of `lora` matches no parameter, or a target is no kernel.
        """
        self.base, self.lora = base, lora
        self.targets = _targets(base, lora.targets)
        factors = [name + suffix for name in self.targets for suffix in FACTORS]
        able = frozenset(base.learning)
        besides = (name for name in _matching(base, lora.trained) if name in able)
        self.learning = (*besides, *factors)
        """The names of the parameters that may learn."""
        self.shapes, self.axes, self.kernels = dict(base.shapes), dict(base.axes), base.kernels
        for name in self.targets:
            axes, shape = base.axes[name], base.shapes[name].shape
            layers = _leading(axes)
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
        parameters = self.base.init(key)
        keys = jax.random.split(jax.random.fold_in(key, _FACTORS_KEY), len(self.targets))
        for name, own_key in zip(self.targets, keys, strict=True):
            a, b = (self.shapes[name + suffix].shape for suffix in FACTORS)
            inputs = math.prod(a[_leading(self.axes[name]) : -1])
            parameters[name + FACTORS[0]] = normal(inputs**-0.5)(own_key, a)
            parameters[name + FACTORS[1]] = jnp.zeros(b, jnp.float32)
        return parameters

    def module(self, parameters: Parameters) -> nnx.Module:
        """The adapted model with these arrays (or tracers)."""
        return self.base.module(self.merged(parameters))

    def merged(self, parameters: Parameters) -> Parameters:
        """The parameters of an equivalent plain model: factors are multiplied out."""
        plain = {name: parameters[name] for name in self.base.shapes}
        for name in self.targets:
            a, b = (parameters[name + suffix] for suffix in FACTORS)
            plain[name] = adapted(parameters[name], a, b, self.lora.scale)
        return plain


def adapted(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """The kernel plus the scaled product of its factors; stacked layers each have their own.

    Args:
        kernel: `[*layers, *inputs, *outputs]`.
        a: `[*layers, *inputs, r]`.
        b: `[*layers, r, *outputs]`.
        scale: Alpha / r.

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


def _leading(axes: tuple[str, ...]) -> int:
    return int(axes[0] == "layers")


def _targets(base: AbstractModel, patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in base.shapes if fnmatch.fnmatchcase(name, pattern)]
        others = [name for name in names if name not in base.kernels]
        if others or not names:
            problem = f"{others[0]}, which is no kernel" if others else "no parameter"
            raise ConfigError(
                f"train.lora.targets: {pattern!r} matches {problem}{_nearest(base, pattern)}"
            )
        found |= dict.fromkeys(names)
    return tuple(found)


def _matching(base: AbstractModel, patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in base.shapes if fnmatch.fnmatchcase(name, pattern)]
        if not names and pattern not in _TRAINED:
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
