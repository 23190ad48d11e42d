"""Documents in files of any format."""

import gzip
import hashlib
import json

import pyarrow
import pytest
from pyarrow import parquet

from jaxformer.data import Document, Files, JsonLines, TextFiles
from jaxformer.errors import DataError


@pytest.fixture
def mixed(tmp_path):
    """A folder of everything that people keep text in."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("plain\n\ntext\n", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("gezippt ü".encode()))
    (tmp_path / "c.txt.zst").write_bytes(pyarrow.compress(b"zst", "zstd", asbytes=True))
    lines = '{"id": 1, "text": "first"}\n\n{"id": 2, "text": "second"}\n'
    (tmp_path / "d.jsonl.zst").write_bytes(pyarrow.compress(lines.encode(), "zstd", asbytes=True))
    table = pyarrow.table({"url": ["u", "v"], "text": ["row", "wor"]})
    parquet.write_table(table, tmp_path / "sub" / "e.parquet")
    (tmp_path / "f.csv").write_text('text,n\n"two\nlines",1\nlast,2\n')
    (tmp_path / "README.md").write_text("not taken")
    return tmp_path


DOCUMENTS = [
    Document("a.txt", "plain\n\ntext\n"),
    Document("b.txt.gz", "gezippt ü"),
    Document("c.txt.zst", "zst"),
    Document("d.jsonl.zst:1", "first"),
    Document("d.jsonl.zst:3", "second"),
    Document("f.csv:2", "two\nlines"),
    Document("f.csv:4", "last"),
    Document("sub/e.parquet:1", "row"),
    Document("sub/e.parquet:2", "wor"),
]


def test_a_folder_of_all_formats_is_its_documents(mixed):
    assert list(Files(str(mixed)).documents()) == DOCUMENTS
    assert list(Files(str(mixed / "*.txt*")).documents()) == DOCUMENTS[:3]
    assert list(Files(str(mixed / "sub" / "e.parquet")).documents()) == [
        Document("e.parquet:1", "row"),
        Document("e.parquet:2", "wor"),
    ]
    assert list(Files(str(mixed / "README.md")).documents()) == [Document("README.md", "not taken")]


def test_other_fields_hold_text_and_rows_without_it_are_named(mixed):
    assert [d.text for d in Files(str(mixed / "sub" / "e.parquet"), "url").documents()] == [
        "u",
        "v",
    ]
    with pytest.raises(DataError, match=r"e\.parquet, row 1: no column 'x'; .*'url', 'text'"):
        list(Files(str(mixed / "sub"), "x").documents())
    parquet.write_table(pyarrow.table({"text": ["a", None]}), mixed / "sub" / "e.parquet")
    with pytest.raises(DataError, match=r"row 2: column 'text' holds None"):
        list(Files(str(mixed / "sub")).documents())
    parquet.write_table(pyarrow.table({"text": [b"a"]}), mixed / "sub" / "e.parquet")
    with pytest.raises(DataError, match=r"row 1: column 'text' holds b'a'"):
        list(Files(str(mixed / "sub")).documents())


def test_documents_of_a_text_file_may_be_its_lines_or_paragraphs(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\r\n \r\n\r\nthree ü".encode())
    path = str(tmp_path / "a.txt")
    assert list(Files(path, sample_by="paragraph").documents()) == [
        Document("a.txt:1", "one\r\ntwo"),
        Document("a.txt:5", "three ü"),
    ]
    lines = list(Files(path, sample_by="line").documents())
    assert [document.text for document in lines] == ["one", "two", " ", "", "three ü"]
    assert lines[-1].name == "a.txt:5"
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"a\.txt:2: not UTF-8"):
        list(Files(path, sample_by="line").documents())


def test_fingerprints_are_cheap_and_change_with_files_and_options(mixed, monkeypatch):
    sources = [
        Files(str(mixed)),
        Files(str(mixed), "body"),
        Files(str(mixed), sample_by="line"),
        Files(str(mixed / "a.txt")),
    ]
    monkeypatch.setattr(Files, "documents", None)
    prints = {source.fingerprint() for source in sources}
    assert len(prints) == 4
    (mixed / "g.txt").write_text("more")
    assert Files(str(mixed)).fingerprint() not in prints


def test_fingerprints_of_older_sources_stay_as_they_are(mixed):
    """Runs of older versions find the tokens that they saved."""

    def digest(*parts):
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    stat = (mixed / "a.txt").stat()
    stamp = ("a.txt", stat.st_size, stat.st_mtime_ns)
    assert TextFiles(str(mixed)).former_fingerprint() == digest("TextFiles", stamp)
    lines = JsonLines(str(mixed / "a.txt"))
    assert lines.former_fingerprint() == digest("JsonLines", "text", stamp)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt.gz", b"no gzip", r"a\.txt\.gz: damaged, or not compressed as its name says"),
        ("a.txt.zst", b"no zstd", r"a\.txt\.zst: damaged, or not compressed as its name says"),
        ("a.txt.gz", gzip.compress(b"a\0b", mtime=0), r"a\.txt\.gz: not text: byte 1 is null"),
        ("a.txt", b"ab\xff", r"a\.txt: not UTF-8 at byte 2"),
        ("a.txt", b"\xef\xbb\xbfab\xff", r"a\.txt: not UTF-8 at byte 5"),
        ("a.txt", "text".encode("utf-16-le"), r"a\.txt: not text: byte 1 is null"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a Parquet file that can be read"),
        ("a.arrow", b"ARROW1", r"a\.arrow: not an Arrow file that can be read"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for source in (Files(str(tmp_path)), Files(str(tmp_path / name))):
        with pytest.raises(DataError, match=message):
            list(source.documents())


def test_a_folder_without_text_and_a_wrong_option_say_what_is_right(tmp_path):
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(DataError, match=r"is a folder without data: .*\.parquet.*\.txt"):
        Files(str(tmp_path)).fingerprint()
