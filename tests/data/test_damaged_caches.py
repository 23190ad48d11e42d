"""What a run keeps of its data, damaged: the same batches as before, or one sentence."""

import contextlib
import os
import shutil

import numpy as np
import pytest
from corpora import write_texts

from jaxformer.data import (
    Bytes,
    DataConfig,
    JsonLines,
    TokenizerFile,
    TrainTokenizer,
    load_tokenizer,
)
from jaxformer.data.labels import load_labels, save_labels
from jaxformer.data.tasks import LabelledText
from jaxformer.data.text.corpus import load_corpus
from jaxformer.errors import DataError

FIELDS = {"batch_size": 4, "sequence_length": 16, "prefetch_threads": 1, "prefetch_batches": 1}


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Documents and a table, each with the folder of a run that was started on it."""
    home = tmp_path_factory.mktemp("origin")
    texts = [f"the {number}th document says {'abc' * (number % 4)}" for number in range(20)]
    write_texts(home / "corpus.jsonl", texts)
    rows = "".join(f"{text}\t{'yes' if 'abc' in text else 'no'}\n" for text in texts)
    (home / "table.tsv").write_text("sentence\tlabel\n" + rows)
    for name, data in kinds(home).items():
        data.prepare(home / name)
    return home


def kinds(home):
    source = JsonLines(str(home / "corpus.jsonl"))
    table, words = str(home / "table.tsv"), TrainTokenizer("wordpiece", 60)
    return {
        "bytes": DataConfig(source=source, tokenizer=Bytes(), **FIELDS),
        "bpe": DataConfig(source=source, tokenizer=TrainTokenizer("bpe", 280), **FIELDS),
        "labelled": LabelledText(train=table, tokenizer=words, truncate=True, **FIELDS),
    }


def batches(data, folder):
    """Some batches of both sides, in bytes, with the names of the labels."""
    found = data.prepare(folder)
    arrays = [found.train.batch(step) for step in (0, 3)] + [found.validation.batch(0)]
    return found.labels, [{key: value.tobytes() for key, value in b.items()} for b in arrays]


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << int(place * 997) % 8
    path.write_bytes(content)


def zeroed(path, place):
    content = path.read_bytes()
    keep = int(place * len(content))
    path.write_bytes(content[:keep] + bytes(len(content) - keep))


def made_a_folder(path, place):
    path.unlink()
    path.mkdir()


def made_a_pipe(path, place):
    path.unlink()
    os.mkfifo(path)


def refusal(data, folder, expected):
    """Why the data are refused, or None where they are those that are expected."""
    try:
        found = batches(data, folder)
    except DataError as error:
        return str(error)
    assert found == expected, folder
    return None


DAMAGE = {
    "flipped": flipped,
    "shortened": lambda path, place: os.truncate(path, int(place * path.stat().st_size)),
    "zeroed": zeroed,
    "lengthened": lambda path, place: path.write_bytes(path.read_bytes() + b"\n\xff" * 5),
    "made a folder": made_a_folder,
    "made a pipe": made_a_pipe,
    "removed": lambda path, place: path.unlink(),
}


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("bytes", "flipped"), *((kind, damage) for kind in ("bpe", "labelled") for damage in DAMAGE)],
)
def test_damage_gives_the_same_batches_or_one_sentence(origin, tmp_path, kind, damage):
    data = kinds(origin)[kind]
    whole = batches(data, origin / kind)
    files = sorted(path for path in (origin / kind).rglob("*") if path.is_file())
    assert len(files) == (6 if kind == "labelled" else 10)
    places = np.random.default_rng(len(kind)).random(2) if damage == "flipped" else [0.5]
    survived = 0
    for number, (file, place) in enumerate((file, place) for file in files for place in places):
        folder = tmp_path / str(number)
        shutil.copytree(origin / kind, folder)
        DAMAGE[damage](folder / file.relative_to(origin / kind), place)
        error = refusal(data, folder, whole)
        survived += error is None
        named = (file.name, "SHA256SUMS", "spec.json")
        assert error is None or ("\n" not in error and any(name in error for name in named)), error
    # The tokens and labels can always be made again; of the tokenizer only what is recorded.
    assert survived >= len(files) // 2


def damaged_copy(origin, tmp_path, kind, name):
    """A run's folder with one flipped bit, and the damaged file."""
    shutil.copytree(origin / kind, tmp_path / "run")
    (file,) = (tmp_path / "run").rglob(name)
    flipped(file, 0.6)
    return tmp_path / "run", file


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "spec.json"])
def test_a_damaged_tokenizer_is_made_again_only_as_it_was(origin, tmp_path, caplog, name):
    folder, file = damaged_copy(origin, tmp_path, "bpe", name)
    with (
        pytest.raises(DataError, match=rf"{name} is damaged")
        if name != "spec.json"
        else (contextlib.nullcontext())
    ):
        load_tokenizer(folder)
    data, before = kinds(origin)["bpe"], (origin / "bpe" / "tokenizer" / name).read_bytes()
    data.prepare(folder)
    assert f"{name} is damaged" in caplog.text
    assert "restored" in caplog.text
    assert file.read_bytes() == before


def test_a_damaged_tokenizer_that_would_be_another_is_kept_and_refused(origin, tmp_path):
    folder, file = damaged_copy(origin, tmp_path, "bpe", "tokenizer.json")
    damaged, corpus = file.read_bytes(), tmp_path / "other.jsonl"
    corpus.write_text('{"text": "something"}\n{"text": "else entirely"}\n')
    data = kinds(origin)["bpe"]
    other = DataConfig(source=JsonLines(str(corpus)), tokenizer=data.tokenizer, **FIELDS)
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged.*gives another tokenizer"):
        other.prepare(folder)
    assert file.read_bytes() == damaged


