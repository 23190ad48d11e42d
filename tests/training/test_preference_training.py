"""DPO and KTO: TRL's losses, the same update however it is computed, the reference, whole runs."""

import json
import random
from dataclasses import replace
from functools import lru_cache

import chex
import jax
import numpy as np
import pytest
from corpora import write_rows
from hf_checkpoints import SENTENCES
from tiny_models import logits_of, random_parameters, structure_of, tiny, tiny_encoder
from tiny_run import hash_of, tiny_config
from train_steps import program_of, stepped

from jaxformer.cli.training.evaluate import evaluate
from jaxformer.config import DPO, KTO, Config, TrainConfig, validate
from jaxformer.data import Bytes
from jaxformer.data.chat import PreferenceData, UnpairedPreferenceData
from jaxformer.errors import ConfigError
from jaxformer.models.heads.base import DEFAULT_OPTIONS
from jaxformer.models.lora import LoRA
from jaxformer.optim import AdamW, Constant
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train
from jaxformer.training.preference_loss import REFERENCE, PreferenceLoss, answers, preference_loss

MODEL = tiny(vocab_size=32, model_dim=24, num_heads=4, num_kv_heads=2, num_layers=1, mlp_dim=16)
SETTINGS = DPO(beta=0.3, label_smoothing=0.1, sft_weight=0.2)


def pairs(rows=8, length=12, seed=0):
    """A batch of pairs with prompts and answers of several lengths; one row only fills it."""
    chance = np.random.default_rng(seed)
    weights = np.zeros((rows, 2, length), np.float32)
    for row in weights[:-1]:
        start = chance.integers(1, 5)
        for side in row:
            side[start : start + chance.integers(1, 7)] = 1
    shape = weights.shape
    return {
        "inputs": chance.integers(0, 32, shape).astype(np.int32),
        "targets": chance.integers(0, 32, shape).astype(np.int32),
        "weights": weights,
        REFERENCE: chance.uniform(-30, -5, (rows, 2)).astype(np.float32),
    }


@lru_cache
def program_with(mesh, settings, options):
    loss = PreferenceLoss(settings)
    return program_of(MODEL, mesh, loss=loss, preference=settings, **dict(options))


def run(mesh=(1, 1, 1), steps=2, batch=None, settings=SETTINGS, **options):
    program = program_with(mesh, settings, tuple(options.items()))
    state, history = stepped(program, batch or pairs(), random_parameters(MODEL, 1), steps)
    return program, state, history[-1]


@lru_cache
def reference():
    _, state, metrics = run()
    return jax.tree.map(np.asarray, state.params), metrics


# However it is computed ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ((8, 1, 1), {}),
        ((2, 2, 2), {}),
        ((2, 1, 2), {"gradient_accumulation": 4}),
        ((1, 1, 1), {"gradient_accumulation": 8}),
        ((1, 1, 1), {"loss_chunk": 5}),
        ((2, 2, 2), {"loss_chunk": 5}),
    ],
)
def test_every_mesh_all_parts_and_chunks_make_the_same_update(mesh, options):
    params, values = reference()
    _, state, metrics = run(mesh, **options)
    chex.assert_trees_all_close(state.params, params, rtol=2e-4, atol=2e-5)
    chex.assert_trees_all_close(metrics, values, rtol=1e-4, atol=1e-5)


@pytest.mark.more
def test_the_step_lowers_without_arrays():
    program, _, _ = run(steps=1)
    assert program.lower(8, {"inputs": 12}).as_text()
    assert program._update._cache_size() == 1


# What it depends on -------------------------------------------------------------------------------


def update(batch):
    """The update of one step, and its metrics."""
    _, state, metrics = run(steps=1, batch=batch)
    start = random_parameters(MODEL, 1)
    return {name: np.asarray(start[name] - state.params[name]) for name in start}, metrics


def test_what_is_no_answer_is_never_learned():
    # The targets of a prompt and of padding may be anything, and so may a row of padding.
    batch = pairs()
    other = np.where(batch["weights"] > 0, batch["targets"], 31 - batch["targets"])
    filled = batch["inputs"].copy()
    filled[-1] = 31 - filled[-1]
    expected, metrics = update(batch)
    found, others = update(batch | {"targets": other, "inputs": filled})
    chex.assert_trees_all_equal(found, expected)
    assert others == metrics
    # Those of an answer may not.
    wrong = np.where(batch["weights"] > 0, 31 - batch["targets"], batch["targets"])
    assert update(batch | {"targets": wrong})[1]["loss"] != metrics["loss"]


