"""Rows of a batch in words: texts with what is learned, and arrays of any kind."""

import numpy as np

from jaxformer.data import Bytes
from jaxformer.data.shown_rows import Part, RowReader, Text, cut

TOKENIZER = Bytes().fit([], ("mask",))


def tokens(text, length=0):
    ids = TOKENIZER.encode(text)
    return np.pad(ids, (0, max(length - len(ids), 0)), constant_values=TOKENIZER.pad_id)


def test_next_tokens_are_one_text():
    reader = RowReader("language_model", TOKENIZER)
    ids = tokens("a question: the answer", 30)
    weights = np.zeros(29, np.float32)
    weights[11:21] = 1
    row = {"inputs": ids[:-1], "targets": ids[1:], "weights": weights}
    (text,) = reader.texts(row)
    assert text.name == "text"
    assert text.parts == (Part("a question: ", False), Part("the answer", True))
    # The last target is not an input.
    row = {"inputs": ids[:21], "targets": ids[1:22], "weights": weights[:21]}
    assert "".join(part.text for part in reader.texts(row)[0].parts) == "a question: the answer"


def test_other_targets_are_a_separate_text():
    reader = RowReader("language_model", TOKENIZER)
    ids = tokens("abcdef")
    row = {"inputs": ids[:-2], "targets": ids[2:], "weights": np.ones(4, np.float32)}
    inputs, targets = reader.texts(row)
    assert (str(inputs), str(targets)) == ("abcd", "cdef")


def test_hidden_tokens_are_given_in_runs():
    reader = RowReader("masked_language_model", TOKENIZER)
    ids = tokens("abcdef", 8)
    hidden = np.isin(np.arange(8), (1, 2, 5))
    row = {
        "inputs": np.where(hidden, TOKENIZER.token_id("[MASK]"), ids),
        "targets": ids,
        "weights": hidden.astype(np.float32),
        "segments": (np.arange(8) < 6).astype(np.int32),
    }
    inputs, targets = reader.texts(row)
    assert str(inputs) == "a[MASK][MASK]de[MASK]"
    assert [part.text for part in targets.parts if part.learned] == ["bc", "f"]
    (columns,) = reader.columns(row)
    assert {column.name: column.words[1] for column in columns} == {
        "inputs": "[MASK]", "targets": "b", "weights": "1", "segments": "1",
    }  # fmt: skip
    assert {len(column.words) for column in columns} == {6}


def test_packed_documents_have_one_example():
    reader = RowReader("language_model", TOKENIZER)
    ids, segments = tokens("first second"), np.array([1] * 5 + [2] * 7, np.int32)
    row = {
        "inputs": ids, "targets": np.roll(ids, -1),
        "weights": np.ones(12, np.float32), "segments": segments,
    }  # fmt: skip
    assert str(reader.texts(reader.example(row))[0]).startswith("first")
    assert len(reader.example(row)["inputs"]) == 5
    whole = row | {"segments": np.ones(12, np.int32)}
    assert len(reader.example(whole)["inputs"]) == 12


def test_labels_vectors_of_labels_and_images_are_formatted():
    reader = RowReader("classification", TOKENIZER, ("toxic", "insult", "spam"))
    row = {
        "inputs": tokens("you", 5), "segments": np.array([1, 1, 1, 0, 0]),
        "label": np.array([1.0, 0.0, 1.0], np.float32),
        "images": np.linspace(-1, 3, 4 * 4 * 3, dtype=np.float32).reshape(4, 4, 3),
    }  # fmt: skip
    texts = {name: reader.format_value(name, x, row) for name, x in reader.others(row).items()}
    assert "toxic, spam" in texts["label"]
    assert texts["images"] == "float32 [4, 4, 3], min -1, mean 1, max 3"
    assert reader.format_value("label", np.array(2), row) == "2 (spam)"
    assert reader.format_value("label", np.array(0.25, np.float32), row) == "0.25"
    assert str(reader.texts(row)[0]) == "you"
    found = reader.as_json(row)
    assert found["arrays"]["label"] == [1.0, 0.0, 1.0]
    assert found["arrays"]["images"]["max"] == 3.0
    assert RowReader("classification").texts({"images": row["images"]}) == []


def test_pairs_are_two_sequences():
    reader = RowReader("language_model", TOKENIZER)
    both = np.stack([tokens("a: yes", 8), tokens("a: no", 8)])
    weights = np.array([[0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0]], np.float32)
    row = {"inputs": both[:, :-1], "targets": both[:, 1:], "weights": weights}
    chosen, rejected = reader.texts(row)
    assert (chosen.name, rejected.name) == ("chosen", "rejected")
    assert [part.text for part in rejected.parts if part.learned] == ["no"]
    judged = reader.texts(row | {"desirable": np.int32(1)})
    assert judged[0].name == "answer"
    assert [part.text for part in judged[0].parts if part.learned] == ["yes"]


def test_long_texts_are_cut():
    texts = [
        Text("inputs", (Part("abc", False), Part("defgh", True))),
        Text("x", (Part("i", True),)),
    ]
    first, second = cut(texts, 5)
    assert first.parts == (Part("abc", False), Part("de...", True))
    assert second.parts == ()


def test_custom_data_need_no_tokens():
    reader = RowReader("language_model", TOKENIZER)
    row = {"inputs": np.zeros((2, 5), np.float32), "targets": np.zeros(3, np.int32)}
    assert reader.texts(row) == []
    assert reader.columns(row) == []
    assert reader.others(row).keys() == row.keys()
    row = {"inputs": tokens("abc"), "targets": tokens("bcd")}  # without weights
    assert [str(text) for text in reader.texts(row)] == ["abc"]
    assert reader.as_json(row)["pieces"]["targets"] == ["b", "c", "d"]
