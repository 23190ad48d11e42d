"""Preference losses: pairs of answers, or rated answers, under a policy and a reference."""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, RATE, Rule
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    assert_integers,
    check_choice,
    check_numbers,
    static,
)

LossType = Literal["sigmoid", "robust", "hinge", "ipo"]
LOSS_TYPES: tuple[LossType, ...] = get_args(LossType)
FLIP_RATE = Rule(lambda value: RATE.allows(value) and value < 0.5, "a number from 0 to below 0.5")
"""The allowed `label_smoothing`; at 0.5 preferences carry no information."""


class PreferenceLosses(NamedTuple):
    """The results of `dpo_loss`, each float32 `[B]`."""

    losses: jax.Array
    chosen_rewards: jax.Array
    """beta times the log-ratio of the chosen answer; no gradient flows through it."""
    rejected_rewards: jax.Array
    """beta times the log-ratio of the rejected answer; no gradient flows through it."""


def dpo_loss(
    chosen_logps: jax.Array,
    rejected_logps: jax.Array,
    ref_chosen_logps: jax.Array,
    ref_rejected_logps: jax.Array,
    *,
    beta: float,
    loss_type: LossType = "sigmoid",
    label_smoothing: float = 0.0,
    chosen_lengths: jax.Array | None = None,
    rejected_lengths: jax.Array | None = None,
) -> PreferenceLosses:
    r"""Direct preference optimisation: the policy learns which of two answers to prefer.

    .. math::
      \ell = (1 - \varepsilon)\, \varphi(\Delta) + \varepsilon\, \varphi(-\Delta), \qquad
      \Delta = \log \frac{\pi(y_w)}{\pi_{ref}(y_w)} - \log \frac{\pi(y_l)}{\pi_{ref}(y_l)}

    The types differ in the shape of :math:`\varphi`:

    - sigmoid: :math:`-\log \sigma(\beta \Delta)`. DPO; with :math:`\varepsilon` conservative DPO.
    - robust: the same, with :math:`\ell = ((1 - \varepsilon)\, \varphi(\Delta) - \varepsilon\,
      \varphi(-\Delta)) / (1 - 2 \varepsilon)`, which label noise does not bias.
    - hinge: :math:`\max(0, 1 - \beta \Delta)`, as in SLiC-HF.
    - ipo: :math:`(\Delta - 1 / (2 \beta))^2`, where the log-ratios are means over the tokens.

    Arithmetic is in float32. The rewards are :math:`\beta \log (\pi(y) / \pi_{ref}(y))` in every
    type.

    Args:
        chosen_logps: `[B]`: the log-probability of the chosen answer, summed over its tokens.
        rejected_logps: `[B]`: the log-probability of the rejected answer.
        ref_chosen_logps: `[B]`: the reference's log-probability of the chosen answer; no gradient
            flows to it.
        ref_rejected_logps: `[B]`: the reference's of the rejected answer.
        beta: The strength of the regularization towards the reference; IPO's paper calls it tau.
        loss_type: The loss function, see above.
        label_smoothing: The probability that the labels of a preference pair are flipped, below
            0.5.
        chosen_lengths: `[B]`: the tokens of the chosen answer; "ipo" needs them.
        rejected_lengths: `[B]`: the tokens of the rejected answer; "ipo" needs them.

    Returns:
        The loss of each pair, and the rewards of its answers.

    Raises:
        AssertionError: The arrays differ in shape, or are not floating-point.
        ArgumentError: A number is out of its range, the type is unknown, or "ipo" has no lengths.

    References:
        Rafailov et al., Direct Preference Optimization (https://arxiv.org/abs/2305.18290);
        Mitchell, A note on DPO with noisy preferences (https://ericmitchell.ai/cdpo.pdf);
        Chowdhury et al., Provably Robust DPO (https://arxiv.org/abs/2403.00409);
        Zhao et al., SLiC-HF (https://arxiv.org/abs/2305.10425);
        Azar et al., A General Theoretical Paradigm to Understand Learning from Human Preferences
        (https://arxiv.org/abs/2310.12036).
    """
    check_numbers(beta=(beta, POSITIVE))
    flipped = static("label_smoothing", label_smoothing, FLIP_RATE)
    check_choice("loss_type", loss_type, LOSS_TYPES)
    logps = {
        "chosen_logps": chosen_logps,
        "rejected_logps": rejected_logps,
        "ref_chosen_logps": ref_chosen_logps,
        "ref_rejected_logps": ref_rejected_logps,
    }
    assert_axes(**{name: (array, "B") for name, array in logps.items()})
    assert_floating(**logps)
    policy_w, policy_l, ref_w, ref_l = (x.astype(jnp.float32) for x in logps.values())
    chosen = policy_w - jax.lax.stop_gradient(ref_w)
    rejected = policy_l - jax.lax.stop_gradient(ref_l)
    rewards = jax.lax.stop_gradient((beta * chosen, beta * rejected))
    if loss_type == "ipo":
        chosen = chosen / _lengths("chosen_lengths", chosen_lengths, chosen)
        rejected = rejected / _lengths("rejected_lengths", rejected_lengths, rejected)
    margins = chosen - rejected
    right, wrong = (_SHAPES[loss_type](beta, signed) for signed in (margins, -margins))
    if loss_type == "robust":
        losses = ((1 - flipped) * right - flipped * wrong) / (1 - 2 * flipped)
    else:
        losses = (1 - flipped) * right + flipped * wrong
    return PreferenceLosses(losses, *rewards)


