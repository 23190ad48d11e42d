"""Scores at other lengths beside NumPy's, and what schemes do there."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import logits_of, random_parameters, scores_of, tiny, tiny_encoder_decoder

from jaxformer.data import Bytes, DataConfig, StandardLibrary
from jaxformer.data.tasks.algorithmic import VOCAB_SIZE, Algorithmic
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional import ALiBi, Learned, RoPE
from jaxformer.lab.studies.lengths import cut, in_batches, score, validation_text
from jaxformer.lab.studies.schemes import SCHEMES, chosen, models

pytestmark = pytest.mark.more


def rows(count=5, length=12, seed=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 31, (count, length + 1)).astype(np.int32)
    return {
        "inputs": tokens[:, :-1].copy(),
        "targets": tokens[:, 1:].copy(),
        "weights": random.integers(0, 2, (count, length)).astype(np.float32),
    }


def direct(model, parameters, batch):
    """The same scores from the logits of each row alone."""
    losses, right, whole = [], [], []
    for tokens, targets, weights in zip(*batch.values(), strict=True):
        logits = np.asarray(logits_of(model, parameters, tokens[None])[0], np.float64)
        places = np.flatnonzero(weights)
        if not len(places):
            continue
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses += [-logs[place, targets[place]] for place in places]
        hits = [logits[place].argmax() == targets[place] for place in places]
        right += hits
        whole.append(all(hits))
    return np.mean(losses), np.mean(right), np.mean(whole)


def test_scores_are_those_of_each_row_alone():
    model = tiny(position=RoPE(theta=100.0))
    parameters = random_parameters(model, scale=0.2)
    batch = rows()
    # Some rows are right: their targets are what the model predicts.
    batch["targets"][:2] = np.argmax(logits_of(model, parameters, batch["inputs"])[:2], axis=-1)
    batch["weights"][4] = 0
    found = score(model, parameters, [batch])
    np.testing.assert_allclose(found, direct(model, parameters, batch), rtol=2e-5)
    assert found.exact_match == 2 / 4
    parts = [{name: array[i : i + 1] for name, array in batch.items()} for i in range(5)]
    np.testing.assert_allclose(score(model, parameters, parts), found, rtol=1e-5)


def test_an_encoder_decoder_has_scores_too():
    model = tiny_encoder_decoder(vocab_size=VOCAB_SIZE, num_layers=1, num_decoder_layers=1)
    parameters = random_parameters(model, scale=0.2)
    data = Algorithmic(length=5, layout="encoder_decoder").of_length(5, 3)
    (batch,) = data.prepare("unused").validation.epoch(3)
    logits = scores_of(model, parameters, {k: batch[k] for k in batch if k != "row"})
    right = np.argmax(logits["language_model"], -1) == batch["targets"]
    found = score(model, parameters, [batch])
    assert found.accuracy == pytest.approx(right.mean())
    assert found.exact_match == pytest.approx(right.all(1).mean())


def test_rows_are_cut_into_the_same_tokens():
    batch = rows(count=3, length=16)
    for length in (4, 8, 16):
        pieces = cut(batch, length)
        assert pieces["inputs"].shape == (48 // length, length)
        for name, array in pieces.items():
            assert array.ravel().tolist() == batch[name].ravel().tolist()


def test_batches_have_all_rows_and_one_shape():
    batch = rows(count=7, length=1024)
    batches = in_batches(batch)
    assert {part["inputs"].shape for part in batches} == {(4, 1024)}
    joined = np.concatenate([part["weights"] for part in batches])
    np.testing.assert_array_equal(joined[:7], batch["weights"])
    assert not joined[7:].any()


def test_a_table_has_no_row_beyond_its_length():
    model = tiny(position=Learned(max_length=12))
    score(model, random_parameters(model), [rows()])
    with pytest.raises(ConfigError, match="has 12 positions, fewer than the sequence length 24"):
        score(model, random_parameters(model), [rows(length=24)])


def test_validation_text_is_whole_rows(tmp_path):
    data = DataConfig(
        source=StandardLibrary(max_bytes=60_000), tokenizer=Bytes(), validation_fraction=0.3
    )
    data = replace(data, sequence_length=64)
    data.prepare(tmp_path)
    batch = validation_text(data, tmp_path, 6)
    assert batch["inputs"].shape == (6, 64)
    assert batch["weights"].all()
    with pytest.raises(ConfigError, match=r"100000 tokens.*lower --factors"):
        validation_text(replace(data, sequence_length=100_000), tmp_path, 6)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.quick("rope", "t5", "alibi", "learned")
def test_every_scheme_has_a_code_for_training_and_none_or_all_for_tests(name):
    scheme = SCHEMES[name]
    position = scheme.trained(32, 512)
    position.validate_length(32)
    longest = scheme.stretched(position, 16, 32)
    if name == "learned":
        with pytest.raises(ConfigError, match="fewer than the sequence length"):
            longest.validate_length(64)
    else:
        longest.validate_length(512)
    model = tiny(num_layers=1, vocab_size=VOCAB_SIZE, position=scheme.stretched(position, 1, 32))
    data = Algorithmic(length=16).of_length(16, 4).prepare("unused").validation
    (batch,) = data.epoch(4)
    assert np.isfinite(score(model, random_parameters(model), [batch]).loss)


def test_stretched_frequencies_are_those_of_the_trained_model_at_its_length():
    position = SCHEMES["rope"].trained(32, 512)
    plain = tiny(num_layers=1, position=position, head_dim=8)
    parameters, batch = random_parameters(plain), rows()
    expected = score(plain, parameters, [batch])
    for name in ("rope-linear", "rope-yarn"):
        for factor, same in ((1, True), (4, False)):
            stretched = SCHEMES[name].stretched(position, factor, 32)
            found = score(replace(plain, position=stretched), parameters, [batch])
            assert np.allclose(found.loss, expected.loss, rtol=1e-6) == same


def test_schemes_that_share_a_model_are_trained_once():
    assert models(["alibi", "rope-yarn", "rope"]) == {
        "alibi": ["alibi"],
        "rope": ["rope-yarn", "rope"],
    }
    assert SCHEMES["alibi"].trained(8, 8) == ALiBi()


def test_names_between_commas():
    names = ("alibi", "rope", "t5")
    assert chosen("all", names, "--schemes") == names
    assert chosen("t5, ALIBI", names, "--schemes") == ("alibi", "t5")
    with pytest.raises(ArgumentError, match=r"--schemes 'alibbi'.*did you mean 'alibi'"):
        chosen("alibbi", names, "--schemes")
    with pytest.raises(ArgumentError, match="must be all, or some of alibi, rope, t5"):
        chosen(",", names, "--schemes")