def test_a_damaged_tokenizer_whose_file_is_gone_is_refused(origin, tmp_path):
    shutil.copytree(origin / "bpe" / "tokenizer", tmp_path / "file")
    spec = TokenizerFile(str(tmp_path / "file"))
    data = DataConfig(source=kinds(origin)["bpe"].source, tokenizer=spec, **FIELDS)
    data.prepare(tmp_path / "run")
    shutil.rmtree(tmp_path / "file")
    data.prepare(tmp_path / "run")
    flipped(tmp_path / "run" / "tokenizer" / "tokenizer.json", 0.5)
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged.*cannot be made again.*exist"):
        data.prepare(tmp_path / "run")


def test_evaluation_sees_damage_too(origin, tmp_path, caplog):
    folder, _ = damaged_copy(origin, tmp_path, "bpe", "validation.tokens.npy")
    data, linked = kinds(origin)["bpe"], tmp_path / "linked"
    linked.mkdir()
    for item in folder.iterdir():
        (linked / item.name).symlink_to(item)
    before = sorted(folder.rglob("*"))
    found = data.prepare_validation(linked).validation.batch(0)
    assert "validation.tokens.npy is damaged" in caplog.text
    whole = data.prepare_validation(origin / "bpe").validation.batch(0)
    np.testing.assert_array_equal(found["inputs"], whole["inputs"])
    assert sorted(folder.rglob("*")) == before


def test_damaged_labels_are_made_again_only_as_they_were(tmp_path, caplog):
    save_labels(tmp_path, ["no", "yes"])
    (tmp_path / "labels.json").write_text('["no", "yet"]\n')
    with pytest.raises(DataError, match=r"labels\.json is damaged"):
        load_labels(tmp_path)
    with pytest.raises(DataError, match=r"labels\.json is damaged"):
        save_labels(tmp_path, ["no", "yet"])
    assert save_labels(tmp_path, ["no", "yes"]) == ("no", "yes")
    assert "restored" in caplog.text
    assert load_labels(tmp_path) == ("no", "yes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected a list, found a JSON object"),
        ('["a", 1]', "list of different strings"),
        ('["a", "a"]', "list of different strings"),
        ("[" * 9999, "nested too deeply"),
    ],
)
def test_labels_without_digests_are_checked_for_what_they_are(tmp_path, text, message):
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(DataError, match=rf"labels\.json: .*{message}"):
        load_labels(tmp_path)


def without_digests(origin, tmp_path, kind):
    """The folder of a run that an earlier version has made."""
    folder = tmp_path / "old"
    shutil.copytree(origin / kind, folder)
    for record in [*folder.rglob("SHA256SUMS"), *folder.rglob("*.sha256")]:
        record.unlink()
    return folder


@pytest.mark.parametrize("kind", ["bytes", "bpe", "labelled"])
def test_older_folders_open_and_get_their_digests(origin, tmp_path, caplog, kind):
    folder, data = without_digests(origin, tmp_path, kind), kinds(origin)[kind]
    whole = batches(data, origin / kind)
    if kind != "labelled":
        assert load_corpus(folder).train.num_documents > 0
    assert batches(data, folder) == whole
    assert "again" not in caplog.text
    names = [sorted(p.relative_to(top) for p in top.rglob("*")) for top in (folder, origin / kind)]
    assert names[0] == names[1]


def outside_the_vocabulary(path):
    array = np.load(path)
    array[5] = 9999
    np.save(path, array)


def lying_header(path):
    content = path.read_bytes()
    header = b"{'descr': '%s', 'fortran_order': False, 'shape': (1099511627776,), }"
    content = content[:10] + (header % content[21:24]).ljust(117) + b"\n" + content[128:]
    path.write_bytes(content)


CONTENTS = {
    "outside of the vocabulary": outside_the_vocabulary,
    "all zeros": lambda path: np.save(path, np.zeros_like(np.load(path))),
    "a lying header": lying_header,
    "objects": lambda path: np.save(path, np.array([None, {}]), allow_pickle=True),
    "fractions": lambda path: np.save(path, np.load(path).astype(np.float32)),
    "no numbers": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + b"(" * 118),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", ["train.tokens.npy", "train.offsets.npy"])
def test_what_cannot_be_right_is_seen_without_digests(origin, tmp_path, caplog, name, content):
    folder, data = without_digests(origin, tmp_path, "bpe"), kinds(origin)["bpe"]
    (path,) = folder.rglob(name)
    CONTENTS[content](path)
    assert batches(data, folder) == batches(data, origin / "bpe")
    assert name in caplog.text
    assert len([record for record in caplog.records if "tokenising again" in record.msg]) == 1


@pytest.mark.parametrize("text", ["[]", "{}", '{"train": {"documents": "3"}}', "[" * 9999])
def test_sizes_of_another_corpus_are_seen_without_digests(origin, tmp_path, caplog, text):
    folder, data = without_digests(origin, tmp_path, "bpe"), kinds(origin)["bpe"]
    (path,) = folder.rglob("corpus.json")
    path.write_text(text)
    assert batches(data, folder) == batches(data, origin / "bpe")
    assert "corpus.json" in caplog.text


def test_a_full_disk_leaves_nothing_half_written(origin, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError("33 requested and 0 written")

    data = kinds(origin)["bpe"]
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        with pytest.raises(DataError, match=r"tokenizer.* cannot be written: 33 requested"):
            data.prepare(tmp_path)
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("numpy.save", full)
        with pytest.raises(DataError, match=r"corpus-.* cannot be written.*33 requested"):
            data.prepare(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["tokenizer"]
    assert data.prepare(tmp_path).train.num_rows > 0
