"""Tables come back as they were written, and appear complete or not at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data.files.tables import read_records
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.tables import check_table, write_table

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
ROWS = st.lists(st.tuples(TEXT, TEXT, st.none() | st.floats(0, 1)), min_size=1, max_size=5)


def written(path, rows):
    write_table(path, lambda: iter(rows))
    return [record.values for record in read_records(path)]


@given(rows=ROWS)
def test_texts_and_numbers_come_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    rows = [{"x": "_" + a, "y": b, "z": c} for a, b, c in rows]
    shown = [row | {"z": "" if row["z"] is None else str(row["z"])} for row in rows]
    for ending, wanted in ((".csv", shown), (".tsv", shown), (".jsonl", rows)):
        assert written(folder / f"out{ending}", rows) == wanted


def test_quoted_fields_and_lists(tmp_path):
    rows = [{"a": 'He said "no",\nthen left', "b": ["x", "é"], "c": {"d": 1}}]
    (row,) = written(tmp_path / "out.csv", rows)
    assert row["a"] == rows[0]["a"]
    assert json.loads(row["b"]) == ["x", "é"]
    assert json.loads(row["c"]) == {"d": 1}
    assert written(tmp_path / "out.jsonl", rows) == rows


def test_parquet_keeps_types_also_of_columns_that_begin_empty(tmp_path):
    pytest.importorskip("pyarrow")
    rows = [{"n": n, "late": None, "list": [0.5, 1.5]} for n in range(1500)]
    rows += [{"n": 2.5, "late": "x", "list": [], "new": True}]
    found = written(tmp_path / "out.parquet", rows)
    assert found[0] == rows[0] | {"new": None}
    assert found[-1] == rows[-1]
    assert len(found) == len(rows)


def test_rows_with_other_columns(tmp_path):
    found = written(tmp_path / "out.csv", [{"a": "1"}, {"b": "2"}])
    assert found == [{"a": "1", "b": ""}, {"a": "", "b": "2"}]


def test_a_tab_cannot_be_in_a_tsv(tmp_path):
    (tmp_path / "out.tsv").write_text("before\n")
    with pytest.raises(DataError, match="row 2: column 'a' contains a tab"):
        write_table(tmp_path / "out.tsv", lambda: iter([{"a": "x"}, {"a": "x\ty"}]))
    assert (tmp_path / "out.tsv").read_text() == "before\n"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", r"--output .*out\.xlsx: must end in one of \.csv, \.jsonl"),
        ("out.cvs", r"did you mean '\.csv'"),
        ("missing/out.csv", "missing, which is not a folder"),
        ("folder.csv", "but is a folder"),
    ],
)
def test_a_table_that_cannot_be_written(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match=message):
        check_table(tmp_path / name, "--output")
