"""The scores of GLUE: tasks, medians, averages, and the plan of the runs."""

import dataclasses
from pathlib import Path

import pytest
from glue_files import write_glue

from jaxformer.config import load_config
from jaxformer.config.shipped import config_spec
from jaxformer.data.tasks.glue_tasks import TASKS
from jaxformer.errors import ConfigError, DataError
from jaxformer.training.glue.measure import Measured
from jaxformer.training.glue.plan import GluePlan, GlueRun, chosen_tasks
from jaxformer.training.glue.summary import report, summary, task_result

# What GLUE's leaderboard shows for BERT large, in percent; its score there is 80.5.
BERT_LARGE = {
    "cola": {"matthews": 60.5},
    "sst2": {"accuracy": 94.9},
    "mrpc": {"f1": 89.3, "accuracy": 85.4},
    "stsb": {"pearson": 87.6, "spearman": 86.5},
    "qqp": {"f1": 72.1, "accuracy": 89.3},
    "mnli": {"accuracy_matched": 86.7, "accuracy_mismatched": 85.9},
    "qnli": {"accuracy": 92.7},
    "rte": {"accuracy": 70.1},
    "wnli": {"accuracy": 65.1},
}


def results_of(metrics, **runs):
    run = GlueRun("cola", 2e-5, 0, None, Path("cola"))._replace(**runs)
    return [(run, Measured(10, metrics, {}))]


def test_the_average_is_that_of_the_leaderboard_with_and_without_wnli():
    results = {task: task_result(results_of(values)) for task, values in BERT_LARGE.items()}
    content = summary(results)
    assert content["tasks"]["mrpc"]["score"] == pytest.approx(87.35)
    assert content["average"] == pytest.approx(80.5, abs=0.05)
    assert content["average_without_wnli"] == pytest.approx((80.52 * 9 - 65.1) / 8, abs=0.01)
    assert "average_without_wnli" not in summary({"cola": results["cola"]})


def test_the_median_of_seeds_and_the_best_learning_rate():
    values = {(2e-5, 0): 0.5, (2e-5, 1): 0.9, (2e-5, 2): 0.6, (5e-5, 0): 0.7, (5e-5, 1): 0.1}
    values[5e-5, 2] = 0.65
    runs = []
    for (rate, seed), value in values.items():
        runs += results_of({"matthews": value}, learning_rate=rate, seed=seed)
    result = task_result(runs)
    assert (result.learning_rate, result.metrics) == (5e-5, {"matthews": 0.65})
    assert (result.best.learning_rate, result.best.seed) == (5e-5, 0)


def test_the_report(tmp_path, capsys):
    folder = tmp_path / "cola" / "submission"
    folder.mkdir(parents=True)
    (folder / "CoLA.tsv").write_text("index\tprediction\n0\t1\n")
    run = GlueRun("cola", 2e-5, 0, None, tmp_path / "cola")
    measured = Measured(3, {"matthews": 0.521}, {"CoLA": "submission/CoLA.tsv"})
    wnli = GlueRun("wnli", 2e-5, 0, None, tmp_path / "wnli"), Measured(3, {"accuracy": 0.25}, {})
    files = report({"cola": task_result([(run, measured)]), "wnli": task_result([wnli])}, tmp_path)
    names = ["results.json", "results.md", "submission/CoLA.tsv"]
    assert [str(file.relative_to(tmp_path)) for file in files] == names
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert lines[2] == "| CoLA | matthews 52.1 | 52.1 |"
    assert lines[4] == "| average | of 2 tasks | 38.6 |"
    assert lines[5] == "| average | without WNLI | 52.1 |"
    assert "matthews 52.1" in capsys.readouterr().out
    assert files[2].read_text().startswith("index\tprediction")


def test_the_tasks_that_are_named():
    assert chosen_tasks("all") == tuple(TASKS)
    assert chosen_tasks("SST-2, cola,cola") == ("cola", "sst2")
    with pytest.raises(ConfigError, match=r"'colla' is not a GLUE task: .*did you mean 'cola'"):
        chosen_tasks("colla")
    with pytest.raises(ConfigError, match=r"--tasks ',': must be all, or some of cola, sst2"):
        chosen_tasks(",")


def recipe(task):
    return load_config(config_spec(f"glue:{task}"))


def test_the_recipes():
    for task, epochs in {"cola": 3, "mrpc": 5, "mnli": 3, "wnli": 5}.items():
        config = recipe(task)
        assert (config.train.steps, config.train.epochs) == (None, epochs)
        assert config.optimizer.schedule.warmup(801) == 81
        assert config.data.max_validation_batches is None


@pytest.fixture
def plan(tmp_path):
    root = write_glue(tmp_path / "GLUE", "cola", "rte", "mrpc", train=96)
    return GluePlan("hf", str(root), tmp_path / "runs", ("cola", "rte"))


def planned(plan, task="cola", changed=lambda config: config):
    return plan.runs(task, recipe, changed)


def test_what_a_user_asks_for_replaces_the_recipe(plan):
    (run,) = planned(plan)
    assert (run.folder.name, run.config.train.epochs) == ("cola", 3)
    assert (run.config.data.folder, run.config.init_from) == (plan.data, "hf")
    assert run.config.optimizer.schedule.learning_rate == run.learning_rate == 2e-5
    other = dataclasses.replace(plan, epochs=10, batch_size=16, max_length=32)
    (run,) = planned(other)
    assert (run.config.train.steps, run.config.train.epochs) == (None, 10)
    assert (run.config.data.batch_size, run.config.data.sequence_length) == (16, 32)


def test_a_grid_of_learning_rates_and_seeds(plan):
    other = dataclasses.replace(plan, learning_rates=(2e-5, 5e-5), seeds=(1, 2))
    runs = planned(other, "rte")
    assert [run.folder.name for run in runs] == [
        f"rte-lr{rate}-seed{seed}" for rate in ("2e-05", "5e-05") for seed in (1, 2)
    ]
    for run in runs:
        assert run.config.optimizer.schedule.learning_rate == run.learning_rate
        assert run.config.train.seed == run.config.data.seed == run.seed


def test_missing_files_are_named_by_task(plan, tmp_path):
    plan.check_files()
    (tmp_path / "GLUE" / "RTE" / "dev.tsv").unlink()
    (tmp_path / "GLUE" / "MRPC" / "train.tsv").unlink()
    other = dataclasses.replace(plan, tasks=("cola", "rte", "mrpc"))
    message = r"missing:\n  rte: .*RTE/dev\.tsv\n  mrpc: .*MRPC/train\.tsv\nPut them there, or "
    with pytest.raises(DataError, match=message + "leave them out: --tasks cola$"):
        other.check_files()