class KTOLosses(NamedTuple):
    """The results of `kto_loss`."""

    losses: jax.Array
    """float32 `[B]`."""
    rewards: jax.Array
    """float32 `[B]`, beta times the log-ratio of each answer; no gradient flows through it."""
    divergence: jax.Array
    """float32, the estimate of the divergence between policy and reference."""


def kto_loss(
    logps: jax.Array,
    ref_logps: jax.Array,
    desirable: jax.Array,
    other_logps: jax.Array,
    ref_other_logps: jax.Array,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
    valid: jax.Array | None = None,
) -> KTOLosses:
    r"""Kahneman-Tversky optimisation: the policy learns which answers are desirable.

    .. math::
      \ell = \begin{cases}
        \lambda_D\, (1 - \sigma(\beta (r - z))) & \text{for a desirable answer} \\
        \lambda_U\, (1 - \sigma(\beta (z - r))) & \text{for an undesirable one}
      \end{cases}

    with :math:`r = \log (\pi(y \mid x) / \pi_{ref}(y \mid x))` and the divergence
    :math:`z = \max(0, \operatorname{mean} \log (\pi(y' \mid x) / \pi_{ref}(y' \mid x)))`. The mean
    is over the rows, and :math:`y'` is the answer to another prompt. No gradient flows through z.
    Arithmetic is in float32.

    Args:
        logps: `[B]`: the log-probability of each answer, summed over its tokens.
        ref_logps: `[B]`: the reference's log-probability; no gradient flows to it.
        desirable: Boolean `[B]`: whether an answer is desirable.
        other_logps: `[B]`: the log-probability of the answer to another prompt; no gradient flows
            to it.
        ref_other_logps: `[B]`: the reference's log-probability of that answer; no gradient flows to
            it.
        beta: The strength of the regularization towards the reference.
        desirable_weight: The weight :math:`\lambda_D` of desirable answers.
        undesirable_weight: The weight :math:`\lambda_U` of undesirable answers.
        valid: Boolean `[B]`: rows that count for z; None means all.

    Returns:
        The loss and the reward of each answer, and z.

    Raises:
        AssertionError: The arrays differ in shape or have the wrong dtype.
        ArgumentError: A number is out of its range.

    References:
        Ethayarajh et al., KTO: Model Alignment as Prospect Theoretic Optimization
        (https://arxiv.org/abs/2402.01306), equations 7 and 8.
    """
    check_numbers(
        beta=(beta, POSITIVE),
        desirable_weight=(desirable_weight, NOT_NEGATIVE),
        undesirable_weight=(undesirable_weight, NOT_NEGATIVE),
    )
    arrays = {
        "logps": logps,
        "ref_logps": ref_logps,
        "other_logps": other_logps,
        "ref_other_logps": ref_other_logps,
    }
    masks = {"desirable": desirable} | ({} if valid is None else {"valid": valid})
    assert_axes(**{name: (array, "B") for name, array in (arrays | masks).items()})
    assert_floating(**arrays)
    assert_bool(**masks)
    policy, ref, other, ref_other = (x.astype(jnp.float32) for x in arrays.values())
    ratios = policy - jax.lax.stop_gradient(ref)
    counted = jnp.ones_like(ratios) if valid is None else valid.astype(jnp.float32)
    total = jnp.sum(jax.lax.stop_gradient(other - ref_other) * counted)
    divergence = jnp.maximum(total / jnp.maximum(jnp.sum(counted), 1.0), 0.0)
    margins = jnp.where(desirable, 1.0, -1.0) * (ratios - divergence)
    weights = jnp.where(desirable, desirable_weight, undesirable_weight)
    losses = weights * jax.nn.sigmoid(-beta * margins)
    return KTOLosses(losses, jax.lax.stop_gradient(beta * ratios), divergence)


def _sigmoid(beta: float, margins: jax.Array) -> jax.Array:
    return -jax.nn.log_sigmoid(beta * margins)


_SHAPES = {
    "sigmoid": _sigmoid,
    "robust": _sigmoid,
    "hinge": lambda beta, margins: jax.nn.relu(1 - beta * margins),
    "ipo": lambda beta, margins: jnp.square(margins - 1 / (2 * beta)),
}


def _lengths(name: str, lengths: jax.Array | None, like: jax.Array) -> jax.Array:
    """Returns the number of tokens of each answer, at least 1."""
    if lengths is None:
        raise ArgumentError(
            f'{name} = None: must be the lengths of the answers for loss_type = "ipo"'
        )
    assert_axes(**{name: (lengths, str(like.shape[0]))})
    assert_integers(**{name: lengths})
    return jnp.maximum(lengths.astype(jnp.float32), 1.0)
