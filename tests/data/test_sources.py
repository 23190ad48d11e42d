import json
import os

import pytest

from jaxformer.data import Document, JsonLines, StandardLibrary, TextFiles
from jaxformer.errors import DataError


def names(source):
    return [document.name for document in source.documents()]


@pytest.fixture(scope="module")
def library():
    return list(StandardLibrary().documents())


def test_standard_library_is_megabytes_of_real_text(library):
    size = sum(len(document.text.encode()) for document in library)
    assert 5e6 < size < 50e6
    texts = {document.name: document.text for document in library}
    assert "class JSONDecoder" in texts["json/decoder.py"]
    assert "reference/lambda" in texts
    assert len(texts) == len(library)


def test_standard_library_leaves_out_packages_tests_and_build_settings(library):
    for document in library:
        parts = document.name.split("/")
        unwanted = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
        assert not unwanted & set(parts[:-1])
        assert not parts[-1].startswith("_sysconfigdata")
        assert document.name != "pydoc_data/topics.py"


def test_max_bytes_limits_the_standard_library(library):
    limited = list(StandardLibrary(max_bytes=50_000).documents())
    assert limited == library[: len(limited)]
    assert 0 < sum(len(document.text.encode()) for document in limited) <= 50_000
    assert StandardLibrary(max_bytes=50_000).fingerprint() != StandardLibrary().fingerprint()


def test_text_files_takes_a_file_a_folder_or_a_glob(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_bytes("zwei\r\nZeilen ü".encode())
    (tmp_path / "one.txt").write_text("\ufeffeins", encoding="utf-8")
    (tmp_path / "notes.md").write_text("not taken")
    assert list(TextFiles(str(tmp_path)).documents()) == [
        Document("b/two.txt", "zwei\r\nZeilen ü"),
        Document("one.txt", "eins"),
    ]
    assert names(TextFiles(str(tmp_path / "notes.md"))) == ["notes.md"]
    assert names(TextFiles(str(tmp_path), "*.md")) == ["notes.md"]
    assert names(TextFiles(str(tmp_path / "*" / "*.txt"))) == ["b/two.txt"]
    assert names(TextFiles(str(tmp_path / "**" / "*.txt"))) == ["b/two.txt", "one.txt"]


def test_a_glob_character_in_an_existing_path_is_taken_literally(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    assert names(TextFiles(str(tmp_path / "a[1].txt"))) == ["a[1].txt"]


def test_text_files_errors_say_what_to_do(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        list(TextFiles(str(tmp_path / "nowhere")).documents())
    with pytest.raises(DataError, match=r"no file matches '\*.txt' in the folder .*: change"):
        list(TextFiles(str(tmp_path)).documents())
    with pytest.raises(DataError, match=r"no file matches .*\*\.rst"):
        list(TextFiles(str(tmp_path / "*.rst")).documents())


def test_json_lines_yields_one_document_per_line(tmp_path):
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(["eins", "zwei ü", ""])]
    file.write_text(lines[0] + "\n\n" + lines[1] + "\n" + lines[2], encoding="utf-8")
    expected = [
        Document("a.jsonl:1", "eins"),
        Document("a.jsonl:3", "zwei ü"),
        Document("a.jsonl:4", ""),
    ]
    assert list(JsonLines(str(file)).documents()) == expected
    assert list(JsonLines(str(tmp_path)).documents()) == expected
    file.write_text('{"body": "x"}\n')
    assert list(JsonLines(str(tmp_path), field="body").documents()) == [Document("a.jsonl:1", "x")]


@pytest.mark.parametrize("source", [TextFiles, JsonLines])
def test_anything_but_a_file_is_refused_at_once(tmp_path, source):
    os.mkfifo(tmp_path / "pipe")
    for path, message in {
        str(tmp_path / "pipe"): "pipe is a pipe or a device",
        "/dev/zero": "/dev/zero is a pipe or a device",
        str(tmp_path / "a\0b"): "does not exist",
        str(tmp_path / ("a" * 9999)): "File name too long",
    }.items():
        for read in (lambda s: list(s.documents()), source.fingerprint):
            with pytest.raises(DataError, match=message):
                read(source(path))
