"""Losses of preferences: TRL's numbers, and what holds for every type."""

from collections import defaultdict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional.losses.preferences import LOSS_TYPES, dpo_loss, kto_loss

SEEDS = st.integers(0, 2**16)
BETAS = st.floats(0.01, 2.0)


def pairs(seed, rows=7):
    """Log-probabilities of answers of different lengths, of a policy and a reference."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 40, (2, rows))
    ref = -lengths * random.uniform(0.5, 6.0, (2, rows))
    policy = ref + random.normal(scale=8.0, size=(2, rows))
    chosen, rejected, ref_chosen, ref_rejected = np.concatenate([policy, ref]).astype(np.float32)
    return (chosen, rejected, ref_chosen, ref_rejected), dict(
        zip(("chosen_lengths", "rejected_lengths"), lengths.astype(np.int32), strict=True)
    )


class Outputs:
    """What a model of transformers returns to TRL: log-probabilities that add up to given ones."""

    def __init__(self, torch, log_probs):
        self.log_probs = log_probs
        self.entropy = self.mean_logits = torch.zeros_like(log_probs)
        self.is_top1 = torch.zeros_like(log_probs, dtype=torch.bool)


def trl_step(kind, outputs, inputs, leaf, **settings):
    """The loss of one of TRL's trainers on the outputs of a model, its gradient, and metrics."""

    class Model:
        training = True

        def __call__(self, **kwargs):
            return outputs()

    class Accelerator:
        device = "cpu"
        gather = gather_for_metrics = staticmethod(lambda x: x)

    trainer = object.__new__(kind)
    vars(trainer).update(
        {
            "model": Model(), "accelerator": Accelerator(), "aux_loss_enabled": False,
            "precompute_ref_logps": True, "_tp_size": 1, "_total_train_tokens": 0,
            "_metrics": {"train": defaultdict(list)}, **settings,
        }
    )  # fmt: skip
    loss = trainer._compute_loss(trainer.model, inputs, return_outputs=False)
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    return loss.item(), leaf.grad.numpy(), metrics


def trl_loss(logps, lengths, loss_type, beta, label_smoothing):
    """The loss of TRL's own DPOTrainer for these numbers, and the gradients of the policy's."""
    torch = pytest.importorskip("torch")
    dpo_trainer = pytest.importorskip("trl.trainer.dpo_trainer")
    rows, most = len(logps[0]), int(max(map(np.max, lengths.values()))) + 1
    flat = np.concatenate(list(lengths.values()))
    mask = torch.tensor((np.arange(most) < flat[:, None]).astype(np.int64))
    mask = torch.cat([torch.zeros(2 * rows, 1, dtype=torch.int64), mask], dim=1)
    sums = torch.tensor(np.concatenate(logps[:2]).astype(np.float64), requires_grad=True)
    # All of an answer's log-probability lies in its first token.
    log_probs = torch.cat([sums[:, None], torch.zeros(2 * rows, most - 1)], dim=1)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": torch.tensor(logps[2].astype(np.float64)),
        "ref_rejected_logps": torch.tensor(logps[3].astype(np.float64)),
    }
    settings = {
        "ld_alpha": None, "f_divergence_type": "reverse_kl", "loss_types": [loss_type],
        "loss_weights": [1.0], "beta": beta, "label_smoothing": label_smoothing,
        "use_weighting": False,
    }  # fmt: skip
    outputs = partial(Outputs, torch, log_probs)
    return trl_step(dpo_trainer.DPOTrainer, outputs, inputs, sums, **settings)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("loss_type", "label_smoothing"),
    [("sigmoid", 0.0), ("robust", 0.2), ("robust", 0.0), ("hinge", 0.0), ("ipo", 0.0)],
)
@pytest.mark.parametrize("beta", [0.03, 0.5])
def test_values_gradients_and_metrics_are_trls(loss_type, label_smoothing, beta):
    logps, lengths = pairs(3)
    expected, gradient, metrics = trl_loss(logps, lengths, loss_type, beta, label_smoothing)
    options = {"beta": beta, "loss_type": loss_type, "label_smoothing": label_smoothing}

    def loss(policy):
        found = dpo_loss(*policy, *logps[2:], **options, **lengths)
        return jnp.mean(found.losses), found

    (value, found), found_gradient = jax.value_and_grad(loss, has_aux=True)(logps[:2])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(found_gradient), gradient, rtol=1e-4, atol=1e-6)
    chosen, rejected = found.chosen_rewards, found.rejected_rewards
    np.testing.assert_allclose(chosen.mean(), metrics["rewards/chosen"], rtol=1e-5)
    np.testing.assert_allclose(rejected.mean(), metrics["rewards/rejected"], rtol=1e-5)
    np.testing.assert_allclose((chosen - rejected).mean(), metrics["rewards/margins"], rtol=1e-5)
    assert (chosen > rejected).mean() == pytest.approx(metrics["rewards/accuracies"])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@given(seed=SEEDS, beta=BETAS, smoothing=st.floats(0.0, 0.45))
