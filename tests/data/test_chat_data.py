"""Chat data as batches: what is learned, packing, splits, order, lengths."""

import dataclasses

import numpy as np
import pytest
from corpora import all_rows, write_rows

from jaxformer.data import Bytes
from jaxformer.data.chat import ChatData, PackedChats, PaddedChats
from jaxformer.errors import ConfigError, DataError


def turns(*contents):
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[number % 2], "content": content}
            for number, content in enumerate(contents)
        ]
    }


ROWS = [
    turns("hi", "a" * (number % 7 + 1), f"{number}", "b" * (number % 3 + 1)) for number in range(30)
]


def write(folder, rows, name="chat.jsonl"):
    return write_rows(folder / name, rows)


@pytest.fixture
def config(tmp_path):
    return ChatData(
        train=write(tmp_path, ROWS),
        tokenizer=Bytes(),
        template="ChatML",
        sequence_length=400,
        batch_size=4,
        validation_fraction=0.2,
    )


def prepared(config, folder, **changes):
    return dataclasses.replace(config, **changes).prepare(folder)


def chats_of(dataset, tokenizer):
    """(the whole text, the text that is learned) of each conversation."""
    batch, found = all_rows(dataset), []
    for row in range(len(batch["inputs"])):
        for segment in range(1, batch["segments"][row].max() + 1):
            here = batch["segments"][row] == segment
            targets, weights = batch["targets"][row][here], batch["weights"][row][here]
            first = batch["inputs"][row][here][:1]
            assert (batch["positions"][row][here] == np.arange(here.sum())).all()
            assert (batch["inputs"][row][here][1:] == targets[:-1]).all()
            text = tokenizer.decode(np.append(first, targets))
            found.append((text, tokenizer.decode(targets[weights > 0])))
    return found


def expected(row, *answers):
    text = "".join(
        f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        for message in row["messages"]
    )
    return text, "".join(f"{answer}<|im_end|>" for answer in answers)


@pytest.mark.parametrize("packing", [PackedChats(), PaddedChats()])
def test_answers_are_learned_and_nothing_else(config, tmp_path, packing):
    data = prepared(config, tmp_path / "run", packing=packing)
    found = [
        pair for side in (data.train, data.validation) for pair in chats_of(side, data.tokenizer)
    ]
    wanted = [expected(row, *(m["content"] for m in row["messages"][1::2])) for row in ROWS]
    assert sorted(found) == sorted(wanted)
    rows = data.train.num_rows
    number = len(chats_of(data.train, data.tokenizer))
    assert (rows == number) if packing == PaddedChats() else (rows < number / 2)


def test_the_last_answer_or_everything_can_be_learned_instead(config, tmp_path):
    data = prepared(config, tmp_path / "last", train_on="last")
    wanted = [expected(row, row["messages"][-1]["content"]) for row in ROWS]
    assert set(chats_of(data.train, data.tokenizer)) < set(wanted)
    data = prepared(config, tmp_path / "all", train_on="all")
    for text, learned in chats_of(data.train, data.tokenizer):
        assert learned == text[1:]


def test_every_answer_may_weigh_the_same(config, tmp_path):
    tokens = prepared(config, tmp_path / "a")
    answers = prepared(config, tmp_path / "b", loss_per="answer")
    one, other = all_rows(tokens.train), all_rows(answers.train)
    assert set(np.unique(one["weights"])) == {0, 1}
    assert one["weights"].sum() > 200
    number = len(chats_of(tokens.train, tokens.tokenizer))
    np.testing.assert_allclose(other["weights"].sum(), 2 * number, rtol=1e-6)
    np.testing.assert_array_equal(one["weights"] > 0, other["weights"] > 0)
    # "a" and "<|im_end|>" have the weight of an answer of 11 bytes.
    assert np.isclose(other["weights"].max(), 1 / 11)


def test_texts_of_prompt_and_completion_have_no_template(config, tmp_path):
    rows = [{"prompt": f"{n} is", "completion": " a number"} for n in range(9)]
    data = prepared(config, tmp_path / "run", train=write(tmp_path, rows, "p.jsonl"), template=None)
    end = data.tokenizer.end_of_text_id
    batch = all_rows(data.train)
    assert (batch["targets"] == end).sum() == (batch["segments"].max(axis=1)).sum()
    assert (batch["weights"][batch["targets"] == end] == 1).all()
    pairs = chats_of(data.train, data.tokenizer)
    assert all(text == f"{text[0]} is a number" for text, _ in pairs)
    assert all(learned == " a number" for _, learned in pairs)
    assert not (tmp_path / "run/tokenizer/chat_template.jinja").exists()


def test_the_split_is_of_conversations_and_stays_when_others_come(config, tmp_path):
    def sides(rows, name):
        data = prepared(config, tmp_path / name, train=write(tmp_path, rows, f"{name}.jsonl"))
        return [
            {text for text, _ in chats_of(side, data.tokenizer)}
            for side in (data.train, data.validation)
        ]

    train, validation = sides(ROWS, "few")
    assert not train & validation
    more, also = sides([*ROWS, *(turns(f"new {n}", "c") for n in range(20)), *ROWS[:9]], "more")
    assert train < more
    assert validation < also


