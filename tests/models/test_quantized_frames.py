"""The head of wav2vec 2.0's pre-training: its loss in training, and its schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.functional.dropout import split
from jaxformer.functional.losses.terms import collect_terms
from jaxformer.models import QuantizedFrames
from jaxformer.models.heads.base import LossOptions
from jaxformer.models.heads.quantized import codes_in_use
from jaxformer.pretrained.auto import load

QUIET = {
    "mask_time_prob": 0.65,
    "mask_time_length": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "feat_quantizer_dropout": 0.0,
    "layerdrop": 0.0,
}
"""No randomness but the Gumbel noise."""


def test_the_temperature_falls_to_the_lowest():
    head = QuantizedFrames(gumbel_temperature=2.0, gumbel_decay=0.9, min_gumbel_temperature=0.5)
    steps = jnp.array([0, 1, 5, 100])
    expected = [2.0, 1.8, 2 * 0.9**5, 0.5]
    np.testing.assert_allclose(head.temperature_at(steps), expected, rtol=1e-6)


def test_codes_in_use_of_the_frames_that_count():
    logits = np.random.default_rng(0).normal(size=(2, 3, 2, 5))
    chosen = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    weights = np.array([[1, 0, 1], [0, 1, 0]])
    mean = chosen[weights > 0].mean(0)
    expected = np.exp(-(mean * np.log(mean)).sum(-1))
    np.testing.assert_allclose(codes_in_use(chosen, weights), expected, rtol=1e-6)
    # One code of each codebook, and none where no frame counts.
    np.testing.assert_allclose(codes_in_use(np.eye(5)[[[[0, 3]]]], np.ones((1, 1))), [1, 1])
    np.testing.assert_allclose(codes_in_use(chosen, 0 * weights), [1, 1])


@pytest.mark.torch
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.quick("False")
def test_the_loss_of_a_step_is_that_of_transformers(stable, tmp_path, monkeypatch):
    """With the same masks, negatives and Gumbel noise, in training."""
    import torch
    import transformers

    from jaxformer.data.tasks.sounds.masked import masked_spans, sampled_negatives

    changes = {"do_stable_layer_norm": stable, "num_negatives": 7, **QUIET}
    ours = load(save_tiny("wav2vec2", tmp_path, "PreTraining", **changes))
    head, rng = ours.model.heads["quantized_frames"], np.random.default_rng(0)
    waveforms = rng.standard_normal((3, 131)).astype(np.float32)
    frames = ours.config.features.num_frames(131)
    masked = np.stack(
        [masked_spans(rng, frames, probability=0.65, span=2, min_spans=2) for _ in range(3)]
    )
    negatives = np.stack([sampled_negatives(rng, row, 7) for row in masked])
    key, step = jax.random.key(3), jnp.int32(400_000)
    temperature = float(head.head.temperature_at(step))
    assert temperature == pytest.approx(0.5)

    _, own_key = split(key, 2)
    shape = (3, frames, head.head.num_codebooks, head.head.codes)
    noise = torch.tensor(np.asarray(jax.random.gumbel(own_key, shape)).reshape(-1, shape[-1]))

    def gumbel_softmax(logits, tau, hard):
        soft = ((logits + noise) / tau).softmax(-1)
        hard = torch.nn.functional.one_hot(soft.argmax(-1), soft.shape[-1])
        # The original adds in another order, so that rounding tells equal codes apart.
        return hard + (soft - soft.detach())

    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", gumbel_softmax)
    theirs = transformers.Wav2Vec2ForPreTraining.from_pretrained(tmp_path).train()
    theirs.quantizer.temperature = temperature
    offsets = np.arange(3)[:, None, None] * frames
    found = theirs(
        torch.tensor(waveforms),
        mask_time_indices=torch.tensor(masked),
        sampled_negative_indices=torch.tensor(negatives + offsets),
    )
    found.loss.backward()
    batch = {"waveforms": waveforms, "masked": masked, "negatives": negatives}

    def loss(parameters):
        model = ours.abstract_model.module(parameters)
        outputs = model.outputs(batch)
        own = model.heads["quantized_frames"]
        sums, terms = collect_terms(own.loss)(outputs, batch, LossOptions(step=step), key)
        return sums.loss, (sums, terms)

    gradient, (sums, terms) = jax.jit(jax.grad(loss, has_aux=True))(ours.parameters)
    count = float(masked.sum())
    assert float(sums.weight) == count
    assert float(sums.loss) / count == pytest.approx(float(found.loss.detach()) / count, abs=2e-5)
    perplexities = [float(terms["metric", f"perplexity_{n}"]) for n in (1, 2)]
    assert sum(perplexities) == pytest.approx(float(found.codevector_perplexity), abs=2e-4)
    assert float(terms["metric", "gumbel_temperature"]) == pytest.approx(temperature)
    for name, own in (
        ("project_q.weight", "heads.quantized_frames.quantized.kernel"),
        ("project_hid.bias", "heads.quantized_frames.states.bias"),
        ("quantizer.weight_proj.bias", "heads.quantized_frames.quantizer.scores.bias"),
        ("wav2vec2.masked_spec_embed", "mask_vector"),
    ):
        wanted = theirs.get_parameter(name).grad.numpy() / count
        value = np.asarray(gradient[own]) / count
        value = value.T if value.ndim == 2 and name.endswith(".weight") else value
        np.testing.assert_allclose(value.ravel(), wanted.ravel(), atol=2e-5, err_msg=name)
