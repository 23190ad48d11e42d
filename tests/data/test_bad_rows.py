"""Rows that cannot be used, or that say themselves that they are not to be learned."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import all_rows, write_rows
from PIL import Image

from jaxformer.data import Bytes
from jaxformer.data.bad_rows import BadRows, each, read_rows
from jaxformer.data.chat import ChatData, PreferenceData
from jaxformer.data.labels import Number
from jaxformer.data.tasks import (
    ChoiceText,
    ColumnFile,
    ConllU,
    ImageFolder,
    Images,
    ImageTextPairs,
    LabelledText,
    ParallelText,
    SpanText,
    TaggedText,
    TagTable,
)
from jaxformer.data.tasks.text_pairs import AnswerText, SummaryText
from jaxformer.errors import DataError

FILES = Path(__file__).parents[1] / "fixtures" / "rows"
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def chats(file, **changes):
    settings = {"template": "ChatML", "sequence_length": 200, "validation_fraction": 0.2}
    return ChatData(train=str(file), tokenizer=Bytes(), batch_size=2, **settings | changes)


def write(folder, rows, name="rows.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / name


def learned(data):
    """The texts that are learned, and all texts."""
    found = []
    for side in (data.train, data.validation):
        batch = all_rows(side)
        for targets, weights in zip(batch["targets"], batch["weights"], strict=True):
            found.append(data.tokenizer.decode(targets[weights > 0]))
    return "\n".join(found)


def _values(record):
    return record.values


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("sharegpt_gpt_first", 8, "roles out of order"),
        ("alpaca_empty_output", 4, "no answer"),
    ],
)
def test_a_bad_row_stops_and_names_the_option_that_leaves_it_out(
    tmp_path, caplog, name, line, reason
):
    file = FILES / f"{name}.jsonl"
    with pytest.raises(DataError, match=rf"{name}\.jsonl:{line}: .*{reason}.*on-bad-row skip"):
        chats(file).prepare(tmp_path / "stop")
    data = chats(file, on_bad_row="skip").prepare(tmp_path / "skip")
    assert f"1 of 20 rows left out; the first: {file}:{line}: " in caplog.text
    counts = [int(text.split()[0]) for _, text in data.summary]
    assert sum(counts) == 19


def test_more_than_five_in_a_hundred_stop_in_either_case(tmp_path):
    good = [{"messages": [USER, ANSWER | {"content": f"b{n}"}]} for n in range(19)]
    bad = ["{", {"messages": [USER]}, "[1]"]
    file = write(tmp_path, [*good, *bad])
    with pytest.raises(DataError, match=r"3 of 22 rows cannot be used.*:20: .*:21: .*:22: "):
        chats(file, on_bad_row="skip").prepare(tmp_path / "run")
    file = write(tmp_path, [*good, bad[0]])
    chats(file, on_bad_row="skip").prepare(tmp_path / "run")


@pytest.mark.more
def test_rows_that_the_template_refuses_are_left_out(tmp_path, caplog):
    template = tmp_path / "x.jinja"
    template.write_text(
        "{% for m in messages %}{% if 'b7' in m.content %}{{ raise_exception('no seven') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    rows = [{"messages": [USER, ANSWER | {"content": f"b{n}"}]} for n in range(40)]
    file = write(tmp_path, rows)
    with pytest.raises(DataError, match=r"rows\.jsonl:8: .*no seven.*on-bad-row skip"):
        chats(file, template=str(template)).prepare(tmp_path / "run")
    # Another template may be named in the same folder, since none was kept.
    chats(file, template="ChatML").prepare(tmp_path / "run")
    data = chats(file, template=str(template), on_bad_row="skip").prepare(tmp_path / "other")
    assert "left out; the first: " in caplog.text
    assert "b8" in learned(data)
    assert "b7" not in learned(data)


def test_pairs_are_left_out_as_well(tmp_path, caplog):
    rows = [{"prompt": "a", "chosen": f"b{n}", "rejected": f"c{n}"} for n in range(40)]
    rows[4]["rejected"] = rows[4]["chosen"]
    rows[7] = {"prompt": "a", "chosen": "b"}
    file = write(tmp_path, rows)
    data = PreferenceData(
        train=str(file), tokenizer=Bytes(), sequence_length=50, batch_size=2, on_bad_row="skip"
    ).prepare(tmp_path / "run")
    assert "2 of 40 rows left out" in caplog.text
    assert sum(int(text.split()[0]) for _, text in data.summary) == 38


def test_halves_are_tried_until_the_bad_rows_are_alone():
    def double(rows):
        if wrong := [row for row in rows if row % 10 == 3]:
            raise DataError(f"{wrong[0]} is wrong")
        return [2 * row for row in rows]

    bad = BadRows("skip")
    assert dict(each(double, range(60), bad)) == {n: 2 * n for n in range(60) if n % 10 != 3}
    with pytest.raises(DataError, match=r"6 of 60 rows.*3 is wrong; 13 is wrong; 23 is wrong$"):
        bad.finish("numbers", 60)


def test_lines_that_are_not_rows_count_as_bad(tmp_path, caplog):
    file = write(tmp_path, ["a\tb", *["1\t2"] * 30, "1\t2\t3"], "x.tsv")
    assert len(read_rows(str(file), _values, "skip")) == 30
    assert "1 of 31 rows left out" in caplog.text
    with pytest.raises(DataError, match=r"x\.tsv:32: 3 fields.*on-bad-row skip"):
        read_rows(str(file), _values, "stop")


# What is not to be learned ------------------------------------------------------------------------


@pytest.mark.more
def test_a_message_of_weight_0_is_read_and_not_learned(tmp_path):
    file = FILES / "weight.jsonl"
    data = chats(file).prepare(tmp_path / "run")
    text = learned(data)
    assert text.count("RIGHT") == 20
    assert "WRONG" not in text
    assert sum(int(words.split(", ")[1].split()[0]) for _, words in data.summary) == 20
    assert all("of weight 0 not learned" in words for _, words in data.summary)
    # What all of the text is learned of goes around it.
    text = learned(chats(file, train_on="all").prepare(tmp_path / "all"))
    assert "WRONG" not in text
    assert text.count("again") == 20
    assert "RIGHT" in learned(chats(file, train_on="last").prepare(tmp_path / "last"))


@pytest.mark.more
@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": 0.0}, {"masked": True}])
@pytest.mark.quick("mark0")
def test_other_formats_say_it_in_other_words(tmp_path, mark):
    rows = [{"messages": [USER, ANSWER | {"content": f"b{n}"}]} for n in range(20)]
    rows[3]["messages"][1] |= mark
    rows[5]["messages"] = [USER, ANSWER | mark, USER, ANSWER | {"content": "c"}]
    data = chats(write(tmp_path, rows)).prepare(tmp_path / "run")
    text = learned(data)
    assert "b3" not in text
    assert sorted(text.replace("<|im_end|>", " ").split()) == sorted(
        [f"b{n}" for n in range(20) if n not in (3, 5)] + ["c"]
    )
    assert any("left out" in words for _, words in data.summary)


@pytest.mark.more
@pytest.mark.quick("reasoning_content")
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "inline"])
def test_a_template_that_leaves_reasoning_out_is_named_once(tmp_path, caplog, name):
    content = "<think>why</think>b" if name == "inline" else "b"
    fields = {} if name == "inline" else {name: "why"}
    rows = [{"messages": [USER, ANSWER | fields | {"content": content}]} for _ in range(20)]
    for number, written in enumerate(("m.content.split('</think>')[-1]", "m.content")):
        template = tmp_path / f"{number}.jinja"
        shown = "" if number == 0 else "{{ m.reasoning_content }}"
        body = f"<{{{{ m.role }}}}>{shown}{{{{ {written} }}}}</s>"
        template.write_text(f"{{% for m in messages %}}{body}{{% endfor %}}")
        rows = [row | {"id": n} for n, row in enumerate(rows)]
        chats(write(tmp_path, rows), template=str(template)).prepare(tmp_path / f"run{number}")
        count = caplog.text.count("leaves reasoning out")
        assert count == 1, number


def test_a_template_that_leaves_calls_out_is_named(tmp_path, caplog):
    calls = [{"type": "function", "function": {"name": "depth", "arguments": "{}"}}]
    row = {"messages": [USER, ANSWER | {"content": "", "tool_calls": calls}, USER, ANSWER]}
    chats(write(tmp_path, [row] * 20)).prepare(tmp_path / "run")
    assert caplog.text.count("leaves calls of tools out") == 1


def test_an_undesirable_completion_is_never_an_answer(tmp_path):
    with pytest.raises(DataError, match=r"kto\.jsonl:1: label = false: .*configs/kto\.py"):
        chats(FILES / "kto.jsonl").prepare(tmp_path / "run")
    rows = [{"prompt": "a", "completion": f"b{n}", "label": n != 4} for n in range(20)]
    data = chats(write(tmp_path, rows), on_bad_row="skip").prepare(tmp_path / "skip")
    assert "b4" not in learned(data)
    assert "b5" in learned(data)
    assert "without the chat template" in data.summary[0][1]


@pytest.mark.parametrize("no", [False, "false", " False"])
def test_an_undesirable_answer_of_any_form_is_refused(tmp_path, no):
    rows = [{"messages": [USER, ANSWER | {"content": f"b{n}"}], "label": True} for n in range(20)]
    rows[4]["label"] = no
    with pytest.raises(DataError, match=r"rows\.jsonl:5: label = false"):
        chats(write(tmp_path, rows)).prepare(tmp_path / "run")
    # Another kind of label.
    rows = [row | {"label": n} for n, row in enumerate(rows)]
    assert len(chats(write(tmp_path, rows)).read(str(tmp_path / "rows.jsonl"))) == 20


def test_all_tokens_are_learned_of_rows_without_answers(tmp_path):
    rows = [{"messages": [USER | {"content": f"q{n}"}]} for n in range(20)]
    rows[3] = {"instruction": "do", "output": ""}
    file = write(tmp_path, rows)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no answer"):
        chats(file).prepare(tmp_path / "answers")
    data = chats(file, train_on="all").prepare(tmp_path / "all")
    assert "q7" in learned(data)


def test_labels_that_stand_for_none_are_left_out(tmp_path, caplog):
    rows = [{"text": f"t{n}", "gold_label": "ab-"[n % 3]} for n in range(9)]
    config = LabelledText(
        train=str(write(tmp_path, rows)),
        text=("text",),
        label="gold_label",
        tokenizer=Bytes(),
        sequence_length=16,
    )
    assert [row.label for row in config.read(config.train)] == ["a", "b"] * 3
    assert "3 of 9 rows have no label" in caplog.text
    rows = [{"text": "x", "label": "a"}, {"text": "y", "label": None}]
    found = LabelledText(text=("text",), tokenizer=Bytes()).read(
        write_rows(tmp_path / "x.parquet", rows)
    )
    assert [row.texts for row in found] == [("x",)]


def test_well_known_columns_of_summaries_are_found(tmp_path):
    for source, target in (("article", "highlights"), ("dialogue", "summary")):
        file = write(tmp_path, [{"id": "1", source: "long", target: "short"}])
        (pair,) = SummaryText(tokenizer=Bytes()).read(str(file))
        assert pair.texts == ("summarize: long", "short")
    file = write(tmp_path, [{"body": "long", "title": "short"}])
    with pytest.raises(DataError, match=r"'body', 'title'; .*--data\.source and --data\.target"):
        SummaryText(tokenizer=Bytes()).read(str(file))
    (pair,) = SummaryText(source="body", target="title", tokenizer=Bytes()).read(str(file))
    assert pair.texts == ("summarize: long", "short")


# Every kind of rows -------------------------------------------------------------------------------

GOOD = 30


def _table(folder, row, **bad):
    """Rows by their numbers, and one with wrong values."""
    return str(write(folder, [*map(row, range(GOOD)), row(GOOD) | bad]))


def _choices(folder):
    endings = {f"ending{n}": f"e{n}" for n in range(4)}
    fixed = {"sent2": "b"} | endings
    rows = _table(folder, lambda n: fixed | {"sent1": f"a{n}", "label": n % 4}, label=4)
    return ChoiceText(train=rows)


def _questions(folder):
    asked = {"question": "What?", "answers": {"text": ["old"], "answer_start": [8]}}
    wrong = {"text": ["old"], "answer_start": [7]}
    return _table(folder, lambda n: asked | {"context": f"Rome is old. {n}"}, answers=wrong)


def _tags(folder):
    tags = {"ner_tags": ["O", "B"]}
    rows = _table(folder, lambda n: tags | {"tokens": ["a", f"{n}"]}, ner_tags=["O"])
    return TaggedText(train=TagTable(rows))


def _columns(folder):
    lines = [f"a{n} O\nb B\n\n" for n in range(GOOD)]
    (folder / "x.txt").write_text("".join([*lines, "a O\nb\n"]))
    return TaggedText(train=ColumnFile(str(folder / "x.txt")))


def _conllu(folder):
    line = "{}\t{}\t_\tNOUN" + "\t_" * 6 + "\n"
    lines = [line.format(1, f"a{n}") + "\n" for n in range(GOOD)]
    (folder / "x.conllu").write_text("".join([*lines, line.format(2, "b")]))
    return TaggedText(train=ConllU(str(folder / "x.conllu")))


def _parallel(folder, bad=b"\xff"):
    for name, last in (("a", b"x"), ("b", bad)):
        lines = [f"{name}{n}\n".encode() for n in range(GOOD)]
        (folder / name).write_bytes(b"".join([*lines, last]))
    return ParallelText(source=str(folder / "a"), target=str(folder / "b"))


def _summary(folder, bad=""):
    short = {"highlights": "short"}
    return SummaryText(
        train=_table(folder, lambda n: short | {"article": f"long {n}"}, highlights=bad)
    )


def _number(folder):
    rows = _table(folder, lambda n: {"sentence": f"a{n}", "label": n / 7}, label="x")
    return LabelledText(train=rows, labels=Number())


def _captions(folder):
    for number in range(GOOD):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    rows = _table(folder, lambda n: {"image": f"{n}.png", "text": f"t{n}"}, image="none.png")
    return ImageTextPairs(train=rows)


KINDS = {
    "choices": _choices,
    "spans": lambda folder: SpanText(train=_questions(folder)),
    "answers": lambda folder: AnswerText(train=_questions(folder)),
    "tag table": _tags,
    "columns": _columns,
    "conllu": _conllu,
    "parallel, bytes": _parallel,
    "parallel, empty": lambda folder: _parallel(folder, b" "),
    "summary, empty": _summary,
    "summary, null": lambda folder: _summary(folder, None),
    "number": _number,
    "captions": _captions,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_leaves_bad_ones_out(tmp_path, caplog, kind):
    config = replace(KINDS[kind](tmp_path), tokenizer=Bytes(), batch_size=2)
    with pytest.raises(DataError, match=r"(:\d+|row \d+): .*on-bad-row skip"):
        config.prepare(tmp_path / "stop")
    data = replace(config, on_bad_row="skip").prepare(tmp_path / "skip")
    assert data.train.num_rows + data.validation.num_rows == GOOD
    assert "1 of 31 rows left out; the first: " in caplog.text


@pytest.mark.parametrize("kind", ["labels", "tags"])
def test_a_label_that_only_the_validation_has(tmp_path, caplog, kind):
    rows = [{"sentence": f"a{n}", "label": "xy"[n % 2]} for n in range(GOOD)]
    if kind == "tags":
        rows = [{"tokens": [row["sentence"]], "ner_tags": [row["label"]]} for row in rows]
    new = {"label": "z"} if kind == "labels" else {"ner_tags": ["z"]}
    files = write(tmp_path, rows), write(tmp_path, [*rows, rows[0] | new], "validation.jsonl")
    sources = (str(file) if kind == "labels" else TagTable(str(file)) for file in files)
    of = LabelledText if kind == "labels" else TaggedText
    config = of(**dict(zip(("train", "validation"), sources, strict=True)), tokenizer=Bytes())
    with pytest.raises(DataError, match=r"validation\.jsonl:31: .*'z'.*on-bad-row skip"):
        config.prepare(tmp_path / "stop")
    data = replace(config, on_bad_row="skip").prepare(tmp_path / "skip")
    assert data.validation.num_rows == GOOD
    assert "1 of 31 rows left out" in caplog.text


def test_images_that_do_not_decode_are_left_out(tmp_path, caplog):
    for number in range(GOOD):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "images" / "ab"[number % 2] / f"{number}.png")
    (tmp_path / "images" / "a" / "x.png").write_bytes(b"no image")
    config = Images(source=ImageFolder(str(tmp_path / "images")), batch_size=2)
    data = config.prepare(tmp_path / "stop")
    assert data.train.num_rows + data.validation.num_rows == GOOD + 1
    with pytest.raises(DataError, match=r"x\.png: .*on-bad-row skip"):
        [row for side in (data.train, data.validation) for row in side.epoch(batch_size=1)]
    data = replace(config, on_bad_row="skip").prepare(tmp_path / "skip")
    assert data.train.num_rows + data.validation.num_rows == GOOD
    assert "1 of 31 rows left out" in caplog.text


def test_a_caption_whose_image_does_not_decode(tmp_path, caplog):
    config = replace(_captions(tmp_path), tokenizer=Bytes(), image_size=(8, 8), batch_size=2)
    (tmp_path / "none.png").write_bytes(b"no image")
    data = replace(config, on_bad_row="skip").prepare(tmp_path / "skip")
    assert data.train.num_rows + data.validation.num_rows == GOOD
    assert "rows.jsonl:31: " in caplog.text


def test_lines_that_are_empty_in_both_files_are_not_a_pair(tmp_path, caplog):
    config = replace(_parallel(tmp_path, b"y"), tokenizer=Bytes(), batch_size=2)
    for name in "ab":
        with (tmp_path / name).open("ab") as file:
            file.write(b"\n\n \n")
    data = config.prepare(tmp_path / "run")
    assert data.train.num_rows + data.validation.num_rows == GOOD + 1
    assert "2 of 33 rows" in caplog.text
