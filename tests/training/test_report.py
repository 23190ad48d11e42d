"""The report at the start of a run: what the data are, and how often they are read."""

import logging
import re

import pytest

from jaxformer.data import Bytes, DataConfig, Files
from jaxformer.data.tasks import LabelledText
from jaxformer.training.logging.report import describe_epochs, unique_prefixes


def corpus(folder, documents):
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number}.txt").write_text("word " * 20)
    return DataConfig(
        source=Files(str(folder)),
        tokenizer=Bytes(),
        sequence_length=10,
        batch_size=3,
        max_validation_batches=2,
    )


def test_documents_tokens_and_epochs_of_a_corpus(tmp_path):
    data = corpus(tmp_path / "corpus", 30)
    prepared = data.prepare(tmp_path / "run")
    held_out = dict(prepared.report())["validation"].split()[0]
    learned = 30 - int(held_out)
    words = {"training": f"{learned} documents, {learned * 101:,} tokens"}
    words["validation"] = f"{held_out} document, {int(held_out) * 101:,} tokens"
    assert dict(prepared.report()) == words
    rows, checked = prepared.train.num_rows, prepared.validation.num_rows
    epochs = describe_epochs(prepared, 2 * rows, data.max_validation_batches)
    assert epochs == f"6 of training, {6 / checked:.3g} of validation in each evaluation"
    assert describe_epochs(prepared, 1, None).endswith(", 1 of validation in each evaluation")


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        (1, "validation is the tail of the only document, .* --data.source.sample-by paragraph"),
        (4, "validation is a single document of 4, .* raise data.validation_fraction = 0.02, or"),
        (400, None),
    ],
)
def test_a_validation_of_one_document_is_warned_of(tmp_path, caplog, documents, told):
    data = corpus(tmp_path / "corpus", documents)
    for _ in range(2):  # at every start
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            data.prepare(tmp_path / "run")
        if told is None:
            assert not caplog.records
        else:
            (record,) = caplog.records
            assert re.search(told, record.getMessage())


def test_rows_and_labels_of_a_table(tmp_path):
    rows = "".join(f"text {number},{'yes' if number % 3 else 'no'}\n" for number in range(30))
    (tmp_path / "a.csv").write_text("sentence,label\n" + rows)
    data = LabelledText(train=str(tmp_path / "a.csv"), validation=str(tmp_path / "a.csv"))
    assert data.prepare(tmp_path / "run").report() == [
        ("training", "30 rows"),
        ("validation", "30 rows"),
        ("labels", "2: 'no', 'yes'"),
    ]


def test_what_still_learns_is_named_by_the_shortest_beginnings():
    names = ["embedding.table", "stack.norms.scale", "stack.mlp.up", "stack.mlp.down", "heads.a.b"]
    assert unique_prefixes(names[4:], names[:4]) == ["heads"]
    assert unique_prefixes(names[2:], names[:2]) == ["stack.mlp", "heads"]
    assert unique_prefixes([names[0], names[3]], [names[1], names[2], *names[4:]]) == [
        "embedding",
        "stack.mlp.down",
    ]
    assert unique_prefixes(["a.b"], ["a.b.c"]) == ["a.b"]
    assert unique_prefixes([], names) == []
