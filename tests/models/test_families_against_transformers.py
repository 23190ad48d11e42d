"""Encoders, encoder-decoders, vision: the scores, losses and gradients of transformers' models."""

from functools import partial

import hf_mapping
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_batches import batch_of, their_arguments, their_scores, what_counts
from hf_cases import CASES, WITHOUT_MASK

from jaxformer.models import EncoderDecoderConfig, Template, build_model
from jaxformer.models.heads import DEFAULT_OPTIONS

STD = 0.15


# Compilation is what these tests take their time for.
@partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def scores_loss_gradients(config, parameters, batch, weights):
    """Scores, the sum of the mean losses, and the gradient of the weighted sum of the scores."""
    template = Template(partial(build_model, config=config))

    def total(parameters):
        model = template.module(parameters)
        states = model.states(batch)
        heads = model.heads.values()
        scores = [head.scores(states) for head in heads]
        losses = [head.sums(states, batch, DEFAULT_OPTIONS, None) for head in heads]
        return sum(map(jnp.vdot, scores, weights)), (scores, losses)

    gradients, (scores, losses) = jax.grad(total, has_aux=True)(parameters)
    return scores, sum(sums.loss / sums.weight for sums in losses), gradients


def random_model(case):
    """Their model with random parameters, all of its own, and these by name."""
    import torch

    model = hf_mapping.random_model(case.model_class, case.theirs, STD)
    theirs = hf_mapping.tensors(model)
    if not getattr(case.ours, "tie_embeddings", True):
        size = (case.ours.vocab_size, case.ours.model_dim)
        model.lm_head.weight = theirs["lm_head.weight"] = torch.nn.Parameter(
            torch.randn(*size) * STD
        )
    return model, theirs


def assert_equal_to_theirs(case, batch):
    import torch

    model, theirs = random_model(case)
    outputs = case.run(model, their_arguments(case, batch))
    their = their_scores(case, outputs)

    # Only real tokens count: what a padded query sees is anyone's choice.
    counts = what_counts(case, batch)
    random = np.random.default_rng(1)
    weights = [
        (random.normal(size=scores.shape) * count).astype(np.float32)
        for scores, count in zip(their, counts, strict=True)
    ]
    total = sum((scores * torch.tensor(w)).sum() for scores, w in zip(their, weights, strict=True))
    their_gradients = torch.autograd.grad(total, theirs.values(), retain_graph=True)
    their_gradients = {n: g.numpy() for n, g in zip(theirs, their_gradients, strict=True)}

    shapes = Template(partial(build_model, config=case.ours)).shapes
    mapped = hf_mapping.our_parameters(case.ours, case.names, theirs, shapes)
    ours = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in mapped.items()}
    scores, loss, gradients = scores_loss_gradients(case.ours, ours, batch, weights)
    for name, actual, expected, count in zip(case.scores, scores, their, counts, strict=True):
        expected = expected.detach().numpy()
        hf_mapping.assert_close(np.where(count, actual, 0), np.where(count, expected, 0), name)
    assert float(loss) == pytest.approx(outputs.loss.item(), rel=2e-5)
    back = hf_mapping.their_gradients(mapped, theirs, gradients)
    hf_mapping.assert_gradients_close(back, their_gradients)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_scores_losses_and_the_gradient_of_every_parameter(case):
    assert_equal_to_theirs(case, batch_of(case))


@pytest.mark.torch
@pytest.mark.parametrize("name", WITHOUT_MASK)
def test_without_a_mask_every_token_is_real(name):
    assert_equal_to_theirs(CASES[name], batch_of(CASES[name], padded=False))


@partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def hidden_states_of(config, parameters, batch):
    """The states that the heads read, and an encoder's besides where there is a decoder."""
    model = Template(partial(build_model, config=config)).module(parameters)
    hidden = [model.states(batch).hidden]
    if isinstance(config, EncoderDecoderConfig):
        hidden.append(model.encode(batch["inputs"], segments=batch["segments"]))
    return hidden


@pytest.mark.torch
@pytest.mark.parametrize("name", ["BERT PreTraining", "ALBERT MaskedLM", "T5", "Marian", "ViT"])
def test_hidden_states(name):
    case, (model, theirs) = CASES[name], random_model(CASES[name])
    batch = batch_of(case)
    outputs = model(**their_arguments(case, batch), output_hidden_states=True)
    if isinstance(case.ours, EncoderDecoderConfig):
        expected = [outputs.decoder_hidden_states[-1], outputs.encoder_last_hidden_state]
        valid = [batch["decoder_segments"], batch["segments"]]
    else:
        expected = [outputs.hidden_states[-1]]
        valid = [batch["segments"] if name != "ViT" else np.ones((1, 1))]
    if name == "ViT":  # theirs are those before the final norm
        expected = [model.vit.layernorm(expected[0])]
    shapes = Template(partial(build_model, config=case.ours)).shapes
    mapped = hf_mapping.our_parameters(case.ours, case.names, theirs, shapes)
    ours = {path: jnp.asarray(tensor.detach().numpy()) for path, tensor in mapped.items()}
    actual = hidden_states_of(case.ours, ours, batch)
    for states, theirs_, real in zip(actual, expected, valid, strict=True):
        real = real[..., None] > 0
        theirs_ = np.where(real, theirs_.detach().numpy(), 0)
        hf_mapping.assert_close(np.where(real, states, 0), theirs_, name)