def test_a_flipped_pair_has_the_flipped_loss(loss_type, seed, beta, smoothing):
    (chosen, rejected, ref_chosen, ref_rejected), lengths = pairs(seed)
    loss = partial(dpo_loss, beta=beta, loss_type=loss_type)
    plain = loss(chosen, rejected, ref_chosen, ref_rejected, **lengths).losses
    turned = dict(zip(lengths, reversed(lengths.values()), strict=True))
    flipped = loss(rejected, chosen, ref_rejected, ref_chosen, **turned).losses
    smoothed = loss(
        chosen, rejected, ref_chosen, ref_rejected, label_smoothing=smoothing, **lengths
    ).losses
    expected = (1 - smoothing) * plain + smoothing * flipped
    if loss_type == "robust":
        expected = ((1 - smoothing) * plain - smoothing * flipped) / (1 - 2 * smoothing)
    np.testing.assert_allclose(smoothed, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_reference_itself_is_where_training_starts(loss_type):
    (chosen, rejected, _, _), lengths = pairs(0)
    found = dpo_loss(chosen, rejected, chosen, rejected, beta=0.2, loss_type=loss_type, **lengths)
    start = {"sigmoid": np.log(2), "robust": np.log(2), "hinge": 1.0, "ipo": 6.25}[loss_type]
    np.testing.assert_allclose(found.losses, start, rtol=1e-6)
    assert not found.chosen_rewards.any()
    assert not found.rejected_rewards.any()


@given(seed=SEEDS, shift=st.floats(-50, 50))
def test_a_prompts_log_probability_does_not_matter(seed, shift):
    (chosen, rejected, *refs), _ = pairs(seed)
    loss = partial(dpo_loss, beta=0.1)
    expected = loss(chosen, rejected, *refs).losses
    moved = loss(chosen + np.float32(shift), rejected + np.float32(shift), *refs).losses
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-4)


def test_the_reference_gets_no_gradient_and_rewards_pass_none_on():
    logps, lengths = pairs(1)

    def total(logps):
        found = dpo_loss(*logps, beta=0.1, **lengths)
        return jnp.sum(found.losses), jnp.sum(found.chosen_rewards - found.rejected_rewards)

    losses, rewards = jax.jacobian(total)(logps)
    assert all(x.any() for x in losses[:2])
    assert not any(x.any() for x in (*losses[2:], *rewards))


def test_large_margins_are_finite():
    far = jnp.array([1e5, -1e5])
    zeros = jnp.zeros(2)
    for smoothing in (0.0, 0.1):
        loss = partial(dpo_loss, beta=1.0, label_smoothing=smoothing)
        value, gradient = jax.value_and_grad(
            lambda x, loss=loss: jnp.sum(loss(x, -x, zeros, zeros).losses)
        )(far)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_arithmetic_is_in_float32():
    logps, _ = pairs(0)
    half = [jnp.asarray(x, jnp.bfloat16) for x in logps]
    found = dpo_loss(*half, beta=0.1)
    assert all(x.dtype == jnp.float32 for x in found)
    wide = dpo_loss(*[x.astype(jnp.float32) for x in half], beta=0.1)
    np.testing.assert_array_equal(found.losses, wide.losses)


# KTO ----------------------------------------------------------------------------------------------

