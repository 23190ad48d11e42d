"""Heads: their losses against scikit-learn and plain NumPy, and what they read of a batch."""

from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from tiny_models import (
    batch_for,
    close,
    random_parameters,
    scores_of,
    structure_of,
    tiny,
    tiny_encoder,
    tokens,
)

from jaxformer.functional import Learned, cross_entropy
from jaxformer.models import (
    Classification,
    Dense,
    LossOptions,
    MaskedLanguageModel,
    ModelOutput,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.span import best_spans
from jaxformer.models.lora import AbstractLoraModel, LoRA
from jaxformer.nn import VocabularyLogits

LEAVES = ("kernel", "bias")
HEADS = (
    MaskedLanguageModel(),
    TokenClassification(num_labels=31),
    Span(),
    Classification(num_labels=3),
    Regression(label="rating"),
)
CONFIG = tiny_encoder(heads=HEADS)
ROWS, LENGTH = 6, 7


@partial(jax.jit, static_argnums=1)
def losses_of(parameters, options, batch):
    model = structure_of(CONFIG).module(parameters)
    return model.loss(batch, options)[1], model.loss_weights(batch)


def cross_entropies(scores, labels):
    scores = np.asarray(scores, np.float64)
    normaliser = np.log(np.exp(scores).sum(-1))
    return normaliser - np.take_along_axis(scores, labels[..., None], -1)[..., 0]


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_losses_are_weighted_sums(chunk_size):
    given, parameters = batch_for(CONFIG, ROWS, LENGTH), random_parameters(CONFIG)
    scores = scores_of(CONFIG, parameters, given)
    sums, weights = losses_of(parameters, LossOptions(chunk_size=chunk_size), given)
    for name, key in {
        "masked_language_model": "targets",
        "tags": "targets",
        "label": "label",
    }.items():
        weight = given["weights" if key == "targets" else "label_weights"]
        expected = (cross_entropies(scores[name], given[key]) * weight).sum()
        close(sums[name].loss, expected, err_msg=name)
        close(sums[name].weight, weight.sum())
        right = (np.asarray(scores[name]).argmax(-1) == given[key]) * weight
        close(sums[name].correct, right.sum(), err_msg=name)
    ends = cross_entropies(scores["span"], given["span"]).mean(1)
    close(sums["span"].loss, (ends * given["span_weights"]).sum())
    errors = (scores["rating"] - given["rating"]) ** 2
    close(sums["rating"].loss, (errors * given["rating_weights"]).sum())
    for name, weight in weights.items():
        close(weight, sums[name].weight, err_msg=name)


def masked_head_and_batch():
    """The head and what it reads: hidden states, and two chosen tokens in each row."""
    head = structure_of(CONFIG).module(random_parameters(CONFIG)).heads["masked_language_model"]
    random = np.random.default_rng(5)
    hidden = random.normal(size=(ROWS, LENGTH, CONFIG.model_dim)).astype(np.float32)
    weights = random.permuted(np.tile(np.arange(LENGTH) < 2, (ROWS, 1)), axis=1)
    targets = random.integers(0, CONFIG.vocab_size, (ROWS, LENGTH))
    table = random.normal(size=(CONFIG.embedding_width, CONFIG.vocab_size)).astype(np.float32)
    return head, hidden, table, {"targets": targets, "weights": weights.astype(np.float32)}


@pytest.mark.more
def test_masked_tokens_have_the_gradient_of_the_scores_of_all():
    head, hidden, table, given = masked_head_and_batch()

    def chosen(hidden, table):
        return head.loss(ModelOutput(hidden, tied=table), given, LossOptions(), None).loss

    def every(hidden, table):
        return cross_entropy(head.scores(ModelOutput(hidden, tied=table)), **given).loss

    actual, expected = (jax.jit(jax.grad(f, (0, 1)))(hidden, table) for f in (chosen, every))
    jax.tree.map(close, actual, expected)
    assert np.abs(expected[0]).max() > 1e-2


def test_the_logits_of_other_tokens_are_not_computed():
    head, hidden, table, given = masked_head_and_batch()
    poisoned = np.where(given["weights"][..., None] > 0, hidden, np.nan)
    sums, expected = (
        head.loss(ModelOutput(x, tied=table), given, LossOptions(), None)
        for x in (poisoned, hidden)
    )
    assert sums == expected


def test_a_span_never_ends_in_padding():
    given = batch_for(CONFIG, ROWS, LENGTH)
    scores = np.asarray(scores_of(CONFIG, random_parameters(CONFIG), given)["span"])
    padding = np.broadcast_to(given["segments"][:, None] == 0, scores.shape)
    assert padding.any()
    assert (scores[padding] <= -1e8).all()
    assert (np.abs(scores[~padding]) < 1e3).all()


@pytest.mark.slow
def test_a_dense_layer_before_the_output():
    """`out(norm(tanh(x W + b)))`, of one state and of all."""
    dense = Dense("tanh", norm=True)
    heads = (Classification(3, dense=dense), TokenClassification(3, dense=dense))
    config = tiny_encoder(heads=(*heads, Span(dense=Dense("relu", bias=False))))
    parameters = random_parameters(config)
    assert "heads.span.dense.linear.bias" not in parameters
    model = structure_of(config).module(parameters)
    states = jax.jit(model.outputs)({"inputs": tokens(2, 5)})
    for name, x in {"label": states.pooled, "tags": states.hidden}.items():
        one = {k.removeprefix(f"heads.{name}."): np.asarray(v) for k, v in parameters.items()}
        y = np.tanh(np.asarray(x) @ one["dense.linear.kernel"] + one["dense.linear.bias"])
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-12)
        y = y * one["dense.norm.scale"] + one["dense.norm.bias"]
        close(model.heads[name].scores(states), y @ one["output.kernel"] + one["output.bias"])
    one = {k.removeprefix("heads.span."): np.asarray(v) for k, v in parameters.items()}
    y = np.maximum(np.asarray(states.hidden) @ one["dense.linear.kernel"], 0)
    ends = y @ one["output.kernel"] + one["output.bias"]
    close(model.heads["span"].scores(states), ends.swapaxes(1, 2))


