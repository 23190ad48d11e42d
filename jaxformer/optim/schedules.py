"""Learning-rate schedules: a linear warm-up, then one of five shapes.

These are not built from `optax.join_schedules`: its pieces round differently, which would change
the parameters of resumed runs.
"""

import abc
import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import optax

from jaxformer.checks import (
    NOT_NEGATIVE,
    PROBABILITY,
    at_least,
    check_field,
    check_fields,
    check_types,
    optional,
)

FEW_STEPS = 10
"""Shorter runs have one update at the peak, regardless of their warm-up."""
_SHORT_WARMUP = 0.1
"""Fraction of a run to warm up if the run is shorter than the warm-up."""


@dataclass(frozen=True)
class Schedule(abc.ABC):
    r"""A linear warm-up from 0 to the peak, then a shape that each subclass defines.

    .. math::
      \eta_t = \eta \cdot \begin{cases} t / w & t < w \\ f(t) & t \ge w \end{cases}

    Step t counts the updates already made, so update number 0 of a warm-up has a learning rate of
    0. After the last step of the run the rate stays constant.
    """

    learning_rate: float = 3e-4
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int | None = 100
    """Number of steps over which the learning rate rises linearly from 0; None uses
    `warmup_fraction`. A shorter run warms up for a tenth of its steps, leaving at least one step at
    the peak.
    """
    warmup_fraction: float = field(default=0.1, kw_only=True)
    """Fraction of the run's steps to warm up if `warmup_steps` is None."""

    def __post_init__(self):
        check_types(self)
        check_fields(
            self,
            learning_rate=NOT_NEGATIVE,
            warmup_steps=optional(at_least(0)),
            warmup_fraction=PROBABILITY,
        )

    def warmup(self, total_steps: int) -> int:
        """Returns the number of warm-up steps in a run of `total_steps`."""
        if self.warmup_steps is None:
            steps = math.ceil(self.warmup_fraction * total_steps)
        elif self.warmup_steps <= total_steps:
            steps = self.warmup_steps
        else:
            steps = math.ceil(_SHORT_WARMUP * total_steps)
        return min(steps, max(total_steps - 1, 0)) if total_steps < FEW_STEPS else steps

    def build(self, total_steps: int) -> optax.Schedule:
        """Builds the learning rate as a function of the step, for a run of `total_steps`.

        Args:
            total_steps: Updates in the whole run.

        Returns:
            A function from the step, an int or an int array `[]`, to a float32 array `[]`.
        """
        warmup = self.warmup(total_steps)
        of_run = self.of_run(warmup, total_steps)

        def schedule(step):
            step = jnp.minimum(jnp.asarray(step, jnp.float32), total_steps)
            rising = step / max(warmup, 1)
            after = jnp.maximum(step, warmup)
            fraction = jnp.where(step < warmup, rising, of_run.shape(after, total_steps))
            return self.learning_rate * fraction

        return schedule

    def of_run(self, warmup: int, total_steps: int) -> "Schedule":
        """Returns the schedule of a run with `warmup` of its `total_steps` as warm-up."""
        del total_steps
        return replace(self, warmup_steps=warmup)

    @abc.abstractmethod
    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Returns f, the fraction of the peak at a float32 `step` `[]` in `[warmup_steps,
        total_steps]`.

        `warmup_steps` is set to the value of this run when it is called.
        """


@dataclass(frozen=True)
class Constant(Schedule):
    """Constant at the peak."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Returns 1 at every step."""
        del total_steps
        return jnp.ones_like(step)


@dataclass(frozen=True)
class _Decaying(Schedule):
    final_fraction: float = 0.0
    """Fraction of the peak at the last step."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, final_fraction=PROBABILITY)

    def _between(self, remaining):
        """Returns the fraction of the peak when a share `remaining`, from 1 to 0, of the decay is
        left.
        """
        return self.final_fraction + (1 - self.final_fraction) * remaining


@dataclass(frozen=True)
class _Falling(_Decaying):
    decay_steps: int | None = None
    """Step at which the decay ends; None uses the last step of the run."""

    def __post_init__(self):
        super().__post_init__()
        fits = self.decay_steps is None or self.decay_steps >= (self.warmup_steps or 0)
        rule = f"at least warmup_steps = {self.warmup_steps}, or None"
        check_field(self, "decay_steps", fits, rule)

    def _progress(self, step, total_steps):
        """Returns the completed fraction of the decay, 0 to 1."""
        end = total_steps if self.decay_steps is None else self.decay_steps
        return jnp.minimum((step - self.warmup_steps) / max(end - self.warmup_steps, 1), 1)


@dataclass(frozen=True)
class Linear(_Falling):
    """Linear decay from the peak to `final_fraction` of it."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Decreases linearly with the completed fraction of the steps after the warm-up."""
        return self._between(1 - self._progress(step, total_steps))


