"""generate --images as a user types it."""

import json

import pytest
from captioners import photos, save_captioner
from saved_folders import save_tiny
from typed_commands import command, refused

import jaxformer

pytest.importorskip("PIL")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_captioner(tmp_path_factory.mktemp("captioner") / "model")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "all", 3)


@pytest.mark.slow
def test_images_and_folders_are_described(folder, images, tmp_path, capsys):
    output = tmp_path / "captions.jsonl"
    options = ["--max-new-tokens", "4", "--num-beams", "2", "--batch-size", "2"]
    given = ["generate", folder, "--images", images[1], images[0].parent, "--output", output]
    command(*given, *options)
    assert "4 images" in capsys.readouterr().out
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["image"] for line in lines] == [str(x) for x in (images[1], *images)]
    model = jaxformer.load(folder)
    expected = jaxformer.generate(model, images, max_new_tokens=4, num_beams=2)["texts"]
    assert [line["text"] for line in lines[1:]] == expected

    output.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:2]))
    command(*given, *options, "--resume")
    assert [json.loads(line) for line in output.read_text().splitlines()] == lines


def test_what_is_no_image_is_refused_in_a_sentence(folder, images, tmp_path, capsys):
    broken = tmp_path / "broken.png"
    broken.write_bytes(images[0].read_bytes()[:40])
    (tmp_path / "empty").mkdir()
    for path, problem in {
        broken: "broken.png: not an image that can be decoded",
        tmp_path / "missing.png": "missing.png does not exist",
        tmp_path / "empty": "the folder contains no images",
    }.items():
        assert problem in refused(capsys, "generate", folder, "--images", path)


def test_texts_and_images_are_not_confused(folder, images, tmp_path, capsys):
    message = refused(capsys, "generate", folder, "--prompt", "the dog")
    assert "reads images: give --images" in message
    assert "--images" in refused(capsys, "generate", folder)
    gpt2 = save_tiny("gpt2", tmp_path / "gpt2", "LMHeadModel", vocab_size=8)
    assert "reads text: give --prompt" in refused(capsys, "generate", gpt2, "--images", images[0])
