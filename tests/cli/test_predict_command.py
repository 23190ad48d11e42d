"""jaxformer predict, as a user types it."""

import csv
import json

import pytest
from hf_checkpoints import SENTENCES, save_checkpoint
from typed_commands import command, refused

from jaxformer.data.files.tables import read_records

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_checkpoint("bert_classifier", tmp_path_factory.mktemp("models") / "classifier")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "new.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "sentence", "label"])
        writer.writerows([number, text, "?"] for number, text in enumerate(SENTENCES[:20]))
    return path


def test_every_format_holds_the_same(classifier, table, tmp_path, capsys):
    found = []
    for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
        output = tmp_path / f"out{ending}"
        command("predict", classifier, "--input", table, "--output", output, "--scores")
        printed = capsys.readouterr().out
        assert f"written to {output}: 20 rows" in printed
        assert "label is predicted_label" in printed
        found.append([record.values for record in read_records(output)])
    for rows in found:
        assert [row["sentence"] for row in rows] == list(SENTENCES[:20])
        for row, first in zip(rows, found[0], strict=True):
            assert row["predicted_label"] == first["predicted_label"]
            assert float(row["score"]) == float(first["score"])
    scores = ["score", "score_negative", "score_neutral", "score_positive"]
    assert list(found[0][0]) == ["id", "sentence", "label", "predicted_label", *scores]
    outputs = [f"out.{ending}" for ending in ("csv", "jsonl", "parquet", "tsv")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", *outputs]


def test_cut_rows_are_told(classifier, tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "lake " * 99}) + '\n{"text": "a"}\n')
    files = ["--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.csv"]
    command("predict", classifier, *files)
    assert "1 of 2 rows were longer than 64 tokens and were truncated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "out.xml"], "--output out.xml"),
        (["--output", "new.csv"], "new.csv exists: name another file"),
        (["--output", "out.csv", "--step", "3"], "--step 3: "),
        (["--output", "out.csv", "--text", "body"], "new.csv:2: no column 'body'"),
        (["--output", "out.csv", "--batch-size", "0"], "batch_size = 0"),
        (["--output", "out.csv", "--max-length", "65"], "max_length = 65: "),
        (["--output", "out.csv", "--text", "a", "b", "c"], "text = ('a', 'b', 'c')"),
    ],
    ids=str,
)
def test_mistakes_are_named_first(classifier, table, options, message, monkeypatch, capsys):
    monkeypatch.chdir(table.parent)
    assert message in refused(capsys, "predict", classifier, "--input", "new.csv", *options)
    assert sorted(path.name for path in table.parent.iterdir()) == ["new.csv"]
