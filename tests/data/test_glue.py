import numpy as np
import pytest
from glue_files import as_microsoft_does, sentence, write_glue, write_parquet, write_table

from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import Glue
from jaxformer.data.tasks.glue import GlueFolder
from jaxformer.data.tasks.glue_tasks import DIAGNOSTIC, TASKS, task_name
from jaxformer.errors import ConfigError, DataError

LABELS = {
    "cola": ("0", "1"),
    "sst2": ("0", "1"),
    "mrpc": ("0", "1"),
    "stsb": (),
    "qqp": ("0", "1"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("0", "1"),
}
WORDS = TrainTokenizer(kind="wordpiece", vocab_size=120)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


def glue(root, task, **fields):
    return Glue(task=task, folder=str(root), tokenizer=WORDS, sequence_length=64, **fields)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_read_as_it_is_distributed(root, task, tmp_path):
    config = glue(root, task)
    data = config.prepare(tmp_path)
    assert (data.train.num_rows, data.validation.num_rows) == (40, 18)
    assert data.labels == LABELS[task]
    rows, pair = config.train_rows(), len(TASKS[task].text) == 2
    assert all(len(row.texts) == 1 + pair for row in rows)
    assert rows[9].texts[0].strip() == sentence(9), "quotation marks are ordinary characters"
    row = data.train.examples.read(5, np.random.default_rng(0))
    expected = 2.5 if task == "stsb" else LABELS[task].index(rows[5].label)
    assert row["label"] == expected
    assert row["label_weights"] == 1
    assert row["token_types"].max() == pair
    assert config.head == ("regression" if task == "stsb" else "classification")


def test_mnli_has_two_splits_for_validation(root, tmp_path):
    config = glue(root, "mnli", validation="dev_mismatched")
    assert config.validation_rows()[0].where == f"{root}/MNLI/dev_mismatched.tsv:2"
    with pytest.raises(ConfigError, match=r'validation = .dev_wrong.: must be "dev_matched" or'):
        glue(root, "mnli", validation="dev_wrong")


def test_lines_with_other_fields_are_left_out_and_counted(root, caplog):
    assert len(glue(root, "qqp").train_rows()) == 40
    assert "QQP/train.tsv:42: 4 fields where the file's first line has 6" in caplog.text
    assert "lines left out in all: 2" in caplog.text


def test_microsofts_files_of_mrpc(root, tmp_path, caplog):
    write_glue(tmp_path, "mrpc")
    expected = {row.texts for row in glue(tmp_path, "mrpc").train_rows()}
    dev = {row.texts for row in glue(tmp_path, "mrpc").validation_rows()}
    as_microsoft_does(tmp_path)
    config = glue(tmp_path, "mrpc")
    assert {row.texts for row in config.train_rows()} == expected
    assert {row.texts for row in config.validation_rows()} == dev
    queries = config.files.query_rows("test")
    assert [row.index for row in queries] == list(map(str, range(7)))
    assert queries[3].row.texts == (sentence(3), sentence(5))
    (tmp_path / "MRPC" / "mrpc_dev_ids.tsv").unlink()
    train, validation = glue(tmp_path, "mrpc", validation_fraction=0.2).split()
    assert len(train) + len(validation) == 58
    assert "without mrpc_dev_ids.tsv: a share of its rows is held out" in caplog.text


@pytest.mark.parametrize("task", [*TASKS, "ax"])
def test_queries_have_the_index_of_their_file(root, task):
    spec = TASKS.get(task, DIAGNOSTIC)
    for split in spec.test:
        queries = GlueFolder(str(root), spec).query_rows(split)
        assert [row.index for row in queries] == list(map(str, range(7)))
        assert queries[4].row.texts[0].strip() == sentence(4)
        assert queries[4].row.label is None
    assert list(spec.submitted.values()) == (
        ["MNLI-m", "MNLI-mm"] if task == "mnli" else [spec.title]
    )


def test_rows_without_labels_have_no_weight(root, tmp_path):
    config = glue(root, "rte")
    data = config.prepare(tmp_path)
    queries = [query.row for query in config.files.query_rows("test")]
    examples = config.examples(queries, data.tokenizer, data.labels)
    row = examples.read(2, np.random.default_rng(0))
    assert row["label_weights"] == 0
    assert row["label"].dtype == np.int32
    assert row["inputs"].any()


TEXTS = (["a b", "c"], ["d", "e"])
PARQUET = {
    "cola": (("sentence",), [1, 0], ["1", "0"]),
    "mnli": (("premise", "hypothesis"), [2, 1], ["contradiction", "neutral"]),
    "mrpc": (("sentence1", "sentence2"), [1, 0], ["1", "0"]),
    "qnli": (("question", "sentence"), [1, 0], ["not_entailment", "entailment"]),
    "qqp": (("question1", "question2"), [1, 0], ["1", "0"]),
    "stsb": (("sentence1", "sentence2"), [2.5, 4.0], ["2.5", "4.0"]),
}


@pytest.mark.parametrize("task", PARQUET)
def test_parquet_files_of_the_hub(task, tmp_path):
    names, coded, labels = PARQUET[task]
    texts = dict(zip(names, TEXTS, strict=False))
    columns = texts | {"label": coded, "idx": [11, 10]}
    splits = ["train", *(name.replace("dev", "validation") for name in TASKS[task].dev)]
    for split in splits:
        write_parquet(tmp_path, task, columns, split)
    config = glue(tmp_path, task)
    assert not config.files.missing()
    assert [row.label for row in config.train_rows()] == labels
    assert [row.label for row in config.validation_rows()] == labels
    unlabelled = columns | {"label": [-1, -1]}
    named = TASKS[task].hub_labels
    if named:  # with the names of the hub's class labels
        write_parquet(tmp_path, task, columns | {"label": [named[n] for n in coded]}, "train")
        assert [row.label for row in config.train_rows()] == labels
    for split in TASKS[task].test:
        write_parquet(tmp_path, task, unlabelled, split)
        queries = config.files.query_rows(split)
        assert [row.index for row in queries] == ["11", "10"]
        assert queries[0].row.texts[0] == "a b"


@pytest.mark.more
def test_what_datasets_saves(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["unacceptable", "acceptable"])
    kinds = {"sentence": datasets.Value("string"), "label": names, "idx": datasets.Value("int32")}
    labels = {"train": [1, 0], "validation": [0, 1], "test": [-1, -1]}
    splits = {
        split: datasets.Dataset.from_dict(
            {"sentence": ["a b", "c"], "label": found, "idx": [4, 5]},
            features=datasets.Features(kinds),
        )
        for split, found in labels.items()
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "cola")
    config = glue(tmp_path, "cola")
    assert [row.label for row in config.train_rows()] == ["1", "0"]
    assert [row.label for row in config.validation_rows()] == ["0", "1"]
    queries = config.files.query_rows("test")
    assert [(query.index, *query.row.texts) for query in queries] == [("4", "a b"), ("5", "c")]


def test_mistakes_name_the_file(root, tmp_path):
    assert [task_name(name) for name in ("CoLA", "sst-2", "STSB")] == ["cola", "sst2", "stsb"]
    with pytest.raises(ConfigError, match=r"'sts' is not a GLUE task: .*did you mean 'stsb'"):
        task_name("sts")
    write_glue(tmp_path, "mnli")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    missing = glue(tmp_path, "mnli").files.missing()
    assert missing == [f"{tmp_path}/MNLI/dev_mismatched.tsv"]
    with pytest.raises(DataError, match=r"RTE/train\.tsv does not exist: it must hold the split"):
        glue(tmp_path, "rte").train_rows()
    header = "index | sentence1 | sentence2 | label"
    write_table(tmp_path / "RTE" / "train.tsv", header, [(0, "a", "b", "maybe")])
    with pytest.raises(DataError, match=r"train\.tsv:2: the label 'maybe' is not one of RTE's: e"):
        glue(tmp_path, "rte").train_rows()