WEIGHTS = {"desirable_weight": 1.3, "undesirable_weight": 0.7}


def judged(seed, rows=7, towards=0.0):
    """Log-probabilities of answers and of others, of a policy and a reference, and labels."""
    random = np.random.default_rng(seed)
    ref = -random.uniform(1.0, 90.0, (2, rows))
    policy = ref + random.normal(towards, 4.0, (2, rows))
    (own, other), (ref_own, ref_other) = policy.astype(np.float32), ref.astype(np.float32)
    return (own, ref_own, random.random(rows) < 0.5, other, ref_other)


def trl_kto_loss(arrays, beta):
    """The loss of TRL's own KTOTrainer for these numbers, and the gradient of the policy's."""
    torch = pytest.importorskip("torch")
    kto_trainer = pytest.importorskip("trl.trainer.kto_trainer")
    own, ref_own, labels, other, ref_other = arrays
    sums = torch.tensor(own.astype(np.float64), requires_grad=True)
    others = torch.tensor(other.astype(np.float64))
    rows = len(own)
    ids = torch.zeros(rows, 2, dtype=torch.int64)
    mask = torch.tensor([[0, 1]] * rows)
    answers = {"input_ids": ids, "attention_mask": mask, "completion_mask": mask}
    inputs = answers | {
        "label": torch.tensor(labels),
        "ref_logps": torch.tensor(ref_own.astype(np.float64)),
        "ref_KL_logps": torch.tensor(ref_other.astype(np.float64)),
        **{f"KL_{name}": value for name, value in answers.items()},
    }
    calls = iter((others, sums))  # the answers to other prompts are computed first

    settings = {"calculate_KL": True, "loss_type": "kto", "beta": beta, **WEIGHTS}

    def outputs():
        return Outputs(torch, next(calls)[:, None])

    return trl_step(kto_trainer.KTOTrainer, outputs, inputs, sums, **settings)


@pytest.mark.torch
@pytest.mark.parametrize("towards", [-3.0, 3.0])  # the divergence is cut off at 0
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_values_gradients_and_metrics_of_judged_answers_are_trls(beta, towards):
    arrays = judged(5, towards=towards)
    own, ref_own, labels, *others = arrays
    expected, gradient, metrics = trl_kto_loss(arrays, beta)

    def loss(policy):
        found = kto_loss(policy, ref_own, labels, *others, beta=beta, **WEIGHTS)
        return jnp.mean(found.losses), found

    (value, found), found_gradient = jax.value_and_grad(loss, has_aux=True)(own)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(found_gradient, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.divergence, metrics["kl"], rtol=1e-5)
    assert (found.divergence == 0) == (towards < 0)
    for name, chosen in (("chosen", labels), ("rejected", ~labels)):
        mean = found.rewards[chosen].mean()
        np.testing.assert_allclose(mean, metrics[f"rewards/{name}"], rtol=1e-4)


@given(seed=SEEDS, beta=BETAS)
def test_the_loss_falls_with_what_is_desirable_alone(seed, beta):
    own, ref_own, labels, *others = judged(seed)

    def loss(policy, others):
        return kto_loss(policy, ref_own, labels, *others, beta=beta, **WEIGHTS).losses.sum()

    of_own, of_others = jax.grad(loss, argnums=(0, 1))(own, others)
    assert (np.where(labels, of_own, -of_own) <= 0).all()
    assert not np.any(of_others)  # no gradient flows through the divergence


def test_rows_that_fill_a_batch_change_no_divergence():
    arrays = judged(2)
    plain = kto_loss(*arrays, beta=0.2, **WEIGHTS)
    wider = [np.append(x, np.ones(3, x.dtype) * 9) for x in arrays]
    wider[2] = wider[2].astype(bool)
    valid = np.arange(10) < 7
    found = kto_loss(*wider, beta=0.2, **WEIGHTS, valid=valid)
    np.testing.assert_allclose(found.divergence, plain.divergence, rtol=1e-6)
    np.testing.assert_allclose(found.losses[:7], plain.losses, rtol=1e-6)
    none = kto_loss(*wider, beta=0.2, **WEIGHTS, valid=np.zeros(10, bool))
    assert none.divergence == 0
