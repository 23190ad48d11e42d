"""Clips with what is said in them: tables, spellings, bad rows, and error rates."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxformer.data import Characters
from jaxformer.data.sound import read_sound
from jaxformer.data.tasks import Clips, Spelling
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.tables import write_table
from jaxformer.models.heads.base import HeadResult, Predictions
from jaxformer.models.heads.metrics import transcript_scores

soundfile = pytest.importorskip("soundfile")
TEXTS = ["Hello, world!", "two  words", "it’s a test", "one", "more of them", "and the last"]


@pytest.fixture
def folder(tmp_path):
    for number in range(len(TEXTS)):
        noise = np.random.default_rng(number).standard_normal(4000 + 1000 * number) / 5
        soundfile.write(tmp_path / f"{number}.wav", noise, 16_000)
    return tmp_path


def write(folder, name, rows):
    write_table(folder / name, lambda: iter(rows))
    return str(folder / name)


def rows_of(texts=TEXTS):
    return [{"path": f"{number}.wav", "sentence": text} for number, text in enumerate(texts)]


def clips(train, **fields):
    usual = {"tokenizer": Characters(), "validation_fraction": 0.3, "batch_size": 2}
    return Clips(train=train, **(usual | fields))


@pytest.mark.parametrize("name", ["clips.csv", "clips.jsonl"])
def test_tables_name_sounds_beside_them(folder, name):
    found = clips(write(folder, name, rows_of())).read(str(folder / name))
    assert [clip.text for clip in found] == [
        "HELLO WORLD", "TWO WORDS", "IT'S A TEST", "ONE", "MORE OF THEM", "AND THE LAST",
    ]  # fmt: skip
    assert [clip.samples for clip in found] == [4000 + 1000 * n for n in range(6)]


def test_parquet_holds_the_sounds_themselves(folder):
    audio = [{"bytes": (folder / f"{n}.wav").read_bytes(), "path": f"{n}.wav"} for n in range(6)]
    pq.write_table(pa.table({"audio": audio, "text": TEXTS}), folder / "clips.parquet")
    data = clips(str(folder / "clips.parquet"))
    found, paths = data.read(data.train), clips(write(folder, "a.csv", rows_of()))
    for own, other in zip(found, paths.read(paths.train), strict=True):
        sounds = [read_sound(each.file, 16_000) for each in (own, other)]
        np.testing.assert_array_equal(*sounds)


def test_a_row_of_a_batch(folder):
    data = clips(write(folder, "clips.csv", rows_of()), max_characters=20)
    tokenizer = data.tokenizer.fit([])
    examples = data.examples(data.read(data.train), tokenizer)
    row = examples.read_padded(1, np.random.default_rng(0), 6000)
    assert row["waveforms"].shape == (6000,)
    assert row["num_samples"] == 5000
    real = row["waveforms"][:5000]
    assert abs(real.mean()) < 1e-5
    assert real.var() == pytest.approx(1, rel=1e-4)
    assert not row["waveforms"][5000:].any()
    assert tokenizer.decode(row["transcript"][: row["transcript_length"]]) == "TWO WORDS"
    assert (row["transcript"][row["transcript_length"] :] == tokenizer.pad_id).all()
    assert examples.blank()["transcript_weights"] == 0


BAD = {
    "a missing file": ({"path": "none.wav"}, {}, "none.wav does not exist"),
    "not a sound": ({"path": "clips.csv"}, {}, "is not a sound file"),
    "other characters": ({"sentence": "ein Mädchen"}, {}, "the text has 'Ä'"),
    "a long clip": ({}, {"max_seconds": 0.5}, "0.6 seconds, more than data.max_seconds = 0.5"),
    "a long text": (
        {"sentence": "and the very last"},
        {"max_characters": 12},
        "17 characters, more than data.max_characters",
    ),
}


@pytest.mark.parametrize(("changes", "fields", "words"), BAD.values(), ids=BAD)
def test_a_bad_row_is_named_and_may_be_left_out(folder, changes, fields, words, monkeypatch):
    rows = rows_of()
    rows[-1] |= changes
    data = clips(write(folder, "clips.csv", rows), **fields)
    tokenizer = data.tokenizer.fit([])
    with pytest.raises(DataError, match=words):
        data.examples(data.read(data.train), tokenizer)
    monkeypatch.setattr("jaxformer.data.bad_rows.MOST_SKIPPED", 0.2)
    skips = replace(data, on_bad_row="skip")
    kept = skips.examples(skips.read(skips.train), tokenizer)
    assert [clip.text for clip in kept.clips][-1] == "MORE OF THEM"
    assert len(kept) == 5


def test_a_run_has_both_sides_and_says_what_is_padded(folder, tmp_path):
    data = clips(write(folder, "clips.csv", rows_of()), buckets=2)
    found = data.prepare(tmp_path / "run")
    assert found.train.num_rows + found.validation.num_rows == 6
    report = dict(found.report())
    assert "padding" in report["clips"]
    assert "upper case" in report["error rates"]
    kept = json.loads((tmp_path / "run" / "tokenizer" / "preprocessor_config.json").read_text())
    assert kept["sampling_rate"] == 16_000
    assert kept["do_normalize"] is True
    batch = next(iter(found.train.iterate(0)))
    assert batch["waveforms"].shape[1] in found.train.lengths


def test_error_rates_are_of_the_same_spelling(folder):
    data = clips(write(folder, "clips.csv", rows_of()))
    tokenizer = data.tokenizer.fit([])
    examples = data.examples(data.read(data.train), tokenizer)
    said = ["HELLO WORD", "TWO WORDS", "ITS A TEST", "", "MORE OF THEM", "AND THE LAST"]
    predicted = np.zeros((6, 30), np.int32)
    for row, text in zip(predicted, said, strict=True):
        row[: len(text)] = tokenizer.encode(text)
    result = HeadResult(None, Predictions(predicted, predicted, np.ones(6)), np.arange(6))
    assert examples.error_rates(result) == {"wer": 3 / 14, "cer": (1 + 1 + 3) / 58}


def test_spellings():
    text = "  “It’s”   3½ o'clock… "
    assert Spelling()(text) == "“It's” 31⁄2 o'clock..."
    assert Spelling("upper", "“”.")(text) == "IT'S 31⁄2 O'CLOCK"
    assert str(Spelling("lower", "?!")) == "NFKC, lower case, without ?!"


def test_characters():
    tokenizer = Characters("ab'").fit([])
    assert tokenizer.vocab_size == 5 + 3
    assert tokenizer.pad_id == 0
    assert tokenizer.decode(tokenizer.encode("ab a'")) == "ab a'"
    for alphabet in ("", "aa", "a b", "a|"):
        with pytest.raises(ConfigError, match="different characters, without blanks"):
            Characters(alphabet)


@pytest.mark.more
def test_error_rates_are_those_of_jiwer():
    jiwer = pytest.importorskip("jiwer")
    rng = np.random.default_rng(0)
    texts = [[" ".join(rng.choice(list("abc"), n)) for n in rng.integers(1, 9, 30)] for _ in "ab"]
    found = transcript_scores(*texts)
    assert found["wer"] == pytest.approx(jiwer.wer(texts[1], texts[0]))
    assert found["cer"] == pytest.approx(jiwer.cer(texts[1], texts[0]))
