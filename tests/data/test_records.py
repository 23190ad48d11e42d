import csv
import os
import sys

import pytest
from corpora import write_rows
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks.parallel_text import read_parallel
from jaxformer.data.tasks.tags.sources import read_columns
from jaxformer.errors import DataError
from jaxformer.extras import MissingExtra


def write(folder, name, text):
    file = folder / name
    file.write_text(text, encoding="utf-8", newline="")
    return file


def values(file, **options):
    return [record.values for record in read_records(file, **options)]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_csv_gives_back_what_was_written(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("csv") / "rows.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([("text", "label"), *rows])
    assert [tuple(row.values()) for row in values(file)] == rows


@given(st.lists(st.tuples(texts, st.integers()), max_size=5))
def test_json_lines_give_back_what_was_written(tmp_path_factory, rows):
    written = [{"text": text, "label": number} for text, number in rows]
    assert values(write_rows(tmp_path_factory.mktemp("json") / "rows.jsonl", written)) == written


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"pyarrow: pip install 'jaxformer\[train\]'"):
        list(read_records(tmp_path / "x.parquet"))


# Columns of words --------------------------------------------------------------------------------


def test_conll_2003(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP B-PER"
    sentences = list(read_columns(write(tmp_path, "train.txt", text)))
    assert [[word.fields[0] for word in s] for s in sentences] == [["EU", "rejects"], ["Peter"]]
    assert sentences[1][0].fields[-1] == "B-PER"
    assert sentences[1][0].where.endswith("train.txt:7")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.tsv does not exist"):
        list(read_records(tmp_path / "none.tsv"))


# Parallel files ----------------------------------------------------------------------------------


def test_parallel_lines(tmp_path):
    source = write(tmp_path, "src.txt", "one\n\u2028two\n\n")
    target = write(tmp_path, "tgt.txt", "eins\nzwei\ndrei")
    assert [pair.texts for pair in read_parallel(source, target)] == [
        ("one", "eins"),
        ("\u2028two", "zwei"),
        ("", "drei"),
    ]


def test_files_of_different_lengths_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path, "s", "one\ntwo\n"), write(tmp_path, "t", "eins\n")
    with pytest.raises(DataError, match=r"s has 2 lines and .*t has 1"):
        read_parallel(source, target)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"a\tb\none\t1\ntwo\n", r"a\.tsv:3: 1 fields where .* has 2: two"),
        ("a.tsv", b"a\n\xff\n", r"a\.tsv:2: not UTF-8 \(invalid start byte\): convert"),
        ("a.csv", b'a,b\n"one,1\n', r"a\.csv:\d: not valid CSV"),
        ("a.jsonl", b'{"a": "x"}\n{"a"\n', r"a\.jsonl:2: not valid JSON"),
        ("a.jsonl", b'["a"]', r"a\.jsonl:1: expected a JSON object, found a list"),
        ("a.jsonl", b"null", r"a\.jsonl:1: expected a JSON object, found null"),
        ("a.tsv", b"b\tc\nx\t1\n", r"a\.tsv:2: no column 'a'; the columns are: 'b', 'c'"),
        ("a.jsonl", b"{}", r"a\.jsonl:1: no column 'a'; the columns are: none"),
        ("a.jsonl", b'{"a": null}', r"a\.jsonl:1: column 'a' holds None, not a text"),
        ("a.xyz", b"", r"ending '\.xyz'"),
        ("a.jsonl", b'{"a": "x"}\n\n' + b"[" * 9999, r"a\.jsonl:3: .* nested too deeply"),
        ("a.jsonl", b'{"a": %s}' % (b"9" * 5000), r"a\.jsonl:1: .* too many digits"),
        ("a.jsonl", b'{"a": "x"}\r\n{"a": "\xff"}\r\n', r"a\.jsonl:2: not UTF-8"),
        ("a.jsonl", b'{"a": "x"}\n{"a": "\\ud800"}', r"a\.jsonl:2: .*'a' .* surrogate pair"),
        (
            "a.jsonl",
            b'{"a": ["' + b"x" * 9999 + b'"]}',
            r"a\.jsonl:1: column 'a' holds .{0,60}, ",
        ),
        ("a.tsv", b"a\tb\ta\nx\ty\tz\n", r"a\.tsv:1: two columns are called 'a'"),
        ("a.tsv", b"a\nx\n" + bytes(512) + b"\n", r"a\.tsv:3: not text: it contains a run of null"),
        ("a.tsv", "a\nx\n".encode("utf-16"), r"a\.tsv:1: not UTF-8"),
        ("a.csv", b'a\n"x\ny"\n"z\nz"z\n', r"a\.csv:4: not valid CSV"),
        ("a.csv", b'a\n"x\n\ny"\n"z\n\n\n', r"a\.csv:5: not valid CSV: unexpected end"),
        ("a.csv", b'a\n"x\n\ny"\n\n"z","w"\n', r"a\.csv:6: 2 fields"),
        ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", r"a\.parquet: not a Parquet file"),
        ("a.parquet", b"", r"a\.parquet: not a Parquet file"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        [record.text("a") for record in read_records(tmp_path / name)]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet"])
def test_pipes_and_folders_are_not_tables(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} is a pipe or a device"):
        list(read_records(tmp_path / name))
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"{name} is a folder"):
        list(read_records(tmp_path / name))


@given(st.binary(max_size=300), st.sampled_from(["csv", "json", "jsonl", "parquet", "tsv", "txt"]))
def test_any_bytes_are_a_table_or_one_error(tmp_path_factory, content, ending):
    path = tmp_path_factory.mktemp("any") / f"a.{ending}"
    path.write_bytes(content)
    try:
        records = list(read_records(path))
    except DataError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
        return
    for record in records:
        assert record.where.startswith(str(path))
