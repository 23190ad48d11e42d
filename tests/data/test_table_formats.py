"""The formats of tables: each gives the same rows, and each damage one sentence."""

import csv
import json
import os
import random
import sys

import pyarrow
import pytest
from corpora import compressed, write_rows
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from jaxformer.data.files.json_rows import _CHUNK
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks import TagTable
from jaxformer.errors import DataError
from jaxformer.extras import MissingExtra

ROWS = [
    {"text": 'one, "two"', "label": "a"},
    {"text": "naïve 日本語 🙂", "label": "b"},
    {"text": "x" * 300, "label": "a"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = '\ufefftext,label\r\n"one, ""two""",a\r\nnaïve 日本語 🙂,b\r\n' + "x" * 300 + ",a\r\n"
TSV = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS)
TEXTS = {
    "a.jsonl": LINES,
    "a.json": json.dumps(ROWS, indent=1),
    "lines.json": LINES,
    "a.csv": CSV,
    "a.tsv": TSV,
}


def write(path, rows=ROWS):
    write_rows(path, rows)
    return path


def values(path, **options):
    return [record.values for record in read_records(path, **options)]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_formats_compressed_or_not_give_the_same_rows(tmp_path, name, ending):
    path = tmp_path / (name + ending)
    path.write_bytes(compressed(TEXTS[name].encode(), path.name))
    assert values(path) == ROWS


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_arrow_formats_give_the_same_rows(tmp_path, name):
    path = write(tmp_path / name)
    assert values(path) == ROWS
    assert [record.where for record in read_records(path)][1] == f"{path}, row 2"
    assert values(path, columns=["label"]) == [{"label": row["label"]} for row in ROWS]
    with pytest.raises(DataError, match=r"no column 'x'; the columns are: 'text', 'label'"):
        next(read_records(path, columns=["x"])).value("x")


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_csv_gives_back_what_was_written(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("csv") / "rows.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([("text", "label"), *rows])
    assert [tuple(row.values()) for row in values(file)] == rows


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=9))
def test_json_gives_back_what_was_written(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("json")
    assert values(write_rows(folder / "rows.jsonl", rows)) == rows
    for indent in (None, 2):
        (folder / "rows.json").write_text(json.dumps(rows, indent=indent))
        assert values(folder / "rows.json") == rows


def test_a_json_list_may_be_longer_than_what_is_read_at_once(tmp_path):
    sizes = [1, _CHUNK - 20, _CHUNK, 3 * _CHUNK, 10, 7]
    rows = [{"text": "é" * size, "tail": [{"n": size}]} for size in sizes] * 3
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    assert values(tmp_path / "a.json") == rows


def test_what_is_wrong_with_a_large_json_list_is_found_before_all_of_it_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"a": x}, {"a": "' + "y" * 10_000_000 + '"}]')
    with pytest.raises(DataError, match="row 2"):
        values(path)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "file.arrow"])
def test_a_file_that_breaks_off_is_named(tmp_path, name):
    rng = random.Random(0)
    rows = [{"text": f"{rng.random()} {rng.random()}"} for _ in range(5000)]
    path = write(tmp_path / name, rows)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        try:
            found = values(path)
        except DataError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert str(error).count("\n") == 0  # noqa: PT017
        else:
            assert found == []
            assert size == 0
    path.write_bytes(b"what is this" * 9)
    with pytest.raises(DataError, match=f"{name}"):
        values(path)


def test_a_csv_field_may_be_a_long_document(tmp_path):
    text = "word, " * 100_000
    (tmp_path / "a.csv").write_text(f'text\n"{text}"\n')
    assert values(tmp_path / "a.csv") == [{"text": text}]


def test_what_is_not_utf8_in_an_arrow_column_is_named_with_its_row(tmp_path):
    offsets = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")
    column = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, [None, offsets, pyarrow.py_buffer(b"a\xff")]
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": column}), path)
    with pytest.raises(DataError, match=r"a\.parquet, row 2: not UTF-8"):
        values(path)


# Mistakes -----------------------------------------------------------------------------------------


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
        ("a.json", b'[{"a": "x"}, 2]', "row 2: expected a JSON object, found a number"),
        ("a.json", b'[{"a": "x"} {"a": "y"}]', "row 1: not valid JSON: Expecting ','"),
        ("a.json", b'[{"a": "x"}, {"a": y}]', "row 2: not valid JSON: Expecting value"),
        ("a.json", b'[{"a": "x"}, {"a": "y', "row 2: not valid JSON: Unterminated string"),
        ("a.json", b'[{"a": "x"}', "row 1: not valid JSON: Expecting ','"),
        ("a.json", b'[{"a": "x"}] [', r"'\[' after the end of the list"),
        ("a.json", b'{\n"a": "x"\n}', r"a\.json:1: .*; a \.json table is a list of objects, or"),
        ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", r"a\.parquet: not a Parquet file"),
        ("a.parquet", b"", r"a\.parquet: not a Parquet file"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        [record.text("a") for record in read_records(tmp_path / name)]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet"])
def test_nothing_pipes_and_folders_are_not_tables(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name} does not exist"):
        list(read_records(tmp_path / name))
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


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"pyarrow: pip install 'jaxformer\[train\]'"):
        list(read_records(tmp_path / "x.parquet"))


# Folders and globs -------------------------------------------------------------------------------


