import dataclasses
import json

import numpy as np
import pytest
from corpora import write_rows

from jaxformer.data import Bytes, TrainTokenizer
from jaxformer.data.tasks import SpanText
from jaxformer.data.tasks.span_text import read_questions
from jaxformer.errors import ConfigError, DataError

CONTEXT = "The Denver Broncos, of Denver (Colorado), won  Super Bowl 50 by 24–10 in Santa Clara."
ANSWERS = {
    "Who won?": "Denver Broncos",
    "Which one was it?": "Super Bowl 50",
    "By how much?": "24–10",
    "What came first?": "The",
    "Where?": "Santa Clara",
}


def squad(folder, answers=ANSWERS, name="train.json"):
    questions = [
        {
            "id": str(number),
            "question": question,
            "answers": [{"text": answer, "answer_start": CONTEXT.find(answer)}] if answer else [],
        }
        for number, (question, answer) in enumerate(answers.items())
    ]
    data = [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]
    (folder / name).write_text(json.dumps({"version": "1.1", "data": data}))
    return str(folder / name)


@pytest.fixture
def config(tmp_path):
    file = squad(tmp_path)
    return SpanText(
        train=file,
        validation=file,
        tokenizer=Bytes(),
        sequence_length=128,
        question_length=20,
        stride=8,
        batch_size=2,
    )


TOKENIZERS = {
    "bytes": Bytes(),
    "bpe": TrainTokenizer(kind="bpe", vocab_size=280),
    "wordpiece": TrainTokenizer(kind="wordpiece", vocab_size=120),
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_the_span_is_the_answer(config, tokenizer, tmp_path):
    data = dataclasses.replace(config, tokenizer=tokenizer).prepare(tmp_path / "run")
    examples = data.train.examples
    found = {}
    for index, window in enumerate(examples.windows):
        row = examples.read(index, np.random.default_rng(0))
        question = examples.questions[window.question]
        in_context = [bool(examples.answer(index, n, n)) for n in range(len(row["inputs"]))]
        assert row["span_places"].tolist() == in_context
        if row["span_weights"]:
            first, last = row["span"]
            assert examples.answer(index, first, last) == question.answers[0]
            text = data.tokenizer.decode(row["inputs"][first : last + 1]).strip()
            assert text.replace(" ", "") == question.answers[0].replace(" ", "")
            assert row["token_types"][[first, last]].tolist() == [1, 1]
            found[question.text] = question.answers[0]
    assert found == ANSWERS


def test_a_long_question_is_cut_on_request(config, tmp_path, caplog):
    config = dataclasses.replace(config, question_length=12)
    message = r"train\.json, question '1': 17 tokens, more than data\.question_length = 12, and so"
    with pytest.raises(DataError, match=message + " have 2 of 5 rows"):
        config.prepare(tmp_path / "run")
    data = dataclasses.replace(config, truncate=True).prepare(tmp_path / "run")
    assert "2 of 5 rows are longer than data.question_length = 12 and were cut" in caplog.text
    assert data.train.batch(0)["inputs"].shape == (2, 128)


def test_a_long_context_becomes_windows_that_overlap(config, tmp_path):
    short = dataclasses.replace(config, sequence_length=64, question_length=17)
    examples = short.prepare(tmp_path / "run").train.examples
    assert len(examples) > 2 * len(ANSWERS)
    for number in range(len(ANSWERS)):
        windows = [window for window in examples.windows if window.question == number]
        assert all(len(window.text.ids) <= 64 for window in windows)
        begins = [int(window.characters[0, 0]) for window in windows]
        ends = [int(window.characters[-1, 1]) for window in windows]
        assert begins[0] == 0
        assert ends[-1] == len(CONTEXT)
        assert all(b <= e for b, e in zip(begins[1:], ends, strict=False))
        assert any(window.weight for window in windows)
        assert not all(window.weight for window in windows)


def test_a_question_without_an_answer_points_at_the_first_token(config, tmp_path):
    file = squad(tmp_path, {"Who lost?": "", "Who won?": "Denver Broncos"})
    data = dataclasses.replace(config, train=file, validation=file).prepare(tmp_path / "run")
    examples = data.train.examples
    row = examples.read(0, np.random.default_rng(0))
    assert row["span"].tolist() == [0, 0]
    assert row["span_weights"] == 1
    assert examples.answer(0, 0, 0) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", ": not in SQuAD's form"),
        ('{"data": [5]}', ": not in SQuAD's form"),
        ('{"data": {"a": 1}}', ": not in SQuAD's form"),
        ("{", ": not valid JSON"),
        ("[" * 9999, ": not valid JSON"),
        ('{"data": 9%s}' % ("9" * 5000), ": not valid JSON"),
        ('{"question": "a", "context": "b", "answers": []}\n{"que\n', ":2: not valid JSON"),
        ('{"data": []}', " has no rows"),
    ],
    ids=lambda text: text[:20],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=rf"a\.json{message}"):
        read_questions(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("length", "question", "stride"), [(384, 64, 128), (195, 64, 128), (128, 64, 30), (64, 16, 22)]
)
def test_rows_of_a_short_checkpoint_have_short_questions_and_strides(length, question, stride):
    data = SpanText(sequence_length=None).of_length(length)
    found = (data.sequence_length, data.question_length, data.stride)
    assert found == (length, question, stride)
    assert stride <= length - question - 3


def test_a_stride_beyond_the_window_is_refused():
    with pytest.raises(ConfigError, match="stride=100 would leave tokens of the context out"):
        SpanText(sequence_length=128, question_length=64, stride=100)


@pytest.mark.parametrize(
    "answers",
    [
        [{"text": "Denver", "answer_start": "4"}],
        [{"text": "Denver", "answer_start": 4.0}],
        [{"text": "Denver", "answer_start": -9}],
        [{"text": None, "answer_start": 4}],
        [{"text": " ", "answer_start": 3}],
        [{"text": "", "answer_start": 0}],
        [["Denver", 4]],
        {"text": "Denver", "answer_start": "456789"},
        {"text": ["Denver"], "answer_start": []},
        "Denver",
        5,
    ],
    ids=str,
)
def test_malformed_answers_are_refused(tmp_path, answers):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"context": CONTEXT, "question": "?", "answers": answers}) + "\n")
    with pytest.raises(DataError, match=r'train\.jsonl:1: "answers" must hold the "text"'):
        read_questions(file)


def flat_rows(folder):
    """The questions as `datasets` has them, with all answers of a row in two lists."""
    return [
        {
            "id": question.where,
            "title": "x",
            "context": question.context,
            "question": question.text,
            "answers": {"text": list(question.answers), "answer_start": [question.start]},
        }
        for question in read_questions(squad(folder))
    ]


@pytest.mark.parametrize("form", ["lines", "list", "data", "indented data", "jsonl", "parquet"])
def test_every_form_of_the_same_questions(form, tmp_path):
    rows = flat_rows(tmp_path)
    texts = {
        "list": json.dumps(rows),
        "data": json.dumps({"version": 2, "data": rows}),
        "indented data": json.dumps({"data": rows}, indent=1),
    }
    file = tmp_path / ("a." + (form if form in ("jsonl", "parquet") else "json"))
    if form in texts:
        file.write_text(texts[form])
    else:
        write_rows(file, rows)
    expected = read_questions(squad(tmp_path))
    found = [dataclasses.replace(question, where="") for question in read_questions(str(file))]
    assert found == [dataclasses.replace(question, where="") for question in expected]
