import dataclasses

import numpy as np
import pytest
from corpora import token_row, write_texts
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import (
    Bytes,
    CausalLM,
    DataConfig,
    Denoising,
    Joined,
    MaskedLM,
    Packed,
    PrefixLM,
    SentencePairs,
    SpanCorruption,
    TokenizerFile,
    TokenRow,
)
from jaxformer.errors import ConfigError

OBJECTIVES = {
    "causal": CausalLM(),
    "prefix": PrefixLM(),
    "masked": MaskedLM(),
    "spans": MaskedLM(whole_word=True, max_span=4),
    "next_sentence": SentencePairs(),
    "sentence_order": SentencePairs("sentence_order"),
    "span_corruption": SpanCorruption(),
    "denoising": Denoising(),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [f"<{number}> " + "Some words. " * (number % 9) for number in range(50)]
    source = write_texts(file, texts)
    return DataConfig(source, Bytes(), sequence_length=20, batch_size=4, validation_fraction=0.3)


@pytest.fixture(scope="module", params=OBJECTIVES.values(), ids=OBJECTIVES)
def objective(request):
    return request.param


@pytest.fixture(scope="module")
def datasets(config, objective, tmp_path_factory):
    return dataclasses.replace(config, objective=objective).prepare(tmp_path_factory.mktemp("run"))


def dtype_of(name):
    return np.float32 if name.endswith("weights") else np.int32


def test_batches_have_the_agreed_form(datasets, objective):
    lengths = objective.lengths(20)
    sizes = {"inputs": lengths["inputs"], "": lengths.get("decoder_inputs", lengths["inputs"])}
    for batch in datasets.validation.epoch(4):
        numbers = batch.pop("row")
        assert numbers.shape == (4,)
        assert numbers.dtype == np.int32
        for name, value in batch.items():
            assert value.dtype == dtype_of(name), name
            of_inputs = name in ("inputs", "segments", "positions", "token_types")
            shape = (4,) if "sentence" in name or name == "prefix" else None
            assert value.shape == (shape or (4, sizes["inputs" if of_inputs else ""])), name
            vocabulary = datasets.tokenizer.vocab_size
            assert value.min() >= 0
            assert value.max() < vocabulary
    assert {"inputs", "targets", "weights"} <= set(batch)
    assert ("decoder_inputs" in batch) == ("decoder_inputs" in lengths)


def test_the_decoder_starts_with_the_token_that_is_told(config, datasets, objective):
    start = dataclasses.replace(config, objective=objective).start_id(datasets.tokenizer)
    batch = datasets.train.batch(0)
    if "decoder_inputs" in batch:
        assert (batch["decoder_inputs"][:, 0] == start).all()
    else:
        assert start is None


def test_an_evaluation_ends_in_rows_that_do_not_count(datasets):
    validation = datasets.validation
    size = validation.num_rows + 3
    (batch,) = validation.epoch(size)
    counted = batch["weights"].any(axis=1)
    np.testing.assert_array_equal(counted, np.arange(size) < validation.num_rows)
    for name in (n for n in batch if n.endswith("_weights")):
        np.testing.assert_array_equal(batch[name] > 0, counted)


def forms(example):
    return {name: (value.shape, value.dtype) for name, value in example.items()}


def test_a_blank_row_has_the_arrays_of_others_and_counts_nothing(datasets):
    examples = datasets.train.examples
    blank = examples.blank()
    assert forms(blank) == forms(examples.read(0, np.random.default_rng(0)))
    assert (blank["inputs"] == datasets.tokenizer.pad_id).all()
    for name in blank:
        assert not (name.endswith(("weights", "segments")) and blank[name].any()), name


def test_choices_are_a_function_of_seed_and_step(config, tmp_path, objective):
    changed = dataclasses.replace(config, objective=objective)
    one, same = (changed.prepare(tmp_path).train for _ in range(2))
    other = dataclasses.replace(changed, seed=1).prepare(tmp_path).train
    steps = range(3, 9)
    for step, batch in zip(steps, same.iterate(3, stop_step=9), strict=True):
        for name, value in one.batch(step).items():
            np.testing.assert_array_equal(value, batch[name])
        part = one.batch(step, rows=[2])
        assert all((part[name][0] == batch[name][2]).all() for name in part)
    assert any((one.batch(step)["inputs"] != other.batch(step)["inputs"]).any() for step in steps)


def test_bits_per_byte_need_every_token(datasets, objective):
    assert (datasets.tokens_per_byte is not None) == isinstance(objective, CausalLM)


def test_a_tokenizer_without_the_special_tokens_says_what_to_do(config, tmp_path):
    Bytes().fit([]).save(tmp_path / "plain")
    file = TokenizerFile(str(tmp_path / "plain"))
    masked = dataclasses.replace(config, tokenizer=file, objective=MaskedLM())
    message = r"tokenizer\.json: .* no token for 'cls', .*: add \[CLS\] or <s> or <cls> to its"
    with pytest.raises(ConfigError, match=message):
        masked.prepare(tmp_path / "run")
    Bytes().fit([], MaskedLM.special_tokens).save(tmp_path / "plain")
    masked.prepare(tmp_path / "run")


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 30), st.integers(1, 30), st.integers(0, 999)
)
def test_a_prefix_is_seen_and_the_rest_predicted(one, other, count, size, seed):
    count = min(count, size)
    objective = PrefixLM(min(one, other), max(one, other))
    tokens = np.arange(size + 1, dtype=np.int32)
    row = TokenRow(tokens[:-1], tokens[1:], np.arange(size) < count, None, None)
    example = objective.bind(Bytes().fit([]), size)(row, np.random.default_rng(seed))
    prefix = int(example["prefix"])
    assert int(objective.min_fraction * count) <= prefix <= objective.max_fraction * count
    counted = np.flatnonzero(example["weights"])
    np.testing.assert_array_equal(counted, np.arange(max(prefix - 1, 0), count))
    # What is predicted is not among the tokens that all of the prefix sees.
    assert not set(example["targets"][counted]) & set(example["inputs"][:prefix])
    np.testing.assert_array_equal(example["targets"], tokens[1:])


def test_prefixes_are_uniform():
    row = token_row(np.zeros(100), 100)
    function, rng = PrefixLM().bind(Bytes().fit([]), 100), np.random.default_rng(0)
    prefixes = [int(function(row, rng)["prefix"]) for _ in range(5000)]
    counts = np.bincount(prefixes, minlength=100)
    assert ((counts - 50) ** 2 / 50).sum() < 160, "chi-squared, 99 degrees of freedom"


@pytest.mark.parametrize(
    ("objective", "packing", "length", "message"),
    [
        (Denoising(), Packed(), 100, "Denoising takes each row as one text"),
        (SentencePairs(), Packed(), 100, "SentencePairs takes each row as one text"),
        (SpanCorruption(), Packed(), 100, r"Packed\(\): SpanCorruption takes each row as one text"),
        (MaskedLM(), Joined(), 2, "sequence_length = 2"),
        (SentencePairs(), Joined(), 4, "sequence_length = 4"),
        (SpanCorruption(), Joined(), 2, "sequence_length = 2"),
        (SpanCorruption(), Joined(), 2048, "sequence_length = 2048 needs 115 sentinels"),
    ],
)
def test_rows_that_an_objective_cannot_use_are_refused(objective, packing, length, message):
    with pytest.raises(ConfigError, match=message):
        objective.validate(packing, length)


def test_rows_that_an_objective_can_just_use():
    MaskedLM().validate(Packed(), 3)
    SpanCorruption(mean_span=20.0).validate(Joined(), 2048)