def test_a_folder_and_a_glob_are_their_tables_in_the_order_of_their_names(tmp_path):
    for number, name in enumerate(["b/3.parquet", "1.jsonl", "b/2.jsonl.zst", "c.arrow"]):
        write(tmp_path / name, [{"n": number, "k": 0}, {"n": number, "k": 1}])
    for name in ("README.md", ".hidden.jsonl", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    rows = [(row["n"], row["k"]) for row in values(tmp_path)]
    assert rows == [(1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (3, 1)]
    assert [row["n"] for row in values(tmp_path / "b" / "*")] == [2, 2, 0, 0]
    assert [row["n"] for row in values(tmp_path / "**" / "*.jsonl*")] == [1, 1, 2, 2]
    with pytest.raises(DataError, match=r"no file matches .*\*\.csv"):
        values(tmp_path / "*.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty is a folder without data: .*\.parquet"):
        values(tmp_path / "empty")
    with pytest.raises(DataError, match=r"README\.md: cannot tell the format"):
        values(tmp_path / "*")


@pytest.mark.parametrize(
    ("names", "example"),
    [
        (["data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"], "data/train-*"),
        (["train_sft-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"], "train_sft-*"),
        (["train.jsonl", "validation.jsonl"], "train.jsonl"),
        (["train/1.jsonl", "valid/1.jsonl"], "train"),
    ],
)
def test_splits_are_not_mixed(tmp_path, names, example):
    for number, name in enumerate(names):
        write(tmp_path / name, [{"n": number}])
    with pytest.raises(DataError, match=r"holds the splits .*: name the files of one") as error:
        values(tmp_path)
    told = str(error.value).rpartition("such as ")[2]
    assert told == str(tmp_path / example)
    assert values(told) == [{"n": 0}]


def test_shards_of_one_split_are_one_table(tmp_path):
    for number in range(12):
        write(tmp_path / f"data/train-{number:05}-of-00012.parquet", [{"n": number}])
    (tmp_path / "README.md").write_text("---")
    assert [row["n"] for row in values(tmp_path)] == list(range(12))


# What `datasets` writes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("saved")
    names = datasets.ClassLabel(names=["negative", "positive"])
    features = {"text": datasets.Value("string"), "label": names, "tags": datasets.List(names)}
    rows = {"text": ["one", "two", "three"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    dataset = datasets.Dataset.from_dict(rows, datasets.Features(features))
    dataset.save_to_disk(folder / "one", num_shards=2)
    dataset.to_parquet(folder / "a.parquet")
    datasets.DatasetDict(train=dataset, test=dataset.select([2, 0])).save_to_disk(folder / "both")
    return folder


NAMED = [
    {"text": "one", "label": "positive", "tags": ["negative", "positive"]},
    {"text": "two", "label": "negative", "tags": []},
    {"text": "three", "label": None, "tags": ["positive"]},
]


@pytest.mark.more
def test_a_saved_data_set_is_read_with_the_names_of_its_labels(saved):
    assert values(saved / "one") == NAMED
    assert values(saved / "a.parquet") == NAMED
    # What `map` leaves beside the data is not read.
    (saved / "one" / "cache-0123.arrow").write_bytes(b"")
    assert values(saved / "one") == NAMED


@pytest.mark.more
def test_a_saved_dictionary_of_data_sets_wants_a_split(saved):
    with pytest.raises(DataError, match=r"holds the splits test, train: name .* such as .*/train"):
        values(saved / "both")
    assert values(saved / "both" / "train") == NAMED
    assert values(saved / "both" / "test") == [NAMED[2], NAMED[0]]


@pytest.mark.more
def test_names_of_labels_are_found_in_the_file_beside(saved, tmp_path):
    rows = [{"label": 1}, {"label": 0}]
    write(tmp_path / "a.arrow", rows)
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    assert values(tmp_path / "a.arrow") == [{"label": "yes"}, {"label": "no"}]


@pytest.mark.more
def test_a_missing_or_foreign_file_of_a_saved_data_set_is_named(saved, tmp_path):
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pytest.raises(DataError, match=r"data\.arrow does not exist"):
        values(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json: not as datasets\.save_to_disk writes it"):
        values(tmp_path)


@pytest.mark.more
def test_tagged_words_of_a_saved_data_set(saved, tmp_path):
    rows = [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, {"tokens": [], "tags": []}]
    (sentence,) = TagTable(str(write(tmp_path / "a.jsonl", rows)), tags="tags").sentences()
    assert [(word.text, word.tag) for word in sentence.words] == [
        ("EU", "B-ORG"),
        (" rejects", "O"),
    ]
    named = TagTable(str(saved / "one"), words="tags", tags="tags").sentences()
    assert [word.tag for word in next(named).words] == ["negative", "positive"]
    for row, message in (
        ({"tokens": ["a"], "tags": [1, 2]}, "row 1: 1 words in 'tokens' and 2 tags in 'tags'"),
        ({"tokens": "a b", "tags": [1, 2]}, "column 'tokens' holds 'a b'"),
        (
            {"tokens": ["a"], "tags": [None]},
            r"'tags' holds \[None\]",
        ),
    ):
        path = write(tmp_path / "b.parquet", [row])
        with pytest.raises(DataError, match=message):
            list(TagTable(str(path), tags="tags").sentences())
