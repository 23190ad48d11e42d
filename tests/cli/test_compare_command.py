"""jaxformer compare: a sweep is a loop of the shell, and this reads its results."""

import dataclasses
import json
from pathlib import Path

import pytest
from tiny_run import tiny_config
from typed_commands import printed, refused

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.functional import ALiBi, LayerNorm
from jaxformer.models import AbstractModel
from jaxformer.optim import AdamW, Cosine
from jaxformer.training.logging import comparison
from jaxformer.training.logging.published_scores import PUBLISHED, published_lines

pytestmark = pytest.mark.more


def sweep(folder, rate, layers, losses, accuracy=0.5):
    """A run of a sweep, as far as `compare` looks at it."""
    optimizer = AdamW(schedule=Cosine(learning_rate=rate, warmup_steps=1))
    config = tiny_config()
    model = dataclasses.replace(config.model, num_layers=layers)
    open_run_folder(folder, dataclasses.replace(config, model=model, optimizer=optimizer))
    rows = [
        {"step": step, "split": "validation", "loss": loss, "accuracy": accuracy - loss / 100}
        for step, loss in losses.items()
    ]
    rows.append({"step": 9, "split": "train", "loss": 1.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_compare_reads_a_sweep(tmp_path, capsys):
    folders = [
        sweep(tmp_path / "sweep-1", 1e-3, 1, {10: 4.0, 20: 3.0, 30: 3.5}),
        sweep(tmp_path / "sweep-2", 3e-4, 2, {10: 3.5, 20: 2.5}, accuracy=0.9),
        sweep(tmp_path / "sweep-3", 1e-4, 2, {}),
    ]
    asked = ["compare", *folders, "--out", tmp_path / "sweep.png"]
    lines = printed(capsys, *asked, "--table", tmp_path / "sweep.csv").splitlines()
    header = lines[0].split()
    assert header == ["run", "loss", "parameters", "tokens", "flops", "num_layers", "learning_rate"]
    assert [line.split()[0] for line in lines[1:4]] == ["sweep-2", "sweep-1", "sweep-3"]
    assert "3.0000 at step 20" in lines[2]
    assert "not measured" in lines[3]
    assert lines[4:] == [str(tmp_path / n) for n in ("sweep.png", "sweep-compute.png", "sweep.csv")]
    assert all(Path(line).stat().st_size > 100 for line in lines[4:])
    best, other, none = json.loads(printed(capsys, *asked, "--json", "--metric", "accuracy"))
    assert (best["run"], best["step"], best["accuracy"]) == ("sweep-2", 20, pytest.approx(0.875))
    assert (best["learning_rate"], best["num_layers"]) == (3e-4, 2)
    assert none["accuracy"] is None
    config = tiny_config()
    tokens = config.data.batch_size * config.data.sequence_length
    assert best["tokens"] == 20 * tokens
    model = dataclasses.replace(config.model, num_layers=2)
    flops = model.flops(config.row_lengths).training(causal=False)
    assert best["flops"] == pytest.approx(20 * tokens * flops)
    shapes = AbstractModel(model.build).shapes.values()
    assert best["parameters"] == sum(shape.size for shape in shapes) > other["parameters"]


def test_compare_says_what_was_measured(tmp_path, capsys):
    folder = sweep(tmp_path / "a", 1e-3, 1, {10: 4.0})
    error = refused(capsys, "compare", folder, "--metric", "acuracy")
    assert "--metric acuracy: no run measured it; there are loss, accuracy" in error
    assert "did you mean 'accuracy'?" in error


def test_compare_finds_what_is_measured_at_the_end(tmp_path, capsys):
    folders = [sweep(tmp_path / name, 1e-3, 1, {10: 4.0}) for name in ("a", "b", "other")]
    for folder, bleu, seed in zip(folders, (20.0, 30.0, 90.0), (0, 0, 1), strict=True):
        data = json.loads(Path(folder, "config.json").read_text())["data"]
        data |= {"seed": seed, "max_validation_batches": None}
        found = {"run": folder, "step": 12, "metrics": {"loss": 1.0, "bleu": bleu}, "data": data}
        Path(folder, "evaluation.json").write_text(json.dumps(found))
    asked = ["compare", *folders, "--out", tmp_path / "sweep.png", "--metric", "bleu"]
    rows = json.loads(printed(capsys, *asked, "--json"))
    found = [(row["run"], row["bleu"], row["step"]) for row in rows]
    assert found == [("b", 30.0, 12), ("a", 20.0, 12), ("other", None, None)]
    lines = printed(capsys, *asked).splitlines()
    assert next(line for line in lines if "flops" in line).startswith("run")
    published = [line for line in lines if line.startswith("Transformer")]
    assert len(published) == 4
    assert all("arxiv.org/abs/1706.03762" in line for line in published)
    assert published_lines("loss") == []
    values = [pair for row in PUBLISHED for pair in row.scores.items()]
    assert all(0 < value < 1 for name, value in values if name.startswith("rouge"))


def test_compare_needs_measurements_alone(tmp_path, capsys):
    folder = sweep(tmp_path / "a", 1e-3, 1, {10: 4.0})
    Path(folder, "config.json").unlink()
    out = ["--out", tmp_path / "a.png", "--title", "Schemes"]
    lines = printed(capsys, "compare", folder, *out).splitlines()
    assert lines[1].startswith("a    4.0000 at step 10")
    assert lines[2:] == [str(tmp_path / "a.png")]
    assert refused(capsys, "compare", tmp_path)
    assert f"{tmp_path / 'none'} does not exist" in refused(capsys, "compare", tmp_path / "none")


def test_settings_that_differ():
    config = tiny_config()
    other = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, position=ALiBi(), norm=LayerNorm(eps=1e-3)),
        data=dataclasses.replace(config.data, seed=1),
        train=dataclasses.replace(config.train, seed=2),
    )
    first, second = comparison.settings([config, other])
    assert (first["data.seed"], second["data.seed"]) == (0, 1)
    assert (first["train.seed"], second["train.seed"]) == (0, 2)
    assert (first["position"], second["position"]) == ("RoPE", "ALiBi")
    assert (first["norm"], second["norm"]) == ("RMSNorm", "LayerNorm")
    assert len(first) == 4
    assert comparison.settings([config, None, config]) == [{}, {}, {}]