def test_padding_changes_nothing():
    batch = pairs()
    wider = {
        name: np.concatenate([x, np.full_like(x[..., :5], 0)], axis=2) if x.ndim == 3 else x
        for name, x in batch.items()
    }
    (found, metrics), (expected, values) = update(wider), update(batch)
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-6)
    assert metrics["loss"] == pytest.approx(values["loss"], rel=1e-5)


@pytest.mark.slow
def test_dropout_is_the_models_where_that_is_asked_for():
    model = replace(MODEL, dropout=0.5)
    module, batch = structure_of(model).module(random_parameters(model, 1)), pairs()

    def margin(settings, key):
        loss = PreferenceLoss(settings)
        sums = jax.jit(lambda key: loss(module, {}, batch, DEFAULT_OPTIONS, key))(key)
        return float(loss.metrics(sums)["margin"])

    plain = margin(DPO(), None)
    assert margin(DPO(), jax.random.key(0)) == plain
    assert abs(margin(DPO(disable_dropout=False), jax.random.key(0)) - plain) > 1e-3


def test_chosen_and_rejected_change_places():
    batch, settings = pairs(), DPO(beta=0.3)
    turned = {name: x[:, ::-1] for name, x in batch.items()}
    _, _, one = run(steps=1, batch=batch, settings=settings)
    _, _, other = run(steps=1, batch=turned, settings=settings)
    assert other["margin"] == pytest.approx(-one["margin"], rel=1e-5)
    assert other["chosen_reward"] == pytest.approx(one["rejected_reward"], rel=1e-5)
    assert other["accuracy"] == pytest.approx(1 - one["accuracy"])


def test_log_probabilities_are_those_of_the_logits():
    batch, parameters = pairs(), random_parameters(MODEL, 1)
    module = structure_of(MODEL).module(parameters)
    found = jax.jit(lambda batch: answers(module, batch, DEFAULT_OPTIONS))(batch)
    logits = logits_of(MODEL, parameters, batch["inputs"].reshape(-1, 12))
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    picked = np.take_along_axis(log_probs, batch["targets"].reshape(-1, 12, 1), axis=2)
    expected = np.sum(picked.reshape(8, 2, 12) * batch["weights"], axis=2)
    np.testing.assert_allclose(found.logps, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.lengths, np.sum(batch["weights"], axis=2))


# Whole runs ---------------------------------------------------------------------------------------


def preferences(path, rows=40, seed=0):
    """A file of texts: a prompt, and sentences of which those in capitals were chosen."""
    chance = random.Random(seed)
    lines = []
    for _ in range(rows):
        prompt, chosen, rejected = chance.sample(SENTENCES, 3)
        sides = {"chosen": f" {chosen.upper()}", "rejected": f" {rejected}"}
        lines.append({"prompt": prompt} | sides)
    return write_rows(path, lines)


