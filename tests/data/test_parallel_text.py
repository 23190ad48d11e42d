import dataclasses

import numpy as np
import pytest

from jaxformer.data import Bytes, TrainTokenizer
from jaxformer.data.tasks import LocalePairs, ParallelText
from jaxformer.data.tasks.parallel_text import read_parallel
from jaxformer.errors import ConfigError, DataError


@pytest.fixture
def config(tmp_path):
    words = [(f"word {n}", "Wort " * (n % 3) + str(n)) for n in range(30)]
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in words))
    return ParallelText(
        source=str(tmp_path / "source"),
        target=str(tmp_path / "target"),
        tokenizer=Bytes(),
        source_length=12,
        target_length=16,
        batch_size=4,
        validation_fraction=0.2,
    )


def test_rows_are_laid_out_for_teacher_forcing(config, tmp_path):
    data = config.prepare(tmp_path / "run")
    end, pad = data.tokenizer.end_of_text_id, data.tokenizer.pad_id
    examples = data.train.examples
    for index, (source, target) in enumerate(examples.pairs):
        row = examples.read(index, np.random.default_rng(0))
        expected = [*source.encode(), end]
        assert row["inputs"].tolist() == expected + [pad] * (12 - len(expected))
        assert row["segments"].tolist() == [1] * len(expected) + [0] * (12 - len(expected))
        expected = [*target.encode(), end]
        padding = 16 - len(expected)
        assert row["targets"].tolist() == expected + [pad] * padding
        assert row["decoder_inputs"].tolist() == [pad, *expected[:-1]] + [pad] * padding
        assert row["weights"].tolist() == [1.0] * len(expected) + [0.0] * padding
        assert row["decoder_segments"].tolist() == row["weights"].tolist()
        dtypes = {name: value.dtype.name for name, value in row.items()}
        assert dtypes == dict.fromkeys(row, "int32") | {"weights": "float32"}


def test_long_texts_are_cut_on_request_and_keep_their_end(config, tmp_path, caplog):
    config = dataclasses.replace(config, source_length=5, target_length=3)
    with pytest.raises(DataError, match=r"source:\d+: 7 tokens, more than data\.source_length = 5"):
        config.prepare(tmp_path / "run")
    config = dataclasses.replace(config, truncate=True)
    data = config.prepare(tmp_path / "run")
    assert "rows are longer than data.source_length = 5 and were cut" in caplog.text
    batch, end = data.train.batch(0), data.tokenizer.end_of_text_id
    assert (batch["inputs"][:, -1] == end).all()
    assert (batch["targets"][batch["weights"].sum(1) == 3, -1] == end).all()


def test_files_for_validation(config, tmp_path):
    (tmp_path / "s").write_text("a\nb\n")
    (tmp_path / "t").write_text("A\nB\n")
    files = {"validation_source": str(tmp_path / "s"), "validation_target": str(tmp_path / "t")}
    data = dataclasses.replace(config, **files).prepare(tmp_path / "run")
    assert data.train.num_rows == 30
    assert data.validation.examples.pairs == [("a", "A"), ("b", "B")]
    (batch,) = data.validation.epoch()
    assert batch["weights"].sum(1).tolist() == [2, 2, 0, 0]


def test_lines_of_two_files_are_pairs(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one\n\u2028two\n\n")
    target.write_text("eins\nzwei\ndrei")
    pairs = [("one", "eins"), ("\u2028two", "zwei"), ("", "drei")]
    assert [pair.texts for pair in read_parallel(source, target)] == pairs
    target.write_text("eins\n")
    with pytest.raises(DataError, match=r"source has 3 lines and .*target has 1"):
        read_parallel(source, target)


def test_one_file_alone_is_refused(config):
    with pytest.raises(ConfigError, match="target=None: give both files or neither"):
        dataclasses.replace(config, target=None)


@pytest.mark.parametrize(
    ("text", "message"), [("", "has no rows"), ("\n" * 9, "no line of .* has text in both")]
)
def test_files_without_text_are_refused(config, tmp_path, text, message):
    (tmp_path / "empty").write_text(text)
    files = {"source": str(tmp_path / "empty"), "target": str(tmp_path / "empty")}
    with pytest.raises(DataError, match=message):
        dataclasses.replace(config, **files).prepare(tmp_path / "run")


# The corpus without files ------------------------------------------------------------------------


def test_the_locale_data_are_translations():
    pairs = dict(LocalePairs().pairs())
    assert len(pairs) > 3000
    assert pairs["Austria"] == "Österreich"
    assert pairs["Sunday, January 1, 1950"] == "Sonntag, 1. Januar 1950"
    assert "12 Swiss francs" not in pairs or pairs["12 Swiss francs"] == "12 Schweizer Franken"
    assert all(source != target and source and target for source, target in pairs.items())


def test_an_unknown_language_is_refused():
    with pytest.raises(DataError, match="knows no language 'xx'"):
        LocalePairs(target="xx").pairs()


def test_the_default_needs_no_file(tmp_path):
    config = ParallelText(tokenizer=TrainTokenizer(vocab_size=500), validation_fraction=0.1)
    data = config.prepare(tmp_path)
    sources = [{pair[0] for pair in side.examples.pairs} for side in (data.train, data.validation)]
    assert not sources[0] & sources[1]
    assert data.train.batch(0)["inputs"].shape == (16, 64)