@pytest.mark.more
def test_two_states_side_by_side_and_the_second():
    heads = (Classification(3, pooling="first_and_mean"), Classification(3, "b", "second"))
    config = tiny_encoder(heads=heads, pooler=None)
    parameters = random_parameters(config)
    model = structure_of(config).module(parameters)
    valid = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    states = jax.jit(model.outputs)({"inputs": tokens(2, 5), "segments": valid})
    hidden = np.asarray(states.hidden)
    means = (hidden * valid[..., None]).sum(1) / valid.sum(1)[:, None]
    both = np.concatenate([hidden[:, 0], means], axis=1)
    for name, x in {"label": both, "b": hidden[:, 1]}.items():
        head = {leaf: np.asarray(parameters[f"heads.{name}.output.{leaf}"]) for leaf in LEAVES}
        close(model.heads[name].scores(states), x @ head["kernel"] + head["bias"])


def test_an_activation_of_the_masked_head_alone():
    config = tiny_encoder(heads=(MaskedLanguageModel(activation="relu", dense_bias=False),))
    parameters = random_parameters(config)
    assert "heads.masked_language_model.dense.bias" not in parameters
    same = tiny_encoder(**{"feed_forward.activation": "relu"}, heads=config.heads)
    model = structure_of(config).module(parameters)
    states = jax.jit(model.outputs)({"inputs": tokens(2, 5)})
    expected = structure_of(same).module(parameters).heads["masked_language_model"].scores(states)
    np.testing.assert_array_equal(model.heads["masked_language_model"].scores(states), expected)


def test_a_given_bias_does_not_learn():
    config = tiny(logits=VocabularyLogits(bias=True, bias_learns=False))
    abstract_model = structure_of(config)
    assert set(abstract_model.shapes) - set(abstract_model.learning) == {
        "heads.language_model.bias"
    }
    assert "heads.language_model.bias" not in AbstractLoraModel(abstract_model, LoRA()).learning
    learned = structure_of(tiny(position=Learned(max_length=8, learns=False)))
    position = "transformer.inputs.position_table"
    assert set(learned.shapes) - set(learned.learning) == {position}


