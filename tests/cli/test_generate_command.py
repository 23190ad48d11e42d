"""generate and chat as a user types them."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from captioners import photos, save_captioner
from chat_cases import QWEN, TOKENIZERS, TOOLS
from saved_folders import save_tiny
from typed_commands import command, printed, refused, status_of

import jaxformer
from jaxformer.cli.inference.generate import Chat, Generation
from jaxformer.data.chat.dialogue.dialogue import Dialogue
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.text import TextGenerator

pytestmark = pytest.mark.torch

PROMPTS = ["the dog", "dog runs the dog runs", "runs"]
TEMPLATE = "{% for m in messages %}{{ m.role }} [SEP] {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("llama") / "model", vocab_size=8)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "model"
    return save_tiny("t5", folder, "ForConditionalGeneration", vocab_size=8)


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    return save_captioner(tmp_path_factory.mktemp("captioner") / "model")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "all", 3)


def ids_of(pretrained, text):
    return np.array([pretrained.tokenizer.encode(text).ids])


@pytest.mark.parametrize("options", [[], ["--temperature", "1.5", "--top-p", "0.9", "--seed", "3"]])
@pytest.mark.quick("options0")
def test_what_is_shown_is_what_python_generates(folder, capsys, options):
    command("generate", folder, "--prompt", "the dog", "--max-new-tokens", "6", *options)
    model = jaxformer.load(folder)
    names = {"temperature": 1.5, "top_p": 0.9, "seed": 3} if options else {}
    found = jaxformer.generate(
        model, {"input_ids": ids_of(model, "the dog")}, max_new_tokens=6, **names
    )
    text = model.tokenizer.decode(found["sequences"][0, 2:])
    assert capsys.readouterr().out.strip() == text.strip()


@pytest.mark.slow
def test_a_file_of_prompts_in_batches_and_again(folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    asked = ["--prompts", tmp_path / "prompts.txt", "--max-new-tokens", 5, "--temperature", 2.0]
    command("generate", folder, *asked, "--output", tmp_path / "two.jsonl", "--batch-size", 2)
    command("generate", folder, *asked, "--output", tmp_path / "three.jsonl", "--batch-size", 3)
    lines = (tmp_path / "two.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["prompt"] for row in rows] == PROMPTS
    assert all(row["ended_by"] in ("length", "end") and row["num_tokens"] <= 5 for row in rows)
    for row, other in zip(rows, (tmp_path / "three.jsonl").read_text().splitlines(), strict=True):
        # The same draws in batches of another size; sums differ in rounding.
        assert row["text"] == json.loads(other)["text"]
    # Half of it again, and on from there.
    (tmp_path / "half.jsonl").write_text(lines[0] + "\n")
    output = ["--output", tmp_path / "half.jsonl"]
    said = refused(capsys, "generate", folder, *asked, *output)
    assert "half.jsonl exists" in said
    assert "--resume" in said
    command("generate", folder, *asked, *output, "--resume", "--batch-size", 2)
    texts = [json.loads(line)["text"] for line in (tmp_path / "half.jsonl").open()]
    assert texts == [row["text"] for row in rows]


@pytest.mark.slow
def test_beams_of_an_encoder_decoder(t5, capsys):
    options = ["--num-beams", "3", "--num-return-sequences", "2", "--length-penalty", "0.6"]
    command("generate", t5, "--prompt", "the dog", "--max-new-tokens", "5", *options)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    model = jaxformer.load(t5)
    found = jaxformer.generate(
        model,
        {"input_ids": ids_of(model, "the dog")},
        max_new_tokens=5,
        num_beams=3,
        num_return_sequences=2,
        length_penalty=0.6,
    )
    for line, score in zip(lines, found["sequences_scores"], strict=True):
        assert line.startswith(f"[{score:.3f}]")


def test_a_stop_string_ends_the_text(folder):
    model = jaxformer.load(folder)
    free = TextGenerator(model, GenerationConfig(max_new_tokens=12)).generate(
        [ids_of(model, "the")[0]]
    )[0][0]
    word = free.text.split()[1]
    writer = TextGenerator(model, GenerationConfig(max_new_tokens=12, stop_strings=(word,)))
    found = writer.generate([ids_of(model, "the")[0], ids_of(model, "dog")[0]])[0][0]
    assert found.ended_by == word
    assert found.text == free.text[: free.text.index(word)]
    assert "".join(writer.stream(ids_of(model, "the")[0])) == found.text


@pytest.mark.slow
def test_a_chat_follows_its_template_or_none(folder, tmp_path, capsys, monkeypatch):
    asked = []
    original = TextGenerator.stream

    def stream(self, ids, tokens):
        asked.append(self.encoder.tokenizer.decode(ids))
        return original(self, ids, tokens)

    monkeypatch.setattr(TextGenerator, "stream", stream)

    def typed(*lines):
        answers = iter(lines)
        monkeypatch.setattr("builtins.input", lambda _: next(answers))

    typed("the dog", "/new", "runs", "/quit")
    command("chat", folder, "--max-new-tokens", "3")
    assert "no chat template" in capsys.readouterr().err
    assert asked == ["the dog", "runs"]
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    asked.clear()
    typed("the dog", "")
    command("chat", folder, "--max-new-tokens", "3", "--system", "runs")
    (folder / "chat_template.jinja").unlink()
    assert len(asked) == 1
    assert asked[0].split().count("runs") == 1


@pytest.mark.slow
def test_a_chat_calls_tools_whose_answers_are_typed(tmp_path, capsys, monkeypatch):
    tokenizer = TOKENIZERS["bytes"]()
    folder = tmp_path / "model"
    save_tiny("llama", folder, vocab_size=len(tokenizer), max_position_embeddings=1024)
    tokenizer.chat_template = QWEN
    tokenizer.save_pretrained(folder)
    call = '<tool_call>\n{"name": "depth", "arguments": {"lake": "red"}}\n</tool_call><|im_end|>'
    ids = tokenizer.encode(call, add_special_tokens=False)
    biases = [[ids[: n + 1], 1e4 * (n + 1)] for n in range(len(ids))]
    settings = {"sequence_bias": biases, "max_new_tokens": len(ids) + 5}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    file = tmp_path / "tools.json"
    shown, asked = [], []

    def typed(question):
        asked.append(question)
        return next(answers)

    def prompt(self, messages, tools):
        shown.append([*messages])
        return original(self, messages, tools)

    original = Dialogue.prompt
    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(Dialogue, "prompt", prompt)
    for written in (TOOLS, {"tools": TOOLS}, TOOLS[0]):
        file.write_text(json.dumps(written))
        answers, asked[:], shown[:] = iter(["How deep?", "40", "/new", "And now?", "/quit"]), [], []
        command("chat", folder, "--tools", file)
        depth = 'depth {"lake": "red"} > '
        assert asked == ["> ", depth, depth, "> ", depth]
        tool = {"role": "tool", "name": "depth", "tool_call_id": "call00000", "content": "40"}
        assert shown[1][-1] == tool
        assert [message["role"] for message in shown[1]] == ["user", "assistant", "tool"]
        assert shown[2] == [{"role": "user", "content": "And now?"}]
        assert capsys.readouterr().out.count("<tool_call>") == 3


@pytest.mark.parametrize(
    ("template", "tools", "message"),
    [
        (None, TOOLS, "has no chat template to format them"),
        (TEMPLATE, TOOLS, "the chat template does not support tools"),
        (TEMPLATE, [3], "--tools .*tools.json: tools: tool 1 = 3"),
        (TEMPLATE, "depth", "--tools .*tools.json: tools = 'depth': must be a list"),
    ],
)
def test_tools_that_cannot_be_called(folder, tmp_path, capsys, template, tools, message):
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    if template:
        (copied / "chat_template.jinja").write_text(template)
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(tools))
    assert status_of("chat", copied, "--tools", file)
    assert re.search(message, capsys.readouterr().err)


def test_ctrl_c_keeps_what_was_shown(folder, capsys, monkeypatch):
    def stream(self, ids):
        yield "the"
        raise KeyboardInterrupt

    monkeypatch.setattr(TextGenerator, "stream", stream)
    command("generate", folder, "--prompt", "the dog")
    shown = capsys.readouterr()
    assert shown.out == "the\n"
    assert "interrupted" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --prompt TEXT, --prompts FILE or --images"),
        (["--prompt", "the", "--prompts", "x"], "give either"),
        (["--prompt", ""], "prompt 0 is empty"),
        (["--prompt", "the", "--temperature", "-1"], "temperature = -1"),
        (["--prompt", "the", "--max-new-tokens", "0"], "max_new_tokens = 0"),
        (["--prompt", "the", "--num-beams", "2", "--top-k", "3"], "do_sample|top_k"),
        (["--prompt", "the", "--tempreature", "1"], "did you mean --temperature"),
        (["--prompt", "the", "--slide"], "slide = True"),
        (["--prompts", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--prompts", "the", "--batch-size", "0"], "batch-size|cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(folder, capsys, arguments, message):
    assert re.search(message, refused(capsys, "generate", folder, *arguments))


def test_a_folder_without_a_tokenizer(folder, tmp_path, capsys):
    jaxformer.save(jaxformer.load(folder), tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    said = refused(capsys, "generate", tmp_path / "bare", "--prompt", "the")
    assert "tokenizer.json does not exist" in said


def test_an_empty_line_is_named(folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("the\n\ndog\n")
    said = refused(capsys, "generate", folder, "--prompts", tmp_path / "prompts.txt")
    assert "line 2: the prompt is empty" in said


@pytest.mark.parametrize(("name", "options"), [("generate", Generation), ("chat", Chat)])
def test_help_lists_every_option(folder, capsys, name, options):
    assert status_of(name, folder, "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in dataclasses.fields(options):
        assert f"--{field.name.replace('_', '-')}" in shown or field.name == "folder"
    assert "the most probable token" in shown


# Images ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_images_and_folders_are_described(captioner, images, tmp_path, capsys):
    output = tmp_path / "captions.jsonl"
    options = ["--max-new-tokens", "4", "--num-beams", "2", "--batch-size", "2"]
    given = ["generate", captioner, "--images", images[1], images[0].parent, "--output", output]
    assert "4 images" in printed(capsys, *given, *options)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["image"] for line in lines] == [str(x) for x in (images[1], *images)]
    model = jaxformer.load(captioner)
    expected = jaxformer.generate(model, images, max_new_tokens=4, num_beams=2)["texts"]
    assert [line["text"] for line in lines[1:]] == expected

    output.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:2]))
    command(*given, *options, "--resume")
    assert [json.loads(line) for line in output.read_text().splitlines()] == lines


def test_texts_and_images_are_not_confused(captioner, folder, images, tmp_path, capsys):
    message = refused(capsys, "generate", captioner, "--prompt", "the dog")
    assert "reads images: give --images" in message
    assert "--images" in refused(capsys, "generate", captioner)
    said = refused(capsys, "generate", folder, "--images", images[0])
    assert "reads text: give --prompt" in said
    said = refused(capsys, "generate", captioner, "--images", tmp_path)
    assert "the folder contains no images" in said
