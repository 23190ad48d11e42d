"""Low-rank adaptation: kernels that are trained through the product of two thin matrices."""

import fnmatch
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import RATE, check_field, check_fields, check_types
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.functional.linear import Adapted
from jaxformer.models.frozen import frozen_shapes, module_kernel, restored, stored
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import EXPERT_AXES, AbstractModel, Parameters, matching
from jaxformer.nn.layers import normal, num_layer_axes, num_stacking_axes

FACTORS = (".lora_a", ".lora_b")
"""The suffixes of the factors' names, appended to the kernel's name."""
ALL_LINEAR = "all-linear"
"""The target that selects every kernel outside the heads, experts and routers."""

# Patterns in runs of older versions; models may have no pooler and no head parameters.
_MAY_MATCH_NOTHING = ("heads.*", "pooler.*")
# Separates the factors' random numbers from those of the model, which depend only on the seed.
_FACTORS_KEY = 0x4C6F5241
_DROPOUT_KEY = 0x64726F70


@dataclass(frozen=True)
class LoRA:
    r"""Low-rank adaptation: which kernels get factors, and which other parameters are trained.

    .. math:: y = x W + \lambda\, (\mathrm{dropout}(x) A) B, \qquad \lambda = \frac{\alpha}{r}

    W is `[*inputs, *outputs]`, A `[*inputs, r]` and B `[r, *outputs]`. A is initialized randomly,
    with a standard deviation of one over the square root of the number of inputs, and B with zeros,
    so that training starts from the original model.

    The kernels of experts have factors A `[E, inputs, r]` and B `[E, r, outputs]`, a pair for each.

    W is frozen: it has no gradient and no optimizer state, and A B is not computed in training.

    References:
        Hu et al., LoRA (https://arxiv.org/abs/2106.09685);
        Kalajdzievski, rsLoRA (https://arxiv.org/abs/2312.03732);
        Dettmers et al., QLoRA (https://arxiv.org/abs/2305.14314).
    """

    rank: int = 8
    """r, the number of columns of A and rows of B."""
    alpha: float = 16.0
    """The product of the factors is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("*.query.kernel", "*.value.kernel")
    """The kernels to adapt: patterns of their names, layer names ("query"), or "all-linear", which
    leaves out experts and routers; name those ("gate", "up", "down", "router") in addition."""
    trained: tuple[str, ...] | None = None
    """Patterns of parameters to train in addition to the factors; None selects heads over labels
    (classification, tags, spans, regression), as in PEFT, but no head over the vocabulary.
    """
    exclude: tuple[str, ...] = ()
    """Targets to exclude, in the same form."""
    use_rslora: bool = False
    """Whether to scale by alpha / sqrt(rank), which keeps the scale of updates at high ranks."""
    dropout: float = 0.0
    """Dropout rate of the factors' inputs."""
    base_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """The dtype of frozen matrices; "int8" stores kernels in int8 with a scale per output, and
    embeddings and vocabulary heads in bfloat16.
    """

    def __post_init__(self):
        check_types(self)
        check_field(self, "rank", self.rank >= 1, "at least 1")
        check_field(self, "alpha", 0 < self.alpha < math.inf, "a positive, finite number")
        check_field(self, "targets", len(self.targets) > 0, "at least one pattern")
        check_fields(self, dropout=RATE)

    @property
    def scale(self) -> float:
        """The multiplier of the product of the factors."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


class AbstractLoraModel:
    """A model with low-rank factors for some of its kernels.

    It has the interface of `AbstractModel`. A factor's name is its kernel's name with a suffix from
    `FACTORS`. Frozen parameters have the dtype `lora.base_dtype`.
    """

    def __init__(self, base: AbstractModel, lora: LoRA, heads: Collection[str] = ()):
        """Finds the kernels, without allocating arrays.

        Args:
            base: The model without factors.
            lora: The adaptation.
            heads: The names of the heads over labels, which are fully trained by default.

        Raises:
            ConfigError: A pattern of `lora` matches no parameter, or a target is not a kernel.
        """
        self.base, self.lora = base, lora
        excluded = set(_kernels(base, lora.exclude, "exclude"))
        able = frozenset(base.learning)
        if lora.trained is None:
            owners = tuple(f"heads.{head}." for head in heads)
            trained = [name for name in base.learning if name.startswith(owners)]
            excluded.update(trained)
        else:
            patterns = [
                pattern
                for pattern in lora.trained
                if pattern not in _MAY_MATCH_NOTHING or fnmatch.filter(base.shapes, pattern)
            ]
            found = matching(base.shapes, patterns, "train.lora.trained")
            trained = [name for name in found if name in able]
        found = _kernels(base, lora.targets, "targets")
        self.targets = tuple(name for name in found if name in able and name not in excluded)
        if not self.targets:
            raise ConfigError(
                f"train.lora.targets = {lora.targets}: must select at least one kernel that is "
                f"not in train.lora.exclude = {lora.exclude} and is not fully trained"
            )
        experts = [name for name in self.targets if "expert" in base.axes[name]]
        if experts and lora.dropout:
            raise ConfigError(
                f"train.lora.dropout = {lora.dropout}: must be 0 where experts have factors "
                f"({experts[0]}), as in PEFT; or leave them out of train.lora.targets"
            )
        factors = [name + suffix for name in self.targets for suffix in FACTORS]
        self.learning = (*trained, *factors)
        """The names of the trainable parameters."""
        self.shapes, self.axes = frozen_shapes(base, lora.base_dtype, trained)
        self.kernels, self.largest = base.kernels, base.largest
        for name in self.targets:
            axes, shape = base.axes[name], base.shapes[name].shape
            stacked = num_stacking_axes(axes)
            inputs = stacked + base.kernels[name]
            a = (*axes[:inputs], "rank"), (*shape[:inputs], lora.rank)
            b = (
                (*axes[:stacked], "rank", *axes[inputs:]),
                (*shape[:stacked], lora.rank, *shape[inputs:]),
            )
            for suffix, (factor_axes, factor_shape) in zip(FACTORS, (a, b), strict=True):
                self.axes[name + suffix] = factor_axes
                self.shapes[name + suffix] = jax.ShapeDtypeStruct(factor_shape, jnp.float32)

    def init(self, key: jax.Array) -> Parameters:
        """Initializes the parameters; those of the base model are the same as without factors."""
        parameters: Parameters = {}
        for name, value in self.base.init(key).items():
            parameters |= stored(name, value, self.shapes)
        keys = jax.random.split(jax.random.fold_in(key, _FACTORS_KEY), len(self.targets))
        for name, own_key in zip(self.targets, keys, strict=True):
            a, b = (self.shapes[name + suffix].shape for suffix in FACTORS)
            inputs = math.prod(a[num_stacking_axes(self.axes[name]) : -1])
            parameters[name + FACTORS[0]] = normal(inputs**-0.5)(own_key, a)
            parameters[name + FACTORS[1]] = jnp.zeros(b, jnp.float32)
        return parameters

    def module(self, parameters: Parameters, key: jax.Array | None = None) -> nnx.Module:
        """Returns the base model's module with `Adapted` targets; `key` is that of its dropout."""
        kernels = {name: module_kernel(name, parameters) for name in self.base.shapes}
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
        """Returns the parameters of an equivalent plain model, in at least bfloat16."""
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
    """Returns the structure of a model, with factors if `lora` is given."""
    base = AbstractModel(config.build)
    if lora is None:
        return base
    labels = [head.name for head in config.heads if not head.over_vocabulary]
    return AbstractLoraModel(base, lora, labels)


