"""Learning rate as a function of the step: a linear warm-up, then one of five shapes.

These are not built from `optax.join_schedules`: its pieces round differently, which would change
the parameters of runs that are continued.
"""

import abc
import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import optax

from jaxformer.checks import check_field, check_types

FEW_STEPS = 10
"""A run of fewer updates has one at the peak, whatever its warm-up."""
_SHORT_WARMUP = 0.1
"""Share of a run that warms up, where the run is shorter than the warm-up."""


@dataclass(frozen=True)
class Schedule(abc.ABC):
    r"""A linear warm-up from 0 to the peak, then a shape that each subclass defines.

    .. math::
      \eta_t = \eta \cdot \begin{cases} t / w & t < w \\ f(t) & t \ge w \end{cases}

    Step t counts the updates already made, so update number 0 of a warm-up has a learning rate
    of 0. After the last step of the run the rate stays where it ended.
    """

    learning_rate: float = 3e-4
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int | None = 100
    """Steps over which the learning rate rises linearly from 0; None: `warmup_fraction` of the run.
    A tenth of a run that is shorter, and never all of a run of fewer than ten steps."""
    warmup_fraction: float = field(default=0.1, kw_only=True)
    """Share of the run's steps that warm up, where `warmup_steps` is None."""

    def __post_init__(self):
        check_types(self)
        if not 0 <= self.learning_rate < math.inf:
            self._refuse("learning_rate", "0 or more")
        if self.warmup_steps is not None and self.warmup_steps < 0:
            self._refuse("warmup_steps", "0 or more steps, or None")
        if not 0 <= self.warmup_fraction <= 1:
            self._refuse("warmup_fraction", "a number from 0 to 1")

    def warmup(self, total_steps: int) -> int:
        """Returns the steps of the warm-up in a run of `total_steps`."""
        if self.warmup_steps is None:
            steps = math.ceil(self.warmup_fraction * total_steps)
        elif self.warmup_steps <= total_steps:
            steps = self.warmup_steps
        else:
            steps = math.ceil(_SHORT_WARMUP * total_steps)
        return min(steps, max(total_steps - 1, 0)) if total_steps < FEW_STEPS else steps

    def build(self, total_steps: int) -> optax.Schedule:
        """The learning rate as a function of the step, for a run of `total_steps`.

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
        """Returns the schedule of a run, whose warm-up has `warmup` of its `total_steps`."""
        del total_steps
        return replace(self, warmup_steps=warmup)

    @abc.abstractmethod
    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """f: the fraction of the peak at a float32 `step` `[]` in `[warmup_steps, total_steps]`.

        `warmup_steps` is the number of this run when it is called.
        """

    def _refuse(self, field, expected):
        check_field(self, field, False, expected)


@dataclass(frozen=True)
class Constant(Schedule):
    """The peak until the end."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """1 at every step."""
        del total_steps
        return jnp.ones_like(step)


@dataclass(frozen=True)
class _Decaying(Schedule):
    final_fraction: float = 0.0
    """Fraction of the peak at the last step."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.final_fraction <= 1:
            self._refuse("final_fraction", "a number from 0 to 1")

    def _between(self, remaining):
        """The fraction of the peak with `remaining`, 1 to 0, of the decay still to go."""
        return self.final_fraction + (1 - self.final_fraction) * remaining


@dataclass(frozen=True)
class _Falling(_Decaying):
    decay_steps: int | None = None
    """Step at which it has fallen, to stay there; None: the last of the run."""

    def __post_init__(self):
        super().__post_init__()
        if self.decay_steps is not None and self.decay_steps < (self.warmup_steps or 0):
            self._refuse("decay_steps", f"at least warmup_steps = {self.warmup_steps}, or None")

    def _progress(self, step, total_steps):
        """The share of the decay that is done, 0 to 1."""
        end = total_steps if self.decay_steps is None else self.decay_steps
        return jnp.minimum((step - self.warmup_steps) / max(end - self.warmup_steps, 1), 1)


@dataclass(frozen=True)
class Linear(_Falling):
    """A straight line from the peak to `final_fraction` of it."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Falls with the share of the steps after the warm-up that are done."""
        return self._between(1 - self._progress(step, total_steps))


@dataclass(frozen=True)
class Cosine(_Falling):
    r"""Half a period of a cosine from the peak to `final_fraction` of it.

    References:
        Loshchilov and Hutter, SGDR (https://arxiv.org/abs/1608.03983).
    """

    final_fraction: float = 0.1
    """Fraction of the peak at the last step."""

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """Falls as (1 + cos πp) / 2 with p the share of the steps after the warm-up."""
        return self._between((1 + jnp.cos(jnp.pi * self._progress(step, total_steps))) / 2)


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    r"""The square root of the ratio of a timescale to the steps done, whatever the run's length.

    T5's 1/√max(t, 10⁴) is a `learning_rate` of 0.01 with `constant_steps` of 10,000 and no warm-up.

    References:
        Vaswani et al., Attention Is All You Need (https://arxiv.org/abs/1706.03762); with a
        timescale of its own and a cool-down: Zhai et al., Scaling Vision Transformers
        (https://arxiv.org/abs/2106.04560); constant at first: Raffel et al., section 3.1.2
        (https://arxiv.org/abs/1910.10683).
    """

    timescale: int | None = None
    """Steps of decay after which the rate is the peak over √2; None for as many as come before."""
    constant_steps: int = 0
    """Steps at the peak between the warm-up and the decay."""
    cooldown_steps: int = 0
    """Steps at the end of the run over which the rate is besides multiplied by a line to 0."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("constant_steps", "cooldown_steps"):
            if getattr(self, name) < 0:
                self._refuse(name, "0 or more steps")
        if self.timescale is None and self.warmup_steps == self.constant_steps == 0:
            self._refuse("timescale", "a number of steps, because there is no warm-up to give it")
        if self.timescale is not None and self.timescale < 1:
            self._refuse("timescale", "1 step or more")

    def of_run(self, warmup: int, total_steps: int) -> Schedule:
        """Returns the schedule of a run, in which a short cool-down and decay leave a peak."""
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
            The share of the peak. The decay starts at step a, after the warm-up and the constant
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
    """The peak for most of the run, then a straight line to `final_fraction` of it.

    References:
        Hu et al., MiniCPM (https://arxiv.org/abs/2404.06395).
    """

    decay_fraction: float = 0.2
    """Share of the whole run, at its end, over which the learning rate falls."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.decay_fraction <= 1:
            self._refuse("decay_fraction", "a number above 0, up to 1")

    def shape(self, step: jax.Array, total_steps: int) -> jax.Array:
        """1, then falls over the last `decay_fraction` of the steps or all after the warm-up."""
        decay_steps = min(self.decay_fraction * total_steps, total_steps - self.warmup_steps)
        remaining = (total_steps - step) / max(decay_steps, 1)
        return self._between(jnp.minimum(remaining, 1))
