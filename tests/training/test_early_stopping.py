"""Ending in time: by any metric, at the same step however often the run was interrupted."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import hash_of, tiny_config

from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.cli import main as cli
from jaxformer.config.train import cost, lower_is_better
from jaxformer.errors import ConfigError
from jaxformer.training import loop
from jaxformer.training.evaluation.conclusion import EarlyStopping
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train

pytestmark = pytest.mark.more

VALUES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, math.nan, math.inf]), max_size=12)


LOWER = ("loss", "perplexity", "squared_error", "bits_per_byte", "next_sentence_loss")
LOWER += ("masked_language_model_perplexity",)
HIGHER = ("accuracy", "label_accuracy", "macro_f1", "matthews", "pearson", "exact_match", "bleu")
HIGHER += ("lossless",)


@pytest.mark.parametrize("metric", LOWER + HIGHER)
def test_which_way_a_metric_improves(metric):
    assert lower_is_better(metric) == (metric in LOWER)
    better, worse = (1.0, 2.0) if metric in LOWER else (2.0, 1.0)
    assert cost(metric, better) < cost(metric, worse)
    assert cost(metric, None) is None


def rows_of(values, metric="loss"):
    rows = [{"step": s, "split": "validation", metric: v} for s, v in enumerate(values, 1)]
    return [row | {metric: v if math.isfinite(v := row[metric]) else None} for row in rows]


@given(values=VALUES, patience=st.integers(1, 4), metric=st.sampled_from(["loss", "accuracy"]))
def test_it_ends_when_the_last_evaluations_were_no_better(values, patience, metric):
    watch, sign = EarlyStopping(metric, patience), 1 if metric == "loss" else -1
    for number, value in enumerate(values, 1):
        better = watch.add(number, {metric: value, "other": 0.0})
        seen = [sign * v if math.isfinite(v) else math.inf for v in values[:number]]
        assert better == (math.isfinite(value) and seen[-1] < min(seen[:-1], default=math.inf))
        best = seen.index(min(seen)) + 1 if math.isfinite(min(seen)) else 0
        assert (watch.best.step if watch.best else 0) == best
        assert watch.ended == (number - best >= patience)


@given(values=VALUES, patience=st.integers(1, 4), cut=st.integers(0, 12))
def test_it_is_a_function_of_what_was_recorded(values, patience, cut):
    whole = EarlyStopping("loss", patience)
    resumed = EarlyStopping("loss", patience, rows_of(values[:cut]))
    for number, value in enumerate(values, 1):
        whole.add(number, {"loss": value})
        if number > cut:
            resumed.add(number, {"loss": value})
    assert (whole.best, whole.ended) == (resumed.best, resumed.ended)
    if whole.ended:
        assert whole.reason == resumed.reason


def test_other_rows_and_other_metrics_do_not_count():
    rows = [
        {"step": 1, "split": "train", "loss": 0.1},
        {"step": 2, "split": "validation", "loss": 2.0},
        {"step": 3, "split": "validation", "accuracy": 0.5},
    ]
    watch = EarlyStopping("loss", 1, rows)
    assert watch.best.step == 2
    assert not watch.ended


def test_the_reason_is_a_sentence():
    watch = EarlyStopping("macro_f1", 2, rows_of([0.5, 0.25, 0.5], "macro_f1"))
    assert watch.reason == (
        "validation macro f1 has not improved on 0.5 of step 1 in 2 evaluations"
    )
    assert "was not finite in 1 evaluation" in EarlyStopping("loss", 1, rows_of([math.nan])).reason


def test_without_patience_nothing_ends():
    assert not EarlyStopping("loss", None, rows_of([1.0] * 50)).ended


# Whole runs ---------------------------------------------------------------------------------------

LOSSES = {0: 9.0, 2: 3.0, 4: 2.0, 6: 2.5, 8: 2.0, 10: 2.25, 12: 1.0}
SHARES = {0: 0.0, 2: 0.25, 4: 0.5, 6: 0.75, 8: 0.5, 10: 0.75, 12: 0.25}


class Killed(Exception):
    """Ends a run as SIGKILL would: nothing more is saved."""


@pytest.fixture
def scripted(monkeypatch):
    """Makes evaluation report what is written down for each step; returns a way to interrupt."""
    now, stop_at, kill_at = [0], [None], [None]

    class Signal(contextlib.nullcontext):
        def __enter__(self):
            return self

        def requested(self, step):
            now[0] = step
            if step == kill_at[0]:
                raise Killed
            return step == stop_at[0]

    def evaluate(*_):
        return {"loss": LOSSES[now[0]], "accuracy": SHARES[now[0]]}

    def interrupt(*, stop=None, kill=None):
        stop_at[0], kill_at[0] = stop, kill

    monkeypatch.setattr(loop, "StopSignal", Signal)
    monkeypatch.setattr(loop.Evaluator, "evaluate", evaluate)
    return interrupt


def config_with(**settings):
    defaults = {"eval_interval": 2, "checkpoint_interval": 5, "keep": 1, "patience": 3}
    return tiny_config(**(defaults | settings))


def state_of(folder):
    steps = checkpoint_files.saved_steps(folder / "checkpoints")
    hashes = [hash_of(folder, step) for step in steps]
    validation = [r["step"] for r in read_metrics(folder, "validation")]
    return steps, hashes, validation


@pytest.mark.slow
def test_a_run_ends_early_and_stays_ended(scripted, tmp_path, capsys):
    folder = tmp_path / "run"
    train(config_with(), folder)
    output = capsys.readouterr().out
    assert "ended at step 10: validation loss has not improved on 2 of step 4" in output
    assert "best         loss 2 at step 4" in output
    assert "train on: --train.patience 6" in output
    # Step 4 is the best though no checkpoint was due there; 10 is the last.
    first = state_of(folder)
    assert first[0] == [4, 10]
    assert first[2] == [2, 4, 6, 8, 10]

    train(config_with(), folder)
    assert state_of(folder) == first
    again = capsys.readouterr().out
    assert "ended at step 10" in again
    assert "stopped after" not in again

    assert cli.main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "best step     4 (loss 2.0000)" in shown
    assert "validation    loss 2.25, accuracy 0.75 at step 10" in shown

    train(config_with(patience=4), folder)
    assert state_of(folder)[0] == [12]  # the newest, and by now the best
    assert "ended" not in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_run_ends_at_the_same_step(scripted, tmp_path):
    train(config_with(), tmp_path / "whole")
    for how, step in (("stop", 7), ("stop", 8), ("kill", 7), ("kill", 9)):
        folder = tmp_path / f"{how}-{step}"
        scripted(**{how: step})
        with contextlib.suppress(Killed):
            train(config_with(), folder)
        assert state_of(folder)[0][-1] < 10
        scripted()
        train(config_with(), folder)
        assert state_of(folder) == state_of(tmp_path / "whole"), folder


@pytest.mark.slow
def test_the_best_checkpoint_is_the_best_by_the_metric(scripted, tmp_path, capsys):
    config = config_with(metric="accuracy", patience=None, checkpoint_interval=2)
    train(config, tmp_path / "run")
    assert checkpoint_files.saved_steps(tmp_path / "run" / "checkpoints") == [6, 12]
    assert "best         accuracy 0.75 at step 6" in capsys.readouterr().out
    assert cli.main(["inspect", str(tmp_path / "run")]) == 0
    assert "best step     6 (accuracy 0.7500)" in capsys.readouterr().out


def test_an_unknown_metric_is_refused_before_training(tmp_path, monkeypatch):
    def steps(*_):
        raise AssertionError("trained")

    monkeypatch.setattr(loop.TrainProgram, "train_step", steps)
    with pytest.raises(ConfigError) as error:
        train(config_with(metric="acuracy"), tmp_path / "run")
    assert "train.metric = 'acuracy'" in str(error.value)
    assert "loss, perplexity, accuracy, bits_per_byte" in str(error.value)
    assert "did you mean 'accuracy'?" in str(error.value)
