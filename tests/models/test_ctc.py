"""The CTC head: its loss, rows that have none, and what it counts."""

from itertools import groupby, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.models import CTC
from jaxformer.models.heads.base import DEFAULT_OPTIONS, ModelOutput
from jaxformer.models.heads.transcript import ctc_loss
from jaxformer.models.waveform import WaveformConfig

CONFIG = WaveformConfig(num_layers=1, model_dim=32, num_heads=2, mlp_dim=8, dropout=0.0)


def logits_of(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def brute_force(logits, frames, labels, blank):
    """The loss of one row, from all of its paths."""
    shares = np.asarray(jax.nn.log_softmax(logits[:frames]), np.float64)
    total = -np.inf
    for path in product(range(logits.shape[1]), repeat=frames):
        if [label for label, _ in groupby(path) if label != blank] == list(labels):
            total = np.logaddexp(total, sum(shares[t, label] for t, label in enumerate(path)))
    return -total


ROWS = [(5, [2, 1]), (4, [2, 2]), (5, []), (3, [0, 2, 0]), (2, [1, 2, 1]), (3, [1, 1, 2])]


@pytest.mark.parametrize("blank", [3, 1])
def test_the_loss_is_that_of_all_alignments(blank):
    rows = [(frames, [x if x != blank else 3 for x in labels]) for frames, labels in ROWS]
    logits = logits_of(len(rows), 5, 4)
    valid = jnp.arange(5)[None, :] < jnp.array([[frames] for frames, _ in rows])
    lengths = jnp.array([len(labels) for _, labels in rows])
    # What follows the labels of a row does not count, whatever it is.
    labels = jnp.array([(labels + labels[-1:] * 3 + [0] * 3)[:3] for _, labels in rows])
    found, aligned = ctc_loss(logits, valid, labels, lengths, blank=blank)
    assert aligned.tolist() == [True, True, True, True, False, False]
    for row, loss, fits in zip(zip(logits, rows, strict=True), found, aligned, strict=True):
        expected = brute_force(row[0], row[1][0], row[1][1], blank) if fits else 0.0
        assert loss == pytest.approx(expected, rel=1e-5)


def test_rows_that_cannot_be_aligned_have_finite_gradients():
    logits, valid = logits_of(2, 2, 4), jnp.ones((2, 2), bool)
    labels, lengths = jnp.array([[1, 1], [1, 2]]), jnp.array([2, 2])

    def total(logits):
        return jnp.sum(ctc_loss(logits, valid, labels, lengths, blank=0)[0])

    gradient = jax.grad(total)(logits)
    assert not gradient[0].any()
    assert jnp.isfinite(gradient).all()
    assert gradient[1].any()


@pytest.mark.torch
def test_as_torch_computes_it():
    import torch

    logits = logits_of(3, 20, 7)
    frames, lengths = np.array([20, 13, 9]), np.array([6, 0, 4])
    labels = np.random.default_rng(1).integers(1, 7, size=(3, 6))
    valid = jnp.arange(20)[None, :] < jnp.asarray(frames)[:, None]

    def ours(logits):
        losses, _ = ctc_loss(logits, valid, jnp.asarray(labels), jnp.asarray(lengths), blank=0)
        return jnp.sum(losses), losses

    (_, found), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(logits)
    theirs = torch.tensor(np.asarray(logits), requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1).transpose(0, 1),
        torch.tensor(labels),
        torch.tensor(frames),
        torch.tensor(lengths),
        blank=0,
        reduction="none",
    )
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=2e-5)
    expected.sum().backward()
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), atol=2e-5)


def test_the_head_counts_labels_and_whole_rows():
    head = CTC(vocab_size=4, blank=0).build(jax.random.key(0), CONFIG)
    # Frames whose states are unit vectors have the rows of the kernel as scores.
    head.output.kernel[...] = jnp.zeros((32, 4)).at[jnp.arange(4), jnp.arange(4)].set(9.0)
    path = jnp.array([[1, 1, 0, 2], [3, 0, 3, 0], [0, 0, 0, 0]])
    outputs = ModelOutput(jax.nn.one_hot(path, 32), valid=jnp.ones((3, 4), bool))
    batch = {
        "transcript": jnp.array([[1, 2], [3, 2], [0, 0]]),
        "transcript_length": jnp.array([2, 2, 0]),
        "transcript_weights": jnp.array([1.0, 1.0, 1.0]),
    }
    sums = head.loss(outputs, batch, DEFAULT_OPTIONS, None)
    assert sums.weight == head.loss_weight(batch) == 2 + 2 + 1
    assert sums.correct == 2 + 1  # the first and the last row are right
    predicted = head.predictions(outputs, batch).predicted
    assert predicted.tolist() == [[1, 2, 0, 0], [3, 3, 0, 0], [0, 0, 0, 0]]


def test_the_blank_is_one_of_the_classes():
    with pytest.raises(ConfigError, match="blank = 7: must be from 0 to vocab_size - 1 = 3"):
        CTC(vocab_size=4, blank=7)
