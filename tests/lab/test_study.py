"""Studies: cells that are trained once, whatever interrupts them; norms, and the three families."""

import json
from types import SimpleNamespace

import pytest
from tiny_models import tiny

from jaxformer.cli.lab.studies import families, norms
from jaxformer.config import Config, TrainConfig, validate
from jaxformer.data.tasks.algorithmic import VOCAB_SIZE, Algorithmic
from jaxformer.errors import ConfigError
from jaxformer.lab.studies import study as study_module
from jaxformer.lab.studies.families import FAMILIES, Families, write_families
from jaxformer.lab.studies.norms import Norms, write_norms
from jaxformer.lab.studies.report import Section, spread, write_report
from jaxformer.lab.studies.study import Cell, Result, Study
from jaxformer.nn import PostNorm, PreNorm
from jaxformer.training.logging.run_logger import TrainingDiverged

pytestmark = pytest.mark.more


def cell(name="a", steps=2, measure=lambda result: dict(result.metrics), **settings):
    config = Config(
        model=tiny(vocab_size=VOCAB_SIZE),
        data=Algorithmic(length=4, num_rows=200, batch_size=8),
        train=TrainConfig(steps=steps, eval_interval=steps, loggers=(), sample_tokens=0),
    )
    return Cell(name, "task", config, settings, measure)


class Trained:
    """Stands for `train`: counts the runs, and may stop or diverge."""

    def __init__(self, monkeypatch, action=lambda number: None):
        self.count, self._action = 0, action
        monkeypatch.setattr(study_module, "train", self)

    def __call__(self, config, folder):
        self.count += 1
        folder.mkdir(parents=True, exist_ok=True)
        if (error := self._action(self.count)) is not None:
            raise error

        return SimpleNamespace(finished=True, metrics={"loss": float(config.train.steps)})


