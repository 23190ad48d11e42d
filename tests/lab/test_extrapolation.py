"""The study of lengths from plan to page; the slow test trains it."""

import json

import numpy as np
import pytest
from typed_commands import printed

from jaxformer.config import validate
from jaxformer.config.overrides import parse
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.lab.studies.extrapolation import TASKS, Extrapolation
from jaxformer.lab.studies.extrapolation_report import Table, records, write_extrapolation
from jaxformer.lab.studies.schemes import SCHEMES
from jaxformer.lab.studies.study import Result

pytestmark = pytest.mark.more


def invented(plan):
    """Results as runs would leave them: ALiBi's loss stays, the others' grows with the length."""
    slopes = {name: 0.1 * number for number, name in enumerate(("alibi", "t5", "rope"))}
    found = {}
    for cell in plan.cells():
        seed = cell.config.train.seed
        measured = {}
        for scheme in cell.settings["schemes"]:
            rows = []
            for factor in plan.multiples:
                loss = 4 + slopes.get(scheme, 0.4) * np.log2(factor) + 0.01 * seed
                known = scheme != "learned" or factor == 1
                scores = {"loss": loss, "accuracy": 1 / factor, "exact_match": float(factor == 1)}
                row = {"factor": factor, "length": factor * 10}
                rows.append(row | (scores if known else {"refused": "no"}))
            measured[scheme] = rows
        found[cell.name] = Result(1.0, measured)
    return found


def test_the_default_has_every_scheme_task_and_seed(tmp_path):
    cells = Extrapolation(tmp_path).cells()
    assert len({cell.name for cell in cells}) == len(cells) == 3 * 7 * 8
    assert {cell.name.partition("-")[0] for cell in cells} == set(TASKS)
    tested = {scheme for cell in cells for scheme in cell.settings["schemes"]}
    assert tested == set(SCHEMES)
    for cell in cells[:56]:
        validate(cell.config, 1)


def test_seeds_change_the_model_and_the_data_and_not_what_is_tested(tmp_path):
    options = {"schemes": "rope", "tasks": "copy", "seeds": 2}
    first, second = (cell.config for cell in Extrapolation(tmp_path, **options).cells())
    assert (first.train.seed, first.data.seed) == (0, 0)
    assert (second.train.seed, second.data.seed) == (1, 1)
    assert first.data.split_seed == second.data.split_seed
    assert first.model == second.model


def test_the_report_shows_what_was_measured(tmp_path):
    study = Extrapolation(tmp_path, tasks="text,copy", seeds=2)
    results = invented(study)
    files = {file.name: file for file in write_extrapolation(study, results)}
    text = files["report.md"].read_text()
    assert "At 2,048 tokens, from the best: ALiBi, T5 bias, RoPE, NoPE" in text
    assert "it is the order here at 256, 512, 1,024, 2,048 tokens." in text
    assert "| T5 bias | 1.105 | 1.221 | 1.350 | 1.492 |" in text
    assert "| ALiBi | 54.9 (54.6–55.1) |" in text
    (learned,) = [line for line in text.splitlines() if line.startswith("| learned | 54")]
    assert learned.count("–") == 5
    assert "| learned | – | – | – | – |" in text  # its growth
    assert "| NoPE | 0.23 |" in text  # mean of 1/2, 1/4, 1/8 and 1/16
    rows = json.loads(files["results.json"].read_text())
    assert len(rows) == 2 * 2 * 10 * 5
    assert sum("refused" in row for row in rows) == 2 * 2 * 4
    assert {"text.png", "tasks.png", "index.html", "results.csv"} <= set(files)


def test_growth_is_each_models_own(tmp_path):
    study = Extrapolation(tmp_path, tasks="text", seeds=1, schemes="rope,alibi,t5")
    results = invented(study)
    (alibi,) = (r.measured["alibi"] for r in results.values() if "alibi" in r.measured)
    for row in alibi:
        row["loss"] += 3.0  # starts last, and stays
    table = Table(records(study, results))
    assert table.order(study.chosen_schemes, 4) == ["t5", "rope", "alibi"]
    assert table.order(study.chosen_schemes, 4, first=1) == ["alibi", "t5", "rope"]


def test_runs_that_diverged_are_in_no_mean(tmp_path):
    study = Extrapolation(tmp_path, tasks="text", seeds=2, schemes="alibi")
    results = invented(study)
    results["text-alibi-seed1"] = Result(1.0, {}, "Stopped after step 7")
    write_extrapolation(study, results)
    assert "1 of the models diverged" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--schemes", "ropee"], ArgumentError, "--schemes 'ropee'.*did you mean 'rope'"),
        (["--tasks", "copi"], ArgumentError, "--tasks 'copi'.*did you mean 'copy'"),
        (["--factors", "1,0"], ArgumentError, "--factors '1,0': must be comma-separated integers"),
        (["--factors", "1,x"], ArgumentError, "--factors '1,x': must be comma-separated integers"),
        (["--seeds", "0"], ConfigError, "lab.seeds = 0"),
        (["--task-length", "2"], ConfigError, "lab.task_length = 2: must be an integer of at"),
    ],
)
def test_bad_options(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        parse(Extrapolation, ["--out", str(tmp_path / "out"), *arguments], "extrapolate")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_small_study_from_the_command_to_the_page(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["lab", "extrapolate", "--out", out, "--tasks", "text,copy"]
    arguments += ["--schemes", "alibi,learned,rope-yarn"]
    arguments += ["--seeds", "1", "--steps", "2", "--task-steps", "2", "--text-length", "16"]
    arguments += ["--task-length", "4", "--factors", "1,2"]
    assert "[1/6] text-learned-seed0" in printed(capsys, *arguments)
    first = (out / "results.csv").read_text()
    (out / "results" / "copy-alibi-seed0.json").unlink()
    assert "[5/6]" in printed(capsys, *arguments)
    assert (out / "results.csv").read_text() == first
