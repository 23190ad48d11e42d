"""Optimizers as configuration objects: each is a schedule, a weight decay and a direction.

Every update is `-η_t (direction + λ W)`, where the decay λ applies to matrices only, and optionally
to lookup tables (`parameter_roles.is_decayed`); LAMB also scales the sum in parentheses. Gradient
clipping is part of the training step, which reports the norm.
"""

import abc
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from jaxformer.checks import (
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    at_least,
    check_field,
    check_fields,
    check_types,
)
from jaxformer.optim.adafactor import scale_by_adafactor
from jaxformer.optim.parameter_roles import decay_mask, hidden_matrix, map_axes
from jaxformer.optim.scaling import scale_by_depth, scale_by_trust_ratio
from jaxformer.optim.schedules import Cosine, Linear, Schedule


@dataclass(frozen=True)
class Optimizer(abc.ABC):
    """The base class of optimizers: a schedule, a weight decay and a direction."""

    schedule: Schedule = Cosine()
    """Learning rate over the run."""
    weight_decay: float = 0.0
    """Strength of the decoupled weight decay of matrices, times the learning rate."""
    decay_embeddings: bool = field(default=False, kw_only=True)
    """Whether to also decay tables of tokens, positions and token types, as in transformers."""
    layer_decay: float = field(default=1.0, kw_only=True)
    """Ratio of a block's learning rate to the next one's (for fine-tuning, 0.65 to 0.95)."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1")
        check_fields(self, weight_decay=NOT_NEGATIVE)

    def build(self, total_steps: int, axes: Any) -> optax.GradientTransformation:
        """Builds the gradient transformation, with its state in float32.

        Args:
            total_steps: Number of updates in the whole run.
            axes: A tree of the parameters' structure with tuples of logical axis names as leaves.

        Returns:
            The transformation, whose update requires the parameters.

        Raises:
            ConfigError: The schedule does not fit into the run.
        """
        even = self.layer_decay == 1.0
        return optax.chain(
            _in_float32(self.direction(axes)),
            self.decayed(axes),
            optax.identity() if even else scale_by_depth(self.layer_decay),
            optax.scale_by_learning_rate(self.schedule.build(total_steps)),
        )

    @abc.abstractmethod
    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Returns the transformation to the ascent direction, before weight decay and learning
        rate.
        """

    def decayed(self, axes: Any) -> optax.GradientTransformation:
        """Adds weight decay to the direction, before multiplication by the learning rate."""
        mask = decay_mask(axes, self.decay_embeddings)
        return optax.add_decayed_weights(self.weight_decay, mask=mask)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization
        (https://arxiv.org/abs/1711.05101).
    """

    weight_decay: float = 0.1
    """Strength of the decoupled weight decay of matrices, times the learning rate."""
    beta1: float = 0.9
    """Decay of the moving average of gradients."""
    beta2: float = 0.95
    """Decay of the moving average of squared gradients."""
    eps: float = 1e-8
    """Added to the root mean square."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, beta1=RATE, beta2=RATE, eps=POSITIVE)

    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Divides the bias-corrected mean gradient by its bias-corrected root mean square."""
        del axes
        return optax.scale_by_adam(self.beta1, self.beta2, self.eps)


@dataclass(frozen=True)
class LAMB(AdamW):
    """AdamW with updates relative to the norm of each matrix, for very large batches.

    The learning rate is therefore relative too: 1e-2 changes a matrix by one percent.

    References:
        You et al., Large Batch Optimization for Deep Learning (https://arxiv.org/abs/1904.00962).
    """

    schedule: Schedule = Linear(learning_rate=1e-2)
    """Learning rate over the run, relative to the parameters' norm."""
    weight_decay: float = 0.01
    """Strength of the weight decay of matrices, which is part of the update's norm."""
    beta2: float = 0.999
    """Decay of the moving average of squared gradients."""
    eps: float = 1e-6
    """Added to the root mean square."""

    def decayed(self, axes: Any) -> optax.GradientTransformation:
        """Adds weight decay, then applies `scale_by_trust_ratio`."""
        return optax.chain(super().decayed(axes), scale_by_trust_ratio(axes))


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adam-like scaling from factored statistics, with updates relative to the parameters' scale.

    The learning rate is therefore relative too: 1e-2 changes a matrix by about one percent.

    References:
        Shazeer and Stern, Adafactor (https://arxiv.org/abs/1804.04235).
    """

    schedule: Schedule = Linear(learning_rate=1e-2)
    """Learning rate over the run, relative to the parameters' scale."""
    decay_exponent: float = 0.8
    """Exponent c of the decay of mean squares at step t, 1 - t^(-c)."""
    min_dim_size_to_factor: int = 128
    """Matrices with a side shorter than this are not factored."""
    clipping_threshold: float = 1.0
    """Maximum root mean square of an update before it is scaled to the parameter."""
    min_parameter_scale: float = 1e-3
    """Minimum scale of a parameter."""
    eps: float = 1e-30
    """Added to the squared gradient."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, min_dim_size_to_factor=at_least(1), clipping_threshold=POSITIVE)
        check_fields(self, decay_exponent=POSITIVE, min_parameter_scale=POSITIVE, eps=POSITIVE)

    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Applies `scale_by_adafactor` with these constants."""
        return scale_by_adafactor(
            axes,
            decay_exponent=self.decay_exponent,
            min_dim_size_to_factor=self.min_dim_size_to_factor,
            clipping_threshold=self.clipping_threshold,
            min_parameter_scale=self.min_parameter_scale,
            eps=self.eps,
        )


@dataclass(frozen=True)
class Lion(Optimizer):
    """The sign of averaged gradients; needs about a fifth of AdamW's learning rate.

    References: Chen et al., Symbolic Discovery of Optimization Algorithms
        (https://arxiv.org/abs/2302.06675).
    """

    schedule: Schedule = Cosine(learning_rate=6e-5)
    """Learning rate over the run."""
    weight_decay: float = 0.5
    """Strength of the decoupled weight decay of matrices, times the learning rate."""
    beta1: float = 0.9
    """Weight of the moving average relative to the newest gradient in the update."""
    beta2: float = 0.99
    """Decay of the moving average of gradients."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, beta1=RATE, beta2=RATE)

    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Takes the sign of the interpolation between moving average and newest gradient."""
        del axes
        return optax.scale_by_lion(self.beta1, self.beta2)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum and decoupled weight decay."""

    schedule: Schedule = Cosine(learning_rate=1e-1)
    """Learning rate over the run."""
    momentum: float = 0.9
    """Decay of the sum of gradients; 0 disables momentum."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, momentum=RATE)

    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Accumulates the decayed sum of gradients."""
        del axes
        return optax.trace(self.momentum, self.nesterov)


@dataclass(frozen=True)
class Muon(Optimizer):
    r"""Orthogonalized momentum for hidden matrices, AdamW for everything else, with one schedule.

    .. math::
      M_t = \beta M_{t-1} + (1 - \beta) G_t, \qquad
      \Delta_t = r \sqrt{\max(m, n)} \; \mathrm{orthogonal}(M_t), \quad M_t \in R^{m \times n}

    where a few Newton-Schulz iterations approximate the orthogonal factor. A matrix spans all
    inputs and all outputs of one layer, regardless of the number of axes. AdamW is used for lookup
    tables, an untied output head, norms and biases. Updates of matrices are scaled to AdamW's root
    mean square, so AdamW's learning rates carry over.

    References:
        Jordan et al., Muon (https://kellerjordan.github.io/posts/muon);
        Liu et al., Muon is Scalable for LLM Training (https://arxiv.org/abs/2502.16982).
    """

    weight_decay: float = 0.1
    """Strength of the decoupled weight decay of matrices, times the learning rate."""
    momentum: float = 0.95
    """Decay of the moving average of matrix gradients."""
    nesterov: bool = True
    """Whether to use Nesterov momentum for matrices."""
    newton_schulz_steps: int = 5
    """Number of Newton-Schulz iterations."""
    update_rms: float = 0.2
    """Root mean square of a matrix update before multiplication by the learning rate."""
    beta1: float = 0.9
    """AdamW's decay of the moving average of gradients."""
    beta2: float = 0.95
    """AdamW's decay of the moving average of squared gradients."""
    eps: float = 1e-8
    """Added to AdamW's root mean square and to a matrix's norm."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, momentum=RATE, beta1=RATE, beta2=RATE)
        check_fields(self, newton_schulz_steps=at_least(1), update_rms=POSITIVE, eps=POSITIVE)

    def direction(self, axes: Any) -> optax.GradientTransformation:
        """Orthogonalizes the momentum of hidden matrices; applies Adam to the other parameters."""

        def dimension_numbers(path, names):
            sides = hidden_matrix(path, names)
            return MuonDimensionNumbers(*sides) if sides else optax.MaskedNode()

        def scale(x, sides):
            longest = max(math.prod(x.shape[i] for i in side) for side in sides)
            return self.update_rms * math.sqrt(longest) * x

        dimensions = map_axes(dimension_numbers, axes)
        orthogonalise = optax.contrib.scale_by_muon(
            ns_steps=self.newton_schulz_steps,
            beta=self.momentum,
            eps=self.eps,
            nesterov=self.nesterov,
            weight_dimension_numbers=dimensions,
        )
        rescale = optax.stateless(lambda updates, _: jax.tree.map(scale, updates, dimensions))
        transformations = {
            "hidden": optax.chain(_placed_by_compiler(orthogonalise), rescale),
            "other": optax.scale_by_adam(self.beta1, self.beta2, self.eps),
        }
        labels = map_axes(lambda *role: "hidden" if hidden_matrix(*role) else "other", axes)
        return optax.partition(transformations, labels)


def _placed_by_compiler(inner):
    """Lets the compiler choose shardings inside `inner`; results are sharded like inputs."""
    # An iteration contracts sharded axes, and optax cannot specify shardings for an explicit mesh.

    def update(updates, state, params=None):
        if not jax.sharding.get_abstract_mesh().explicit_axes:
            return inner.update(updates, state, params)
        shardings = jax.tree.map(lambda x: jax.typeof(x).sharding, (updates, state))
        automatic = jax.sharding.auto_axes(inner.update, out_sharding=shardings)
        return automatic(updates, state, params)

    return optax.GradientTransformation(inner.init, update)


def _in_float32(inner):
    """Runs `inner` on float32 copies, so that its state is always float32."""

    def wide(tree):
        return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)

    def update(updates, state, params=None):
        return inner.update(wide(updates), state, wide(params))

    return optax.GradientTransformation(lambda params: inner.init(wide(params)), update)