def dpo_config(folder) -> Config:
    config = tiny_config(steps=6, eval_interval=3, checkpoint_interval=2, preference=DPO())
    return replace(
        config,
        model=replace(config.model, num_layers=1),
        data=PreferenceData(
            train=preferences(folder / "preferences.jsonl"),
            tokenizer=Bytes(),
            sequence_length=144,
            batch_size=8,
            validation_fraction=0.2,
        ),
        optimizer=AdamW(schedule=Constant(learning_rate=1e-2, warmup_steps=0)),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpo")
    config = dpo_config(folder)
    train(config, folder / "run")
    return config, folder / "run"


@pytest.mark.slow
def test_a_run_prefers_what_was_chosen(finished):
    config, folder = finished
    rows, validations = read_metrics(folder, "train"), read_metrics(folder, "validation")
    assert config.model.dropout > 0  # which takes no part
    assert rows[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert abs(rows[0]["margin"]) < 1e-4
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["accuracy"] > 0.8
    for row in (*rows, *validations):
        assert row["margin"] == pytest.approx(row["chosen_reward"] - row["rejected_reward"], 1e-3)
        assert row["chosen_logps"] < 0
    assert [row["step"] for row in validations] == [3, 6]
    assert len(list(folder.glob("reference-*"))) == 2


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits_also_with_a_damaged_reference(
    finished, tmp_path, caplog
):
    config, folder = finished
    shorter = replace(config, train=replace(config.train, steps=4))
    train(shorter, tmp_path / "run")
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("run/reference-*/logps.npy")}
    one, other = sorted(tmp_path.glob("run/reference-*/logps.npy"))
    one.write_bytes(one.read_bytes()[:-1] + b"x")
    for file in other.parent.iterdir():
        file.unlink()
    train(config, tmp_path / "run")
    assert "computing the reference's log-probabilities again" in caplog.text
    assert hash_of(tmp_path / "run", 6) == hash_of(folder, 6)
    found = {path.name: path.read_bytes() for path in tmp_path.glob("run/reference-*/logps.npy")}
    assert found == kept
    ours, theirs = (read_metrics(run, "validation")[-1] for run in (tmp_path / "run", folder))
    assert ours == theirs


@pytest.mark.slow
def test_evaluate_measures_what_training_measured(finished, tmp_path):
    _, folder = finished
    output = tmp_path / "found.json"
    evaluate([str(folder), "--output", str(output)], "evaluate")
    found = json.loads(output.read_text())
    measured = read_metrics(folder, "validation")[-1]
    assert found["rows"] > 2
    for name, value in found["metrics"].items():
        assert value == pytest.approx(measured[name], rel=1e-4, abs=1e-5), name
    # Other rows get their own reference log-probabilities.
    rows = preferences(tmp_path / "other.jsonl", rows=5, seed=1)
    before = len(list(folder.glob("reference-*")))
    evaluate([str(folder), "--output", str(output), "--data.validation", rows], "evaluate")
    assert json.loads(output.read_text())["rows"] == 5
    assert len(list(folder.glob("reference-*"))) == before + 1


@pytest.fixture(scope="module")
def continued(finished, tmp_path_factory):
    """A second run that starts from the first one."""
    config, origin = finished
    folder = tmp_path_factory.mktemp("second") / "run"
    config = replace(config, init_from=str(origin))
    train(replace(config, train=replace(config.train, steps=2)), folder)
    return config, folder


@pytest.mark.slow
def test_the_reference_is_the_model_that_a_run_starts_from(continued):
    row = read_metrics(continued[1], "train")[0]
    assert row["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert row["margin"] == pytest.approx(0, abs=1e-4)


@pytest.mark.slow
def test_another_reference(continued, finished, tmp_path):
    config, origin = continued[0], finished[1]
    named = DPO(reference=str(origin / "checkpoints" / "4"))
    train(replace(config, train=replace(config.train, steps=2, preference=named)), tmp_path / "a")
    rows = read_metrics(tmp_path / "a", "train")
    assert abs(rows[0]["margin"]) > 1e-3
    (record, *_) = (tmp_path / "a").glob("reference-*/reference.json")
    assert json.loads(record.read_text()) == {"reference": named.reference, "step": 4}


@pytest.mark.slow
def test_a_reference_that_has_learned_since_is_refused(continued, finished, tmp_path):
    config, origin = continued[0], finished[0]
    folder = tmp_path / "origin"
    train(replace(origin, train=replace(origin.train, steps=2)), folder)
    config = replace(config, init_from=str(folder), train=replace(config.train, steps=2))
    train(config, tmp_path / "run")
    train(replace(origin, train=replace(origin.train, steps=4)), folder)
    damaged = sorted(tmp_path.glob("run/reference-*/logps.npy"))[0]
    damaged.write_bytes(b"")
    longer = replace(config, train=replace(config.train, steps=4))
    with pytest.raises(ConfigError, match=r"at step 2, and now .* is at step 4"):
        train(longer, tmp_path / "run")


@pytest.mark.slow
def test_low_rank_factors_learn_against_their_base(continued, tmp_path):
    config = continued[0]
    train(replace(config, train=replace(config.train, steps=2, lora=LoRA(rank=2))), tmp_path / "r")
    first, second = read_metrics(tmp_path / "r", "train")
    assert first["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert abs(second["margin"]) > 1e-3


# Judged answers -----------------------------------------------------------------------------------


def judged(path, rows=60):
    """Rows whose answer is desirable where it repeats the question."""
    chance = random.Random(3)
    lines = []
    for number in range(rows):
        words = chance.sample(SENTENCES[0].split(), 3)
        good = number % 2 == 0
        answer = words[0] if good else "no"
        lines.append({"prompt": " ".join(words) + ":", "completion": f" {answer}", "label": good})
    return write_rows(path, lines)


@pytest.mark.slow
def test_a_run_learns_what_is_desirable(tmp_path):
    config = dpo_config(tmp_path)
    data = UnpairedPreferenceData(
        train=judged(tmp_path / "judged.jsonl"),
        tokenizer=Bytes(),
        sequence_length=64,
        batch_size=8,
        validation_fraction=0.2,
    )
    kto = KTO(beta=0.3, undesirable_weight=1.2)
    settings = replace(config.train, preference=kto, gradient_accumulation=1)
    train(replace(config, data=data, train=settings), tmp_path / "run")
    rows, validations = (read_metrics(tmp_path / "run", side) for side in ("train", "validation"))
    # Policy and reference are the same: 1 - sigmoid(0), times the weights of the labels.
    assert 0.5 <= rows[0]["loss"] <= 0.6
    assert abs(rows[0]["margin"]) < 1e-4
    assert rows[0]["divergence"] == pytest.approx(0, abs=1e-4)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["margin"] > 0
    assert all(row["chosen_logps"] < 0 and row["rejected_logps"] < 0 for row in validations)
    output = tmp_path / "found.json"
    evaluate([str(tmp_path / "run"), "--output", str(output)], "evaluate")
    found = json.loads(output.read_text())["metrics"]
    for name, value in found.items():
        assert value == pytest.approx(validations[-1][name], rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_the_loss_of_judged_answers_is_the_formula():
    settings = KTO(beta=0.3, desirable_weight=1.5)
    loss, batch = preference_loss(settings), pairs()
    batch["desirable"] = np.arange(8, dtype=np.int32) % 2
    module = structure_of(MODEL).module(random_parameters(MODEL, 1))
    sums = loss(module, {}, batch, DEFAULT_OPTIONS, None)
    found = answers(module, batch, DEFAULT_OPTIONS)
    ratios = np.asarray(found.logps - batch[REFERENCE], np.float64)[:-1]
    divergence = max(ratios[:, 1].mean(), 0)
    good = batch["desirable"][:-1] > 0
    signed = np.where(good, 1, -1) * (ratios[:, 0] - divergence) * 0.3
    expected = np.where(good, 1.5, 1.0) / (1 + np.exp(signed))
    values = loss.metrics(sums)
    assert values["loss"] == pytest.approx(expected.mean(), rel=1e-5)
    assert values["divergence"] == pytest.approx(divergence, rel=1e-5)
    assert values["chosen_reward"] == pytest.approx(0.3 * ratios[good, 0].mean(), rel=1e-5)
    assert values["accuracy"] == pytest.approx((signed > 0).mean())
    weights = {name: term.weight for name, term in sums.items()}
    chex.assert_trees_all_close(loss.weights(module, batch), weights, rtol=1e-7)


# What is refused ----------------------------------------------------------------------------------


def refused(config):
    with pytest.raises(ConfigError) as error:
        validate(config, 1)
    return str(error.value)


@pytest.mark.more
def test_what_does_not_fit_together(finished):
    config, _ = finished
    without = replace(config, train=replace(config.train, preference=None))
    assert "choose one with --train.preference DPO" in refused(without)
    text = replace(tiny_config(), train=TrainConfig(preference=DPO()))
    assert "compares pairs of answers, which DataConfig does not provide" in refused(text)
    encoder = replace(config, model=tiny_encoder(vocab_size=264))
    assert "answers of a decoder" in refused(encoder)
    other = replace(config, train=replace(config.train, preference=KTO()))
    assert "choose one with --train.preference DPO" in refused(other)
    text = replace(tiny_config(), train=TrainConfig(preference=KTO()))
    assert "judged answers, which DataConfig does not provide; use Unpaired" in refused(text)


@pytest.mark.more
def test_a_reference_with_another_vocabulary(finished, tmp_path):
    config, folder = finished
    model = replace(config.model, vocab_size=272)
    settings = replace(config.train, preference=DPO(reference=str(folder)))
    with pytest.raises(ConfigError, match=r"its model.vocab_size is 264, this model's 272"):
        train(replace(config, model=model, train=settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()
