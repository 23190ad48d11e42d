"""Norms with and without warm-up, and the three families: plans, reports, and one run of each."""

import pytest

from jaxformer.cli.lab.studies import families, norms
from jaxformer.config import validate
from jaxformer.errors import ConfigError
from jaxformer.lab.studies.families import FAMILIES, Families, write_families
from jaxformer.lab.studies.norms import Norms, write_norms
from jaxformer.lab.studies.study import Result
from jaxformer.nn import PostNorm, PreNorm

pytestmark = pytest.mark.more


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
