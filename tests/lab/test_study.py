"""Studies: cells that are trained once, whatever interrupts them."""

import json
from types import SimpleNamespace

import pytest
from tiny_models import tiny

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks.algorithmic import VOCAB_SIZE, Algorithmic
from jaxformer.errors import ConfigError
from jaxformer.lab.studies import study as study_module
from jaxformer.lab.studies.report import Section, spread, write_report
from jaxformer.lab.studies.study import Cell, Result, Study
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
