"""Predictions for a file: complete or not at all, and never made twice."""

import json
from types import SimpleNamespace

import pytest

from jaxformer.errors import ConfigError, DataError
from jaxformer.pretrained.prediction.predictor import Predictor
from jaxformer.pretrained.prediction.table import PredictedTable

SETTINGS = {"folder": "model", "text": ["text"]}
ROWS = 150


class Lengths(Predictor):
    """Predicts the length of a text; dies when it has predicted so many rows."""

    def __init__(self, dies_after=10**9):
        subject = SimpleNamespace(reader=SimpleNamespace(chunk=16), batch_size=2, text=("text",))
        super().__init__(subject)
        self.seen, self._dies_after = [], dies_after

    def _rows(self, records):
        self.seen += [record.values["id"] for record in records]
        if len(self.seen) > self._dies_after:
            raise KeyboardInterrupt
        return [{"label": len(text)} for (text,) in self._texts(records)]


@pytest.fixture
def files(tmp_path):
    source = tmp_path / "in.csv"
    lines = [f'{n},"a, {"b" * n}"' for n in range(ROWS)]
    source.write_text("\n".join(["id,text", *lines]) + "\n")
    return PredictedTable(source, tmp_path / "out.jsonl")


def predict(files, predictor, settings=SETTINGS):
    done = []
    files.predict(predictor, settings, done.append)
    return done


def rows_of(files):
    return [json.loads(line) for line in files.output.read_text().splitlines()]


WANTED = [{"id": str(n), "text": f"a, {'b' * n}", "label": n + 3} for n in range(ROWS)]


def test_the_columns_of_the_input_stay(files):
    assert files.count(Lengths()) == ROWS
    assert predict(files, Lengths()) == [0, 32, 64, 96, 128, ROWS]
    assert rows_of(files) == WANTED
    assert not files.partial.exists()


@pytest.mark.parametrize("cut", [0, 5])
def test_what_was_interrupted_continues(files, cut):
    with pytest.raises(KeyboardInterrupt):
        predict(files, Lengths(dies_after=70))
    assert not files.output.exists()
    if cut:  # a line that a killed process had half written
        files.partial.write_bytes(files.partial.read_bytes()[:-cut])
    with pytest.raises(ConfigError, match=r"out\.jsonl\.partial has the predictions .*--resume"):
        files.check_unused(resume=False)
    files.check_unused(resume=True)
    predictor = Lengths()
    predict(files, predictor)
    assert rows_of(files) == WANTED
    assert predictor.seen == [str(n) for n in range(64 - bool(cut), ROWS)]


def test_an_interrupted_start_leaves_nothing_to_continue(files):
    with pytest.raises(KeyboardInterrupt):
        predict(files, Lengths(dies_after=0))
    files.check_unused(resume=False)
    predict(files, Lengths(), {"folder": "another"})
    assert rows_of(files) == WANTED


def test_other_rows_or_options_are_not_continued(files):
    with pytest.raises(KeyboardInterrupt):
        predict(files, Lengths(dies_after=70))
    before = files.partial.read_bytes()
    with pytest.raises(ConfigError, match=r"--resume: .* with other options or another model"):
        predict(files, Lengths(), {"folder": "another"})
    files.input.write_text(files.input.read_text().replace("a, bb", "a, cb"))
    with pytest.raises(DataError, match=r"in\.csv:4: not the row that prediction 3 in .* is for"):
        predict(files, Lengths())
    assert files.partial.read_bytes() == before
    assert not files.output.exists()


def test_a_row_that_cannot_be_read_is_named_before_any_work(files):
    files.input.write_text("id,text\n1,x\n2\n")
    with pytest.raises(DataError, match=r"in\.csv:3"):
        files.count(Lengths())
    files.input.write_text("id,body\n1,x\n")
    with pytest.raises(DataError, match=r"in\.csv:2: no column 'text'; .*: 'id', 'body'"):
        files.count(Lengths())
    files.input.write_text("id,text\n")
    with pytest.raises(DataError, match="has no rows"):
        files.count(Lengths())


def test_nothing_of_the_users_is_written_over(files):
    files.output.write_text("mine\n")
    for resume in (True, False):
        with pytest.raises(ConfigError, match=r"--output .*out\.jsonl exists"):
            files.check_unused(resume)
    assert files.output.read_text() == "mine\n"


def test_a_column_of_the_input_keeps_its_name(tmp_path):
    source = tmp_path / "in.tsv"
    source.write_text("id\ttext\tlabel\tpredicted_label\n1\tab\tx\ty\n")
    files = PredictedTable(source, tmp_path / "out.csv")
    predict(files, Lengths())
    assert files.output.read_text() == (
        "id,text,label,predicted_label,predicted_predicted_label\n1,ab,x,y,2\n"
    )