def test_factorised_embeddings_tie_the_masked_head():
    narrow = {"embeddings.dim": 10}
    config = tiny_encoder(**narrow)
    shapes = structure_of(config).shapes
    assert shapes["heads.masked_language_model.dense.kernel"].shape == (20, 10)
    assert "heads.masked_language_model.kernel" not in shapes
    untied = structure_of(tiny_encoder(**narrow, tie_embeddings=False)).shapes
    assert untied["heads.masked_language_model.kernel"].shape == (10, 31)


def test_dropout_of_the_heads_needs_a_key():
    config = tiny_encoder(heads=(TokenClassification(3), Classification(3)), dropout=0.5)
    model = structure_of(config).module(random_parameters(config))
    states = jax.jit(model.outputs)({"inputs": tokens(2, 5)})
    for name, head in model.heads.items():
        plain = head.scores(states)
        np.testing.assert_array_equal(head.scores(states), plain)
        dropped = head.scores(states, jax.random.key(1))
        assert jnp.abs(dropped - plain).max() > 1e-2, name


@partial(jax.jit, static_argnums=0)
def evaluation_of(config, parameters, batch):
    model = structure_of(config).module(parameters)
    outputs, sums = model.loss(batch)
    return sums, model.predictions(outputs, batch)


def test_predictions_beside_what_is_right():
    given, parameters = batch_for(CONFIG, ROWS, LENGTH), random_parameters(CONFIG)
    scores = scores_of(CONFIG, parameters, given)
    sums, predictions = evaluation_of(CONFIG, parameters, given)
    expected, _ = losses_of(parameters, LossOptions(), given)
    jax.tree.map(close, sums, expected)
    assert set(predictions) == {"tags", "span", "label", "rating"}
    for name, key, weights in (
        ("tags", "targets", "weights"),
        ("label", "label", "label_weights"),
        ("rating", "rating", "rating_weights"),
        ("span", "span", "span_weights"),
    ):
        np.testing.assert_array_equal(predictions[name].references, given[key])
        np.testing.assert_array_equal(predictions[name].weights, given[weights])
    for name in ("tags", "label"):
        np.testing.assert_array_equal(predictions[name].predicted, scores[name].argmax(-1))
    close(predictions["rating"].predicted, scores["rating"])
    spans, valid = np.asarray(predictions["span"].predicted), given["segments"] > 0
    for row, (first, last) in enumerate(spans):
        assert first <= last
        assert valid[row, [first, last]].all()
        found = scores["span"][row, 0, first] + scores["span"][row, 1, last]
        close(predictions["span"].scores[row, 0], found)
        close(predictions["span"].scores[row, 1], scores["span"][row, :, 0].sum())


def test_spans_lie_where_the_batch_says():
    given, parameters = batch_for(CONFIG, ROWS, LENGTH), random_parameters(CONFIG)
    places = np.zeros((ROWS, LENGTH), bool)
    places[:, 1] = True
    places[3] = False  # a window without any of the context
    _, predictions = evaluation_of(CONFIG, parameters, given | {"span_places": places})
    kept = np.arange(ROWS) != 3
    np.testing.assert_array_equal(predictions["span"].predicted[kept], 1)
    found, nothing = np.asarray(predictions["span"].scores).T
    assert (found[kept] > -1e3).all()
    assert found[3] < -1e8
    # No answer is the first token's span, whether or not an answer may lie there.
    _, everywhere = evaluation_of(CONFIG, parameters, given)
    np.testing.assert_array_equal(nothing, everywhere["span"].scores[:, 1])


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9))
def test_the_best_span_of_all(seed, size, longest):
    scores = np.random.default_rng(seed).integers(-3, 4, (2, 2, size)).astype(np.float32)
    spans, best = best_spans(jnp.asarray(scores), longest)
    for row in range(2):
        allowed = {
            (first, last): scores[row, 0, first] + scores[row, 1, last]
            for first in range(size)
            for last in range(first, min(first + longest, size))
        }
        assert best[row] == max(allowed.values())
        first, last = map(int, spans[row])
        assert allowed[first, last] == best[row]
        shortest = min(j - i for (i, j), score in allowed.items() if score == best[row])
        assert last - first == shortest
