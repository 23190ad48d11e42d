from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import their_processor

from jaxformer.errors import ArgumentError
from jaxformer.functional.sampling.next_token import (
    ban_tokens,
    epsilon_filter,
    eta_filter,
    min_p_filter,
    scale_temperature,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.functional.sampling.penalties import ban_sequences, bias_sequences, no_repeat_ngram
from jaxformer.generation.decode.processors import (
    BannedAtBegin,
    EndsLater,
    ForcedFirst,
    ForcedLast,
    FrequencyPenalty,
    History,
    MinNewTokens,
    NoSourceNgram,
    OnLogits,
    OnTokens,
    PresencePenalty,
    RepetitionPenalty,
    SourcePenalty,
    process,
)

VOCAB, WIDTH = 131, 14
# (length, prompt, limit) of each row: a prompt alone, one token before the limit, and between.
ROWS = ((1, 1, 9), (4, 4, 12), (8, 1, 9), (13, 6, 14), (7, 5, 14), (2, 1, 14))
SEQUENCES = ((5,), (0, 1), (2, 3), (1, 1, 1), (2, 1, 0, 3), (100,), (130, 7))
BIASES = (-3.0, 2.5, 1.0, -0.5, 4.0, 0.25, -9.0)
FILTERS = {
    scale_temperature: 0.6,
    top_k_filter: 11,
    top_p_filter: 0.8,
    min_p_filter: 0.05,
    typical_filter: 0.7,
    epsilon_filter: 0.02,
    eta_filter: 0.02,
}


def name_of(processor):
    return getattr(processor, "function", type(processor)).__name__


ENDS = (8, 130)
# Ours, and the arguments of theirs: those of a row's prompt and limit, or the same of all rows.
PAIRS = [
    *((RepetitionPenalty(factor), (factor,)) for factor in (1.3, 0.8)),
    *((OnTokens(no_repeat_ngram, (size,)), (size,)) for size in (2, 1, 3, 4)),
    (OnLogits(ban_tokens, ((3, 90),)), ((3, 90),)),
    (OnTokens(ban_sequences, (SEQUENCES,)), ([*map(list, SEQUENCES)],)),
    *((MinNewTokens(n, ENDS), lambda p, _, n=n: (p, n, [*ENDS])) for n in (2, 0, 1, 7)),
    (
        OnTokens(bias_sequences, (SEQUENCES, BIASES)),
        ([[list(words), bias] for words, bias in zip(SEQUENCES, BIASES, strict=True)],),
    ),
    (BannedAtBegin((3, 90), True), lambda p, _: ((3, 90), p + (p == 1))),
    (BannedAtBegin((3, 90), False), lambda p, _: ((3, 90), p)),
    *((EndsLater(n, 1.2, ENDS), lambda p, _, n=n: ((n, 1.2), [*ENDS], p)) for n in (1, 0, 3)),
    (OnLogits(jnp.nan_to_num), ()),
    (ForcedLast(8), lambda _, n: (n, 8)),
    (ForcedLast((8, 17)), lambda _, n: (n, [8, 17])),
    *((OnLogits(function, (value,)), (value,)) for function, value in FILTERS.items()),
    (OnLogits(top_k_filter, (500,)), (500,)),
    (OnLogits(epsilon_filter, (0.5,)), (0.5,)),
    (OnLogits(eta_filter, (0.5,)), (0.5,)),
]
# The first of each kind.
EVERY = (
    *{name_of(ours): ours for ours, _ in reversed(PAIRS)}.values(),
    SourcePenalty(1.3),
    NoSourceNgram(2),
    PresencePenalty(0.7),
    FrequencyPenalty(-0.4),
    ForcedFirst(17),
    ForcedLast((8, 17)),
    OnLogits(jax.nn.log_softmax),
)
each_processor = pytest.mark.parametrize("processor", EVERY, ids=name_of)
each_seed = pytest.mark.parametrize("seed", range(2))
apply = jax.jit(process, static_argnums=0)


def random_case(seed, ties=False):
    """Logits and a history in which few tokens repeat often; rubbish beyond the lengths."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(len(ROWS), VOCAB)).astype(np.float32)
    tokens = rng.integers(0, 4, (len(ROWS), WIDTH)).astype(np.int32)
    tokens[:, ::5] = rng.integers(0, VOCAB, tokens[:, ::5].shape)
    lengths, prompts, limits = map(jnp.array, zip(*ROWS, strict=True))
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = rng.integers(-5, 2 * VOCAB, WIDTH - length)
    history = History(jnp.asarray(tokens), lengths, prompts, limits)
    return jnp.asarray(np.round(logits) if ties else logits), history


def row_of(tree, row):
    return jax.tree.map(lambda x: x[row : row + 1], tree)


def by_transformers(make, logits, history):
    """Row by row without padding; `make` gives a processor for a row's prompt and limit."""
    import torch

    rows = []
    for row, (length, prompt, limit) in enumerate(ROWS):
        tokens = torch.tensor(np.array(history.tokens[row : row + 1, :length]), dtype=torch.int64)
        scores = torch.tensor(np.array(logits[row : row + 1]))
        rows.append(make(prompt, limit)(tokens, scores).numpy())
    return np.concatenate(rows)


@pytest.mark.torch
@each_seed
@pytest.mark.parametrize(("ours", "arguments"), PAIRS, ids=[name_of(ours) for ours, _ in PAIRS])
def test_equals_transformers(seed, ours, arguments):
    # Among tokens of one logit, top-p of transformers keeps some by their place in the vocabulary.
    logits, history = random_case(seed, ties=seed == 1 and name_of(ours) != "top_p_filter")
    theirs = their_processor(ours)
    of_row = arguments if callable(arguments) else lambda *_: arguments
    expected = by_transformers(lambda p, n: theirs(*of_row(p, n)), logits, history)
    np.testing.assert_allclose(apply((ours,), logits, history), expected, rtol=1e-6)


@pytest.mark.torch
@each_seed
@pytest.mark.parametrize("ngram_size", [1, 2, 3])
@pytest.mark.parametrize("reads", [True, False], ids=["encoder", "decoder"])
def test_what_looks_at_the_source_equals_transformers(seed, ngram_size, reads):
    import torch

    logits, history = random_case(seed)
    source = np.random.default_rng(seed + 9).integers(0, 5, (len(ROWS), 8)).astype(np.int32)
    lengths = np.array([8, 1, 2, 5, 7, 3])
    if reads:
        history = history._replace(
            source=jnp.where(np.arange(8) < lengths[:, None], source, -1).astype(jnp.int32)
        )
    given = [source[n, : lengths[n]] if reads else x[:p] for n, (x, p) in enumerate(
        zip(np.asarray(history.tokens), np.asarray(history.prompt_lengths), strict=True)
    )]  # fmt: skip
    for ours, value in ((NoSourceNgram(ngram_size), ngram_size), (SourcePenalty(1.3), 1.3)):
        theirs = partial(their_processor(ours), value)
        rows = iter(torch.tensor(row[None], dtype=torch.int64) for row in given)
        expected = by_transformers(
            lambda p, n, theirs=theirs, rows=rows: theirs(next(rows)), logits, history
        )
        np.testing.assert_allclose(apply((ours,), logits, history), expected, rtol=1e-6)


def test_logits_that_are_not_finite_are_replaced():
    logits = jnp.array([[jnp.nan, jnp.inf, -jnp.inf, 1.5]])
    largest = float(jnp.finfo(jnp.float32).max)
    np.testing.assert_array_equal(
        OnLogits(jnp.nan_to_num)(logits, None), [[0, largest, -largest, 1.5]]
    )


@each_seed
def test_renormalised_logits_are_log_probabilities(seed):
    logits, history = random_case(seed, ties=seed == 1)
    logits = logits.at[:, ::7].set(-jnp.inf)
    exact = np.asarray(logits, np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    # Of logits as large as 13, float32 has the differences to 1e-6.
    np.testing.assert_allclose(
        apply((OnLogits(jax.nn.log_softmax),), logits, history), exact, atol=1e-6
    )


@pytest.mark.torch
def test_the_forced_first_token_is_that_of_an_encoder_decoder():
    # There the decoder's prompt is one token, and the first one generated is the second.
    logits, history = random_case(0)
    one_token = np.flatnonzero(history.prompt_lengths == 1)
    ours = ForcedFirst(17)
    expected = by_transformers(lambda p, n: their_processor(ours)(17), logits, history)
    actual = np.asarray(apply((ours,), logits, history))
    np.testing.assert_array_equal(actual[one_token], expected[one_token])
    assert np.isfinite(actual[1]).sum() == 1


@each_seed
def test_penalties_are_those_of_the_formula_over_generated_tokens(seed):
    logits, history = random_case(seed)
    counts = np.zeros((len(ROWS), VOCAB))
    for row, (length, prompt, _) in enumerate(ROWS):
        np.add.at(counts[row], np.asarray(history.tokens)[row, prompt:length], 1)
    actual = apply((PresencePenalty(0.7), FrequencyPenalty(-0.4)), logits, history)
    np.testing.assert_allclose(actual, logits - 0.7 * (counts > 0) + 0.4 * counts, rtol=1e-5)


@each_processor
def test_a_row_is_processed_as_if_it_were_alone_whatever_room_there_is(processor):
    logits, history = random_case(0)
    together = apply((processor,), logits, history)
    assert together.shape == logits.shape
    assert together.dtype == jnp.float32
    longer = history._replace(tokens=jnp.pad(history.tokens, ((0, 0), (0, 9)), constant_values=1))
    for row in range(len(ROWS)):
        alone = apply((processor,), row_of(logits, row), row_of(longer, row))
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-6)


@pytest.mark.more
@each_processor
def test_compiled_equals_eager(processor):
    logits, history = random_case(0)
    compiled = apply((processor,), logits, history)
    np.testing.assert_allclose(processor(logits, history), compiled, rtol=1e-6)


def test_processors_are_applied_in_the_callers_order():
    logits, history = random_case(0)
    first, second = OnLogits(scale_temperature, (0.5,)), PresencePenalty(3.0)
    one = process((first, second), logits, history)
    np.testing.assert_array_equal(one, second(first(logits, history), history))
    assert not np.allclose(one, process((second, first), logits, history))
    np.testing.assert_array_equal(process((), logits, history), logits)


def test_in_a_mesh_rows_stay_where_they_are():
    logits, history = jax.tree.map(lambda x: jnp.concatenate([x, x[:2]]), random_case(0))
    expected = apply(EVERY, logits, history)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = jax.device_put((logits, history), jax.sharding.PartitionSpec("data"))
        actual = apply(EVERY, *placed)
    assert jax.typeof(actual).sharding.spec[0] == "data"
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "processor",
    [
        OnLogits(ban_tokens, ((VOCAB,),)),
        OnTokens(ban_sequences, (((1, VOCAB),),)),
        ForcedLast(VOCAB),
    ],
    ids=name_of,
)
def test_a_token_beyond_the_vocabulary_is_an_error(processor):
    with pytest.raises(ArgumentError, match=rf"\[{VOCAB}\] are not in the vocabulary"):
        processor(*random_case(0))
