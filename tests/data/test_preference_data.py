"""Preferences: rows of every form become the same pairs, and what is wrong is named."""

import numpy as np
import pytest
from corpora import write_rows

from jaxformer.data import Bytes, TokenizerFile
from jaxformer.data.chat.preferences.config import PreferenceData
from jaxformer.data.chat.preferences.pairs import Answer, FittingRows, Pair
from jaxformer.data.chat.preferences.rows import Preference
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError

ASKED = {"role": "user", "content": "Which colour?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def said(text):
    return {"role": "assistant", "content": text}


RED, BLUE = said("Red."), said("Blue.")
FORMS = {
    "explicit": {"prompt": [ASKED], "chosen": [RED], "rejected": [BLUE]},
    "implicit": {"chosen": [ASKED, RED], "rejected": [ASKED, BLUE]},
    "repeated": {"prompt": [ASKED], "chosen": [ASKED, RED], "rejected": [ASKED, BLUE]},
    "named and repeated": {
        "prompt": ASKED["content"],
        "chosen": [ASKED, RED],
        "rejected": [ASKED, BLUE],
    },
    "text and messages": {"prompt": ASKED["content"], "chosen": [RED], "rejected": [BLUE]},
    "messages and text": {"prompt": [ASKED], "chosen": "Red.", "rejected": "Blue."},
    "single messages": {"prompt": [ASKED], "chosen": RED, "rejected": BLUE},
    "null prompt": {"prompt": None, "chosen": [ASKED, RED], "rejected": [ASKED, BLUE]},
}


def row(values):
    return Preference().read(Record("file:3", values))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_pair(form):
    found = row(FORMS[form])
    assert list(found.chosen.messages) == [ASKED, RED]
    assert list(found.rejected.messages) == [ASKED, BLUE]
    assert found.chosen.first == found.rejected.first == 1
    assert not found.chosen.plain
    assert found.prompt == [ASKED]


def test_a_conversation_of_several_turns():
    turns = [SYSTEM, ASKED, RED, {"role": "user", "content": "Sure?"}]
    found = row({"chosen": [*turns, said("Yes.")], "rejected": [*turns, said("No.")]})
    assert found.prompt == turns
    assert found.chosen.first == 4
    # An answer may be several messages.
    tool = {"role": "tool", "content": "7"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    found = row({"prompt": [ASKED], "chosen": [call, tool, RED], "rejected": [call, tool, BLUE]})
    assert found.chosen.first == 1
    assert list(found.chosen.messages) == [ASKED, call, tool, RED]


def test_texts_are_continued_as_they_stand():
    found = row({"prompt": "One two", "chosen": " three", "rejected": " four"})
    assert found.chosen.plain
    assert found.rejected.plain
    assert [message["content"] for message in found.chosen.messages] == ["One two", " three"]
    # Without a prompt it is what both begin with, in whole words.
    transcript = "\n\nHuman: hello\n\nAssistant:"
    found = row({"chosen": f"{transcript} They go.", "rejected": f"{transcript} The end."})
    texts = [[m["content"] for m in side.messages] for side in found]
    assert texts == [[transcript, " They go."], [transcript, " The end."]]


WRONG = {
    "the same": ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
    "the same messages": (FORMS["explicit"] | {"rejected": [RED]}, "are the same"),
    "no chosen": ({"prompt": "a", "rejected": "b"}, "no column 'chosen'"),
    "no rejected": ({"prompt": "a", "chosen": "b"}, "no column 'rejected'"),
    "another prompt": (
        {"chosen": [SYSTEM, ASKED, RED], "rejected": [SYSTEM, {**ASKED, "content": "Why?"}, BLUE]},
        "a message by 'user' follows the common beginning",
    ),
    "nothing in common": ({"chosen": [ASKED, RED], "rejected": [SYSTEM, BLUE]}, "no prompt"),
    "texts without a prompt": ({"chosen": "yes it is", "rejected": "no"}, "no prompt"),
    "an empty answer": ({"prompt": "a", "chosen": " ", "rejected": "b"}, "no answer"),
    "no answer": (
        {"chosen": [ASKED], "rejected": [ASKED, BLUE]},
        "nothing follows the common",
    ),
    "no text": ({"prompt": 3, "chosen": "a", "rejected": "b"}, "column 'prompt' holds 3"),
    "no message": ({"prompt": "a", "chosen": ["b"], "rejected": ["c"]}, "message 1"),
    "an unknown role": (
        {"prompt": [ASKED], "chosen": [{"role": "bot", "content": "a"}], "rejected": [BLUE]},
        "a message by 'bot'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_line(case):
    values, message = WRONG[case]
    with pytest.raises(DataError) as error:
        row(values)
    assert str(error.value).startswith("file:3: ")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


# Tokens -------------------------------------------------------------------------------------------


def data_of(folder, rows, **fields):
    train = write_rows(folder / "preferences.jsonl", rows)
    options = {"tokenizer": Bytes(), "sequence_length": 32, "batch_size": 2}
    return PreferenceData(train=train, **(options | fields))


ROWS = [
    {"prompt": f"n{number}", "chosen": "+" * (1 + number), "rejected": "-" * (8 - number)}
    for number in range(6)
]


def test_a_row_of_a_batch_is_a_pair(tmp_path):
    data = data_of(tmp_path, ROWS).prepare(tmp_path / "run")
    rows = data.train.num_rows + data.validation.num_rows
    assert rows == len(ROWS)
    example = data.train.examples.read(0, np.random.default_rng(0))
    (number,) = (int(pair.where[-1]) - 1 for pair in data.train.examples.pairs[:1])
    for side, sign in enumerate("+-"):
        text = ROWS[number]["chosen" if sign == "+" else "rejected"]
        tokens = [*f"n{number}".encode(), *text.encode(), 256]
        size = len(tokens) - 1
        assert example["inputs"][side, :size].tolist() == tokens[:-1]
        assert example["targets"][side, :size].tolist() == tokens[1:]
        assert example["weights"][side].tolist() == [0] + [1] * (size - 1) + [0] * (32 - size)
    blank = data.train.examples.blank()
    assert {name: x.shape for name, x in blank.items()} == dict.fromkeys(
        ("inputs", "targets", "weights"), (2, 32)
    )
    assert not blank["weights"].any()
    words = dict(data.summary)["training"]
    assert words.startswith(f"{data.train.num_rows} pairs, ")


def test_equal_prompts_fall_on_the_same_side(tmp_path):
    rows = [{**ROWS[number % 5], "chosen": "x" * number} for number in range(1, 20)]
    data = data_of(tmp_path, rows, validation_fraction=0.4).prepare(tmp_path / "run")
    prompts = [
        {rows[int(pair.where.rpartition(":")[2]) - 1]["prompt"] for pair in side.examples.pairs}
        for side in (data.train, data.validation)
    ]
    assert not prompts[0] & prompts[1]
    assert all(prompts)


def test_the_fingerprint_is_that_of_the_tokens(tmp_path):
    def of(folder, rows):
        folder.mkdir()
        return data_of(folder, rows).prepare(folder / "run").train.examples.fingerprint()

    first = of(tmp_path / "a", ROWS)
    assert of(tmp_path / "b", ROWS) == first
    assert of(tmp_path / "c", [{**each, "chosen": "+"} for each in ROWS]) != first


# Lengths ------------------------------------------------------------------------------------------


def pair(prompt, chosen, rejected):
    sides = []
    for number, size in ((1, chosen), (2, rejected)):
        places = np.arange(prompt + size, dtype=np.int32)
        sides.append(Answer(np.where(places < prompt, places, 100 * number), places >= prompt))
    return Pair(*sides, "file:1")


def test_the_prompt_is_cut_first_and_alike_on_both_sides():
    cut = pair(prompt=10, chosen=6, rejected=4).cut(12)
    assert [len(side.tokens) for side in cut[:2]] == [12, 10]
    assert cut.prompt_size == 6
    assert cut.chosen.tokens[:6].tolist() == cut.rejected.tokens[:6].tolist() == [4, 5, 6, 7, 8, 9]
    # One token of the prompt stays, from which the answer begins.
    cut = pair(prompt=5, chosen=20, rejected=3).cut(8)
    assert cut.prompt_size == 1
    assert [int(side.learned.sum()) for side in cut[:2]] == [7, 3]


def test_what_is_too_long():
    pairs = [pair(4, 2, 3), pair(10, 6, 4), pair(4, 3, 2)]
    assert len(FittingRows.of(pairs, 16, "error", "pair").kept) == 3
    with pytest.raises(DataError, match=r"file:1: 16 tokens, more than data.sequence_length = 15"):
        FittingRows.of(pairs, 15, "error", "pair")
    dropped = FittingRows.of(pairs, 15, "drop", "pair")
    assert len(dropped.kept) == 2
    assert dropped.summary().endswith("; 1 longer ones left out")
    cut = FittingRows.of(pairs, 15, "cut", "pair")
    assert len(cut.kept) == 3
    assert cut.summary().endswith("; 1 cut to 15 tokens")
    # Answers that differ only after the cut are left out, and not counted as cut.
    same = np.arange(30, dtype=np.int32)
    answers = [Answer(np.append(same, number), np.arange(31) >= 2) for number in (1, 2)]
    both = FittingRows.of([*pairs, Pair(*answers, "file:2")], 15, "cut", "pair")
    assert both.summary().endswith("; 1 cut to 15 tokens; 1 longer ones left out")
    with pytest.raises(DataError, match=r"no pair fits into data.sequence_length = 3"):
        FittingRows.of(pairs, 3, "drop", "pair")
    with pytest.raises(DataError, match=r"no answer fits into"):
        FittingRows.of([], 3, "drop", "answer")


def test_answers_of_the_same_tokens():
    same = pair(4, 2, 3)
    with pytest.raises(DataError, match=r"file:1: both answers"):
        same._replace(rejected=same.chosen).check()


def test_answers_begin_at_the_same_token():
    class Chat:
        def __init__(self, tokens, answer):
            self.tokens = np.array(tokens, np.int32)
            self.is_answer = np.arange(len(tokens)) >= answer

    # The last letters of the prompt and the first of one answer are one token.
    found = Pair.of(Chat([1, 2, 3, 9, 8], 3), Chat([1, 2, 7, 8], 2), "file:1")
    assert found.chosen.learned.tolist() == [False, False, True, True, True]
    assert found.rejected.learned.tolist() == [False, False, True, True]


# Beside TRL ---------------------------------------------------------------------------------------


@pytest.mark.torch
def test_tokens_and_masks_are_trls(tmp_path):
    from hf_checkpoints import SENTENCES, save_checkpoint
    from transformers import AutoTokenizer

    trl = pytest.importorskip("trl.trainer.dpo_trainer")
    source = save_checkpoint("llama", tmp_path / "source")
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows = [
        {"prompt": SENTENCES[n], "chosen": f"{' ' * (n % 2)}{SENTENCES[n + 1]}", "rejected": "no."}
        for n in range(12)
    ]
    data = data_of(
        tmp_path, rows, tokenizer=TokenizerFile(str(source)), sequence_length=80, batch_size=4
    ).prepare(tmp_path / "run")
    for pair in (*data.train.examples.pairs, *data.validation.examples.pairs):
        row = rows[int(pair.where.rpartition(":")[2]) - 1]
        prompt = tokenizer(row["prompt"])["input_ids"]
        whole = [
            tokenizer(row["prompt"] + row[name] + tokenizer.eos_token)["input_ids"]
            for name in ("chosen", "rejected")
        ]
        start = min(trl.common_prefix_length(prompt, side) for side in whole)
        for side, expected in zip(pair[:2], whole, strict=True):
            assert side.tokens.tolist() == expected
            assert side.learned.tolist() == [place >= start for place in range(len(expected))]