@dataclass(frozen=True)
class Cosine(_Falling):
    r"""Cosine decay from the peak to `final_fraction` of it.

    References:
        Loshchilov and Hutter, SGDR (https://arxiv.org/abs/1608.03983).
    """

    final_fraction: float = 0.1
    """Fraction of the peak at the last step."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Decreases as (1 + cos πp) / 2, where p is the completed fraction of the steps after the
        warm-up.
        """
        return self._between((1 + jnp.cos(jnp.pi * self._progress(step, total_steps))) / 2)


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    r"""Inverse square root decay, independent of the length of the run.

    T5's 1/√max(t, 10⁴) is a `learning_rate` of 0.01 with `constant_steps` of 10,000 and no warm-up.

    References: Vaswani et al., Attention Is All You Need (https://arxiv.org/abs/1706.03762); with a
        separate timescale and a cool-down: Zhai et al., Scaling Vision Transformers
        (https://arxiv.org/abs/2106.04560); constant at first: Raffel et al., section 3.1.2
        (https://arxiv.org/abs/1910.10683).
    """

    timescale: int | None = None
    """Number of decay steps after which the rate is the peak divided by √2; None uses the number of
    steps before the decay.
    """
    constant_steps: int = 0
    """Number of steps at the peak between the warm-up and the decay."""
    cooldown_steps: int = 0
    """Number of final steps over which the rate is additionally decayed linearly to 0."""

    def __post_init__(self):
        super().__post_init__()
        steps = dict.fromkeys(("constant_steps", "cooldown_steps"), at_least(0))
        check_fields(self, timescale=optional(at_least(1)), **steps)
        known = self.timescale is not None or (self.warmup_steps, self.constant_steps) != (0, 0)
        rule = "a number of steps, because it cannot be derived without a warm-up"
        check_field(self, "timescale", known, rule)

    def of_run(self, warmup: int, total_steps: int) -> Schedule:
        """Returns the schedule of a run, with a shorter warm-up and cool-down if it is short."""
        if total_steps >= FEW_STEPS:
            return super().of_run(warmup, total_steps)
        timescale = self.timescale if warmup + self.constant_steps else self.timescale or 1
        cooldown = min(self.cooldown_steps, total_steps - warmup)
        return replace(self, warmup_steps=warmup, timescale=timescale, cooldown_steps=cooldown)

    @property
    def _decay_start(self) -> int:
        return (self.warmup_steps or 0) + self.constant_steps

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """√(s / (max(t - a, 0) + s)) min(1, (T - t) / b).

        Args:
            step: t.
            total_steps: T.

        Returns:
            The fraction of the peak. The decay starts at step a, after the warm-up and the constant
            steps; s is the timescale, and b the number of cool-down steps.
        """
        start = self._decay_start
        timescale = start if self.timescale is None else self.timescale
        root = jnp.sqrt(timescale / (jnp.maximum(step - start, 0) + timescale))
        if not self.cooldown_steps:
            return root
        return root * jnp.minimum((total_steps - step) / self.cooldown_steps, 1)


@dataclass(frozen=True)
class WarmupStableDecay(_Decaying):
    """Constant at the peak for most of the run, then linear decay to `final_fraction` of it.

    References:
        Hu et al., MiniCPM (https://arxiv.org/abs/2404.06395).
    """

    decay_fraction: float = 0.2
    """Fraction of the whole run, at its end, over which the learning rate decays."""

    def __post_init__(self):
        super().__post_init__()
        within = 0 < self.decay_fraction <= 1
        check_field(self, "decay_fraction", within, "a number above 0, up to 1")

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Returns 1, then decreases over the last `decay_fraction` of the steps or all after the
        warm-up.
        """
        decay_steps = min(self.decay_fraction * total_steps, total_steps - self.warmup_steps)
        remaining = (total_steps - step) / max(decay_steps, 1)
        return self._between(jnp.minimum(remaining, 1))
