import json
from dataclasses import replace

import numpy as np
import pytest

from jaxformer.data import Bytes, TokenizerFile
from jaxformer.data.tasks import AnswerText, SummaryText
from jaxformer.errors import DataError
from jaxformer.io.tables import write_table

ROWS = [
    {"article": f'Story {n}.\nIt was "long", said no one.', "highlights": f"A story {n}"}
    for n in range(12)
]


def write_rows(folder, ending, rows=ROWS):
    write_table(folder / f"train{ending}", lambda: iter(rows))
    return str(folder / f"train{ending}")


def config_for(train, **fields):
    fields = {"source": "article", "target": "highlights", "tokenizer": Bytes()} | fields
    return SummaryText(train=train, source_length=80, target_length=20, batch_size=3, **fields)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_every_kind_of_table(ending, tmp_path):
    config = config_for(write_rows(tmp_path, ending))
    data = config.prepare(tmp_path / "run")
    pairs = [*data.train.examples.pairs, *data.validation.examples.pairs]
    expected = [("summarize: " + row["article"], row["highlights"]) for row in ROWS]
    assert sorted(pairs) == sorted(expected)
    row = data.train.examples.read(0, np.random.default_rng(0))
    source, target = data.train.examples.pairs[0]
    assert data.tokenizer.decode(row["inputs"][row["segments"] > 0]) == source
    assert data.tokenizer.decode(row["targets"][row["weights"] > 0]) == target


def test_no_prefix_and_a_table_for_validation(tmp_path):
    train = write_rows(tmp_path, ".jsonl")
    config = config_for(train, prefix="", validation=train)
    assert config.validation_rows() == config.train_rows()
    assert config.train_rows()[1].texts == tuple(ROWS[1].values())
    config.prepare(tmp_path / "run")
    validation = config.prepare_validation(tmp_path / "run")
    assert validation.validation.num_rows == 12


@pytest.mark.parametrize(
    ("fields", "rows", "message"),
    [
        (
            {"source": "document"},
            ROWS,
            r"jsonl:1: no column 'document'; the columns are: 'article'",
        ),
        ({}, [], r"train\.jsonl has no rows"),
        ({"prefix": "p" * 60}, ROWS, r"jsonl:\d+: 9\d tokens, more than data\.source_length = 80"),
    ],
)
def test_mistakes_name_the_line(fields, rows, message, tmp_path):
    config = config_for(write_rows(tmp_path, ".jsonl", rows), **fields)
    with pytest.raises(DataError, match=message):
        config.prepare(tmp_path / "run")


def test_the_tokenizers_own_special_tokens(tmp_path):
    """BART's: <s> text </s> on both sides, also where the text is cut."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "Story": 4, "A": 5, "story": 6}
    rust = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.add_special_tokens(["<s>", "<pad>", "</s>"])
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    rust.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerFile(str(tmp_path / "tokenizer.json"), end_of_text="</s>", pad="<pad>")
    fields = {"tokenizer": spec, "special_tokens": "tokenizer", "start": "end_of_text"}
    config = config_for(write_rows(tmp_path, ".jsonl"), prefix="", **fields)
    config = replace(config, source_length=4, truncate=True)
    data = config.prepare(tmp_path / "run")
    row = data.train.examples.read(0, np.random.default_rng(0))
    assert row["inputs"].tolist() == [0, 4, 3, 2]
    assert row["targets"][:5].tolist() == [0, 5, 6, 3, 2]
    assert row["decoder_inputs"][:5].tolist() == [2, 0, 5, 6, 3]


LENGTHS = [{"text": text, "answer_start": 13} for text in ("1,230 km", "1,230")]
RHINE = [
    {"id": "1", "question": "How long?", "is_impossible": False, "answers": LENGTHS},
    {
        "id": "2",
        "question": "How deep?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": LENGTHS[:1],
    },
]
PARAGRAPHS = [
    {"context": "The Rhine is 1,230 km long.", "qas": RHINE},
    {"context": "Nothing.", "qas": [{"id": "3", "question": "What?", "answers": []}]},
]
SQUAD = {"version": "v2.0", "data": [{"title": "Rivers", "paragraphs": PARAGRAPHS}]}


@pytest.fixture
def squad(tmp_path):
    file = tmp_path / "train-v2.0.json"
    file.write_text(json.dumps(SQUAD))
    return str(file)


def test_questions_become_text(squad):
    pairs = AnswerText(train=squad, tokenizer=Bytes()).train_rows()
    source = "question: How long? context: The Rhine is 1,230 km long."
    assert pairs[0].texts == (source, "1,230 km")
    assert pairs[0].references == ("1,230 km", "1,230")
    assert pairs[1].texts[1] == ""
    assert pairs[1].references == ()


def test_questions_about_one_context_are_held_out_together(squad, tmp_path):
    data = AnswerText(train=squad, tokenizer=Bytes(), source_length=80).prepare(tmp_path / "run")
    sides = [data.train.examples.pairs, data.validation.examples.pairs]
    contexts = [{source.partition(" context: ")[2] for source, _ in side} for side in sides]
    assert contexts[0].isdisjoint(contexts[1])
    assert sum(map(len, sides)) == 3
