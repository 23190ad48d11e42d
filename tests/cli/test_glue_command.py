"""`jaxformer glue` on a tiny BERT with random weights."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from glue_files import write_glue
from hf_checkpoints import save_checkpoint
from typed_commands import command, printed, refused

from jaxformer.cli.training.glue import Glue
from jaxformer.data.files.record import Record
from jaxformer.data.tasks.glue_tasks import DIAGNOSTIC, TASKS
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.training import loop
from jaxformer.training.result import TrainResult

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint("bert", tmp_path_factory.mktemp("bert"), num_hidden_layers=1)


def asked(checkpoint, data, folder, *options):
    """The words of a command."""
    words = ["glue", "--init-from", checkpoint, "--data", data, "--run-dir", folder, *options]
    return [str(word) for word in words]


@pytest.mark.slow
def test_a_task_from_its_files_to_the_submission(checkpoint, tmp_path, capsys, monkeypatch):
    data, folder = write_glue(tmp_path / "GLUE", "mnli"), tmp_path / "runs"
    options = ["--tasks", "mnli", "--train.steps", "2", "--batch-size", "8"]
    assert "MNLI" in printed(capsys, *asked(checkpoint, data, folder, *options))
    results = json.loads((folder / "results.json").read_text())
    metrics = results["tasks"]["mnli"]["metrics"]
    # The two development files are the same here, and each is scored in its own way.
    assert metrics["accuracy_matched"] == pytest.approx(metrics["accuracy_mismatched"])
    evaluation = json.loads((folder / "mnli" / "evaluation.json").read_text())
    assert metrics["accuracy_matched"] == evaluation["metrics"]["accuracy"]
    assert results["average"] == results["tasks"]["mnli"]["score"]
    for name in ("MNLI-m", "MNLI-mm", "AX"):
        header, *lines = (folder / "submission" / f"{name}.tsv").read_text().splitlines()
        assert header == "index\tprediction"
        assert [line.split("\t")[0] for line in lines] == list(map(str, range(7)))
        assert {line.split("\t")[1] for line in lines} <= set(TASKS["mnli"].labels)

    # The same command again trains nothing.
    before = (folder / "results.json").read_text()
    trained = []

    def interrupted(config, run_dir):
        trained.append(config.train.steps)
        return TrainResult(run_dir, 1, finished=False)

    monkeypatch.setattr(loop, "train", interrupted)
    command(*asked(checkpoint, data, folder, *options))
    assert (folder / "results.json").read_text() == before
    assert not trained
    # More steps, or as many as the recipe has, continue the run.
    command(*asked(checkpoint, data, folder, *options[:2], "--batch-size", "8"))
    command(*asked(checkpoint, data, folder, *options, "--train.steps", "3"))
    assert trained == [None, 3]
    said = refused(capsys, *asked(checkpoint, data, folder, *options, "--learning-rate", "1e-3"))
    assert "mnli holds a finished run with other settings" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "cola,rte"], r"rte: .*GLUE/RTE/train.tsv, .*RTE/dev.tsv"),
        (["--data", "nowhere"], "--data nowhere: must be the folder with the GLUE data"),
        (["--tasks", "snli"], "'snli' is not a GLUE task"),
        (["--tasks", "cola", "--seeds", "one"], "--seeds 'one': must be comma-separated numbers"),
        (["--tasks", "cola", "--seeds", ""], "--seeds '': must be comma-separated numbers"),
        (["--tasks", "cola", "--train.stepz", "4"], "did you mean --train.steps"),
        (["--tasks", "cola", "--epoch", "4"], "did you mean --epochs"),
        (["--tasks", "cola", "--max-length", "999"], "max_length"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    options, message, checkpoint, tmp_path, capsys
):
    data = write_glue(tmp_path / "GLUE", "cola")
    said = refused(capsys, *asked(checkpoint, data, tmp_path / "runs", *options))
    assert re.search(message, said)
    assert not (tmp_path / "runs").exists()


def test_a_wrong_line_of_the_last_task_is_found_first(checkpoint, tmp_path, capsys):
    data = write_glue(tmp_path / "GLUE", "cola", "rte")
    for name, line, message in (
        ("test.tsv", "7\ta\n", "test.tsv:9: 2 fields where the file's first line has 3"),
        ("dev.tsv", "18\ta\tb\tperhaps\n", "dev.tsv:20: the label 'perhaps' is not one of RTE's"),
    ):
        file = data / "RTE" / name
        before = file.read_text()
        file.write_text(before + line)
        words = asked(checkpoint, data, tmp_path / "runs", "--tasks", "cola,rte")
        assert message in refused(capsys, *words)
        file.write_text(before)
    assert not (tmp_path / "runs").exists()


def test_lists_between_commas():
    options = {"tasks": "rte,cola", "learning_rate": "2e-5, 3e-5", "seeds": "3,1,3"}
    plan = Glue(init_from="hf", data="GLUE", **options).plan
    assert (plan.tasks, plan.learning_rates, plan.seeds) == (("cola", "rte"), (2e-5, 3e-5), (3, 1))
    plan = Glue(init_from="hf", data="GLUE").plan
    assert (plan.tasks, plan.learning_rates, plan.seeds) == (tuple(TASKS), (), (0,))


@pytest.mark.slow
def test_all_nine_tasks(checkpoint, tmp_path):
    data, folder = write_glue(tmp_path / "GLUE"), tmp_path / "runs"
    options = ["--train.steps", "3", "--batch-size", "8", "--max-length", "48"]
    command(*asked(checkpoint, data, folder, *options))
    results = json.loads((folder / "results.json").read_text())
    assert list(results["tasks"]) == list(TASKS)
    scores = [result["score"] for result in results["tasks"].values()]
    assert results["average"] == pytest.approx(sum(scores) / 9)
    assert results["average_without_wnli"] == pytest.approx(sum(scores[:-1]) / 8)
    names = {name for task in (*TASKS.values(), DIAGNOSTIC) for name in task.submitted.values()}
    found = {file.stem for file in (folder / "submission").iterdir()}
    assert found == names
    for line in (folder / "submission" / "STS-B.tsv").read_text().splitlines()[1:]:
        assert 0 <= float(line.split("\t")[1]) <= 5


@pytest.mark.slow
def test_seeds_and_learning_rates(checkpoint, tmp_path):
    data, folder = write_glue(tmp_path / "GLUE", "mrpc"), tmp_path / "runs"
    options = ["--tasks", "MRPC", "--epochs", "1", "--batch-size", "8", "--seeds", "0,1"]
    command(*asked(checkpoint, data, folder, *options, "--learning-rate", "1e-4,1e-2"))
    result = json.loads((folder / "results.json").read_text())["tasks"]["mrpc"]
    runs = {row["folder"]: row for row in result["runs"]}
    assert set(runs) == {f"mrpc-lr{rate}-seed{n}" for rate in ("0.0001", "0.01") for n in (0, 1)}
    assert all(row["steps"] == 5 for row in runs.values())
    assert result["learning_rate"] in (1e-4, 1e-2)


@pytest.mark.slow
def test_a_killed_command_continues(checkpoint, tmp_path):
    data, folder = write_glue(tmp_path / "GLUE", "cola", "rte"), tmp_path / "runs"
    options = ["--tasks", "cola,rte", "--train.steps", "40", "--train.checkpoint-interval", "1"]
    options += ["--batch-size", "4", "--max-length", "32"]
    words = [sys.executable, "-m", "jaxformer", *asked(checkpoint, data, folder, *options)]
    for number, name in ((signal.SIGTERM, "cola"), (signal.SIGKILL, "rte")):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ))
        limit = time.monotonic() + 240
        while not (folder / name / "checkpoints" / "3").exists() and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
        assert not (folder / "results.json").exists(), output.decode()
    assert (folder / "cola" / "glue.json").exists()
    finished = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "continuing from step" in finished
    results = json.loads((folder / "results.json").read_text())
    assert [task["runs"][0]["steps"] for task in results["tasks"].values()] == [40, 40]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_other_families_predict_what_transformers_predicts(kind, tmp_path):
    """Also after the export, of which transformers makes its own classifier."""
    import torch
    import transformers

    origin = save_checkpoint(kind, tmp_path / "origin")
    data, folder = write_glue(tmp_path / "GLUE", "rte"), tmp_path / "runs"
    options = ["--tasks", "rte", "--train.steps", "2", "--batch-size", "4", "--max-length", "48"]
    command(*asked(origin, data, folder, *options))
    command("export", folder / "rte", tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    predictor = open_predictor(folder / "rte", PredictionConfig(text=("a", "b"), scores=True))
    pairs = [("The old captain", "sells the boat"), ("She paints the red lake?", "Nobody")]
    ours = predictor.predict([Record("", {"a": a, "b": b}) for a, b in pairs])
    for pair, row in zip(pairs, ours, strict=True):
        arrays = tokenizer(*pair, return_tensors="pt")
        arrays.pop("token_type_ids", None)
        with torch.no_grad():
            theirs = model(**arrays).logits.softmax(-1)[0]
        scores = [row[f"score_{label}"] for label in TASKS["rte"].labels]
        assert scores == pytest.approx(theirs.tolist(), abs=2e-5)