def test_a_study_that_was_interrupted_gives_the_same_results(tmp_path, monkeypatch):
    cells = [cell(name, steps) for name, steps in (("a", 1), ("b", 2), ("c", 3))]
    whole = Study(tmp_path / "whole")
    Trained(monkeypatch)
    expected = {name: r.measured for name, r in whole.run(cells).items()}

    Trained(monkeypatch, lambda number: KeyboardInterrupt() if number == 2 else None)
    broken = Study(tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        broken.run(cells)
    assert broken.finished(cells[0]) is not None
    assert broken.finished(cells[1]) is None
    again = Trained(monkeypatch)
    found = broken.run(cells)
    assert again.count == 2
    assert {name: r.measured for name, r in found.items()} == expected


def test_a_run_that_is_stopped_ends_the_study(tmp_path, monkeypatch, capsys):
    stopped = SimpleNamespace(finished=False)
    monkeypatch.setattr(study_module, "train", lambda config, folder: stopped)
    assert Study(tmp_path).run([cell()]) is None
    assert "rerun the same command" in capsys.readouterr().out


def test_results_of_other_settings_are_refused(tmp_path, monkeypatch):
    Trained(monkeypatch)
    Study(tmp_path).run([cell(factors=[1, 2])])
    with pytest.raises(ConfigError, match=r"train.steps 2 -> 3.*--out"):
        Study(tmp_path).run([cell(steps=3, factors=[1, 2])])
    with pytest.raises(ConfigError, match=r"settings\.factors"):
        Study(tmp_path).run([cell(factors=[1, 4])])


def test_a_run_that_diverges_is_a_result(tmp_path, monkeypatch):
    Trained(monkeypatch, lambda number: TrainingDiverged("Stopped after step 7: 10 updates"))
    found = Study(tmp_path).run([cell()])["a"]
    assert found.measured == {}
    assert found.diverged == "Stopped after step 7"
    assert Study(tmp_path).run([cell()])["a"] == found


def test_the_rest_of_the_time_is_that_of_cells_of_the_same_kind():
    cells = [cell(name)._replace(kind=kind) for name, kind in zip("abcd", "xxyy", strict=True)]
    none = dict.fromkeys("abcd")
    assert study_module.time_left(cells, none) == ""
    some = none | {"a": Result(10.0, {}), "c": Result(40.0, {})}
    assert study_module.time_left(cells, some) == "  eta 50s"
    assert study_module.time_left(cells, none | {"a": Result(10.0, {})}) == "  eta 30s"


def test_a_cell_is_trained_and_its_folder_may_be_kept(tmp_path):
    found = Study(tmp_path, keep_runs=True).run([cell()])["a"]
    assert found.measured["loss"] > 0
    assert (tmp_path / "runs" / "a" / "checkpoints" / "2").exists()
    saved = json.loads((tmp_path / "results" / "a.json").read_text())
    assert saved["measured"] == found.measured
    assert saved["config"]["train"]["steps"] == 2


def test_the_folder_of_a_finished_run_is_removed(tmp_path, monkeypatch):
    Trained(monkeypatch)
    Study(tmp_path).run([cell()])
    assert not list((tmp_path / "runs").iterdir())


def test_spreads_and_reports(tmp_path):
    assert spread([1.0, 3.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread([1.0, 3.0]).as_text(1) == "2.0 (1.0–3.0)"
    assert spread([1.0]).as_text() == "1.00"
    sections = [Section("Found", ["A sentence."], ["scheme", "loss"], [["rope", "1.0"]])]
    files = write_report(tmp_path, "Title", sections, [{"scheme": "rope", "loss": 1.0}])
    assert {file.name for file in files} == {
        "index.html",
        "report.md",
        "results.json",
        "results.csv",
    }
    assert "| rope | 1.0 |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "results.csv").read_text() == "scheme,loss\nrope,1.0\n"


# Norms with and without warm-up, and the three families -------------------------------------------


def test_norms_differ_in_the_norm_and_the_warmup_alone(tmp_path):
    cells = Norms(tmp_path, seeds=2).cells()
    assert len({cell.name for cell in cells}) == 8
    kinds = {
        (type(c.config.model.residual), c.config.optimizer.schedule.warmup_steps) for c in cells
    }
    assert kinds == {(PreNorm, 50), (PreNorm, 0), (PostNorm, 50), (PostNorm, 0)}
    for cell in cells:
        validate(cell.config, 1)


def test_the_report_of_norms(tmp_path):
    plan = Norms(tmp_path, seeds=2)
    losses = {"pre-norm-warmup50": 4.0, "pre-norm-no-warmup": 4.25, "post-norm-warmup50": 4.5}
    results = {}
    for cell in plan.cells():
        name, _, seed = cell.name.rpartition("-seed")
        if name not in losses:
            results[cell.name] = Result(1.0, {}, "Stopped after step 7")
            continue
        loss = losses[name] + 0.1 * int(seed)
        measured = {"steps": [1, 2], "losses": [6.0, loss], "validation_loss": loss}
        results[cell.name] = Result(1.0, measured)
    write_norms(plan, results)
    text = (tmp_path / "report.md").read_text()
    assert "| pre-norm | 50 steps | 4.05 (4.00–4.10) | 0 of 2 |" in text
    assert "| post-norm | none | – | 2 of 2 |" in text
    assert "Without the warm-up the final loss changes: that of pre-norm by +0.25 nats." in text
    assert (tmp_path / "norms.png").exists()


def test_families_spend_the_same(tmp_path):
    plan = Families(tmp_path, steps=500)
    budget = 500 * plan.flops_per_step("decoder")
    for family in FAMILIES:
        spent = plan.steps_of(family) * plan.flops_per_step(family)
        assert budget - plan.flops_per_step(family) < spent <= budget
    assert plan.steps_of("decoder") == 500
    for cell in plan.cells():
        validate(cell.config, 1)


def test_the_report_of_families(tmp_path):
    plan = Families(tmp_path, seeds=2, task="copy")
    results = {}
    for cell in plan.cells():
        share = 0.5 + 0.1 * cell.config.train.seed
        scores = {"loss": 1.0, "accuracy": share, "exact_match": 0.0}
        measured = {"steps": [10, 20], "accuracies": [0.5, share]} | scores
        results[cell.name] = Result(1.0, measured)
    results["copy-decoder-seed0"] = Result(1.0, {}, "Stopped after step 7")
    write_families(plan, results)
    text = (tmp_path / "report.md").read_text()
    assert f"| prefix decoder | {plan.steps_of('prefix')} | 0.55 (0.50–0.60) | 0.00 |" in text
    assert "| decoder | 800 | 0.60 | 0.00 |" in text
    assert "by decreasing accuracy: decoder, encoder-decoder, prefix decoder." in text


@pytest.mark.parametrize(
    ("plan", "fields", "message"),
    [
        (Norms, {"layers": 0}, "lab.layers = 0"),
        (Norms, {"learning_rate": -1.0}, "lab.learning_rate = -1"),
        (Families, {"task": "revers"}, "lab.task = 'revers'; did you mean 'reverse'"),
        (Families, {"steps": 3}, "lab.steps = 3"),
    ],
)
def test_bad_options_of_small_experiments(plan, fields, message):
    with pytest.raises(ConfigError, match=message):
        plan(**fields)


@pytest.mark.slow
def test_small_experiments_from_the_command_to_the_page(tmp_path):
    home = tmp_path / "norms"
    norms(Norms(home, seeds=1, steps=2, layers=1))
    assert (home / "index.html").stat().st_size > 10_000
    home = tmp_path / "families"
    families(Families(home, seeds=1, steps=10, length=4, task="copy"))
    assert "encoder-decoder" in (home / "report.md").read_text()
