"""Answers that are desirable or not: rows of every form, batches, and what is wrong."""

from pathlib import Path

import numpy as np
import pytest
from corpora import all_rows, write_rows

from jaxformer.data import Bytes
from jaxformer.data.chat import UnpairedPreferenceData
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError

KTO = Path(__file__).parents[1] / "fixtures" / "rows" / "kto.jsonl"
ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
MORE = [ASKED, SAID, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]


def config(file, **changes):
    settings = {"sequence_length": 64, "batch_size": 4, "validation_fraction": 0.3}
    return UnpairedPreferenceData(train=str(file), tokenizer=Bytes(), **settings | changes)


def write(folder, rows):
    return write_rows(folder / "judged.jsonl", rows)


def row(values):
    return UnpairedPreferenceData().read_record(Record("file:3", values))


@pytest.mark.parametrize(
    ("values", "first", "plain"),
    [
        ({"prompt": "a", "completion": "b"}, 0, True),
        ({"prompt": [ASKED], "completion": [SAID]}, 1, False),
        ({"messages": [ASKED, SAID]}, 1, False),
        ({"messages": MORE}, 3, False),
        ({"instruction": "a", "output": "b"}, 1, False),
    ],
)
def test_rows_of_every_form(values, first, plain):
    for label in (True, False, 1, 0, 1.0, 0.0, "true", "False", " TRUE", "1", "0"):
        found = row(values | {"label": label})
        assert found.desirable == (str(label).strip().lower() in ("true", "1", "1.0"))
        assert (found.chat.first, found.chat.plain) == (first, plain)


@pytest.mark.parametrize("label", [None, "good", "", 2, 0.5, -1])
def test_a_label_is_true_or_false(label):
    with pytest.raises(DataError, match=r"file:3: label ="):
        row({"prompt": "a", "completion": "b", "label": label})
    with pytest.raises(DataError, match=r"no column 'label'"):
        row({"prompt": "a", "completion": "b"})


def test_a_batch_has_the_answers_and_those_to_other_prompts(tmp_path):
    rows = [
        {"prompt": f"ask {n}:", "completion": f" say {n}" + "!" * n, "label": n % 3 == 0}
        for n in range(9)
    ]
    data = config(write(tmp_path, rows)).prepare(tmp_path / "run")
    batch = all_rows(data.train)
    assert batch["inputs"].shape == (data.train.num_rows, 2, 64)
    others = []
    for inputs, targets, weights, desirable in zip(
        batch["inputs"], batch["targets"], batch["weights"], batch["desirable"], strict=True
    ):
        texts = []
        for side in range(2):
            learned = data.tokenizer.decode(targets[side][weights[side] > 0])
            size = int(np.argmax(weights[side])) + 1
            texts.append((data.tokenizer.decode(inputs[side][:size]), learned))
        (prompt, own), (same, other) = texts
        number = prompt.rpartition("ask ")[2].rstrip(":")
        assert prompt == same
        assert own.startswith(f" say {number}")
        assert not other.startswith(f" say {number}")
        assert desirable == (int(number) % 3 == 0)
        others.append(other)
    # Every answer is another prompt's once.
    assert len(set(others)) == data.train.num_rows
    assert "desirable and" in data.summary[0][1]


def test_long_rows_are_cut_dropped_or_refused(tmp_path):
    rows = [{"prompt": f"p{n} ", "completion": "x" * 9, "label": n < 5} for n in range(12)]
    rows[3]["prompt"] = "p" * 80
    file = write(tmp_path, rows)
    with pytest.raises(DataError, match=r"judged\.jsonl:4: \d+ tokens, more than .*too-long cut"):
        config(file, validation=str(file)).prepare(tmp_path / "run")
    for too_long, left in (("cut", 12), ("drop", 11)):
        data = config(file, too_long=too_long, validation=str(file)).prepare(tmp_path / too_long)
        assert data.train.num_rows == left
        batch = all_rows(data.train)
        assert (batch["weights"].sum(2) > 0).all()


def test_a_file_of_undesirable_answers_alone(tmp_path):
    validation = write(tmp_path, [{"prompt": "b", "completion": "c", "label": True}] * 2)
    data = config(KTO, validation=str(validation)).prepare(tmp_path / "run")
    batch = all_rows(data.train)
    assert not batch["desirable"].any()
    assert "0 desirable and 20 not" in data.summary[0][1]