def test_separate_validation_data_need_no_training_file(config, tmp_path):
    own = write(tmp_path, ROWS[:5], "validation.jsonl")
    changed = dataclasses.replace(config, validation=own)
    data = changed.prepare(tmp_path / "run")
    gone = dataclasses.replace(changed, train="gone.jsonl")
    again = gone.prepare_validation(tmp_path / "run")
    assert again.train is None
    for name, values in all_rows(data.validation).items():
        np.testing.assert_array_equal(values, all_rows(again.validation)[name])


# Lengths -----------------------------------------------------------------------------------------

LONG = turns("q" * 20, "w" * 300, "r", "t")


def test_a_conversation_that_is_too_long_is_an_error_with_its_line(config, tmp_path):
    train = write(tmp_path, [*ROWS, LONG, LONG], "long.jsonl")
    with pytest.raises(DataError, match=r"long\.jsonl:31: 4\d\d tokens, more than .*= 400, and so"):
        prepared(config, tmp_path / "run", train=train, validation=config.train)
    with pytest.raises(DataError, match=r"chat\.jsonl:1: \d+ tokens, more than .* 30 of 30 conver"):
        prepared(config, tmp_path / "b", sequence_length=20, validation=config.train)
    with pytest.raises(DataError, match=r"no conversation has an answer within .* = 20 tokens"):
        prepared(config, tmp_path / "c", sequence_length=20, too_long="cut")


def test_long_conversations_may_be_cut_or_left_out(config, tmp_path):
    late = turns("q" * 500, "w")
    train = write(tmp_path, [*ROWS, LONG, late], "long.jsonl")
    cut = prepared(config, tmp_path / "cut", train=train, validation=config.train, too_long="cut")
    pairs = chats_of(cut.train, cut.tokenizer)
    assert len(pairs) == 31
    text, learned = max(pairs, key=lambda pair: len(pair[0]))
    assert len(text) == 400
    assert learned == "w" * 300 + "<|im_end|>"[: len(learned) - 300]
    (summary,) = (value for name, value in cut.summary if name == "training")
    assert "31 conversations" in summary
    assert "1 cut to 400 tokens; 1 longer ones left out" in summary
    drop = prepared(
        config, tmp_path / "drop", train=train, validation=config.train, too_long="drop"
    )
    assert len(chats_of(drop.train, drop.tokenizer)) == 30
    assert "2 longer ones left out" in dict(drop.summary)["training"]


# Templates ---------------------------------------------------------------------------------------


@pytest.mark.more
def test_the_template_stays_with_the_run(config, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}{{ m.role[0] ~ m.content }};{% endfor %}")
    data = prepared(config, tmp_path / "run", template=str(file))
    assert ("uhi;aa;u0;ab;", "aa;ab;") in chats_of(data.train, data.tokenizer)
    kept = tmp_path / "run/tokenizer/chat_template.jinja"
    assert kept.read_text() == file.read_text()
    file.write_text("{{ messages[0].content }}")
    with pytest.raises(DataError, match=r"chat_template\.jinja: not the text of .*own\.jinja"):
        prepared(config, tmp_path / "run", template=str(file))
    file.unlink()
    again = prepared(config, tmp_path / "run", template=str(file))
    assert all_rows(again.train)["inputs"].tolist() == all_rows(data.train)["inputs"].tolist()


def test_a_missing_template_names_the_remedy(config, tmp_path):
    with pytest.raises(DataError, match=r"chat\.jsonl:\d+: a chat template is missing: .*ChatML"):
        prepared(config, tmp_path / "run", template=None)


@pytest.mark.parametrize("name", ["ChatML", "chatml", "Llama 2", "llama-3", "MISTRAL"])
def test_templates_have_names(config, name):
    assert dataclasses.replace(config, template=name).template == name


def test_an_unknown_template_is_an_error(config, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.template = 'ChatMl2': must be .*did you mean"):
        dataclasses.replace(config, template="ChatMl2")  # before any work
    with pytest.raises(ConfigError, match=r"data\.template = '.*gone\.jinja': must be ChatML, "):
        prepared(config, tmp_path / "run", template=str(tmp_path / "gone.jinja"))


def test_a_chat_that_the_template_refuses_is_an_error_with_its_line(config, tmp_path):
    row = {"messages": [ROWS[0]["messages"][0], *ROWS[1]["messages"]]}
    train = write(tmp_path, [*ROWS[:4], row], "twice.jsonl")
    with pytest.raises(DataError, match=r"twice\.jsonl:5: .*llama2\.jinja: .* must take turns"):
        prepared(config, tmp_path / "run", train=train, template="Llama2", validation=config.train)


def test_a_template_that_writes_no_answer_is_an_error_with_its_line(config, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text(
        "{{ messages[0].content }}{% if 0 %}{% generation %}{% endgeneration %}{% endif %}"
    )
    with pytest.raises(DataError, match=r"chat\.jsonl:\d+: no answer: the chat template"):
        prepared(config, tmp_path / "run", template=str(file))