def adapted(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """Adds the scaled product of its factors to a kernel, separately for each stacked layer.

    Args:
        kernel: `[*layers, *inputs, *outputs]`; `layers` may end with experts.
        a: `[*layers, *inputs, r]`.
        b: `[*layers, r, *outputs]`.
        scale: The multiplier of the product.

    Returns:
        The adapted kernel.
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
    """Returns the kernels that match the patterns of a field of `LoRA`, in order."""
    found: dict[str, None] = {}
    for pattern in patterns:
        names = _named(base, pattern)
        others = [name for name in names if name not in base.kernels]
        if others or not names:
            problem = f"{others[0]}, which is not a kernel" if others else "no parameter"
            raise ConfigError(
                f"train.lora.{field}: {pattern!r} matches {problem}{_nearest(base, pattern)}"
            )
        found |= dict.fromkeys(names)
    return found


def _named(base: AbstractModel, pattern: str) -> list[str]:
    """Returns the parameters that match a target pattern."""
    if pattern == ALL_LINEAR:
        kernels = [name for name in base.kernels if not EXPERT_AXES & set(base.axes[name])]
        return [name for name in kernels if not name.startswith("heads.")]
    if not set("*?[.") & set(pattern) and pattern not in base.shapes:
        pattern = f"*.{pattern}.kernel"
    return [name for name in base.shapes if fnmatch.fnmatchcase(name, pattern)]


def _nearest(base: AbstractModel, pattern: str) -> str:
    """Suggests the most similar kernel patterns, and lists all kernels."""
    parts = [name.split(".") for name in base.kernels]
    short = dict.fromkeys("*." + ".".join(p[-2:]) if len(p) > 2 else ".".join(p) for p in parts)
    return f"{did_you_mean(pattern, short, 2)}; the kernels are {', '.join(short)}"
