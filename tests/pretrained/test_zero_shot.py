"""Zero-shot classification of images beside the pipeline of transformers."""

import json

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Split, Whitespace
from tokenizers.processors import TemplateProcessing

from jaxformer.cli import main as cli
from jaxformer.cli.inference.zero_shot import ZeroShot
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.parity.reference import save_random
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.zero_shot import TEMPLATE, text_arrays, zero_shot

pytestmark = pytest.mark.torch

LABELS = ("cat", "dog", "A plane")
WORDS = ("[UNK]", "this", "is", "a", "</s>", "[PAD]", "photo", "of", "cat", "dog", "plane", ".")
PROCESSOR = {
    "do_center_crop": True,
    "crop_size": {"height": 13, "width": 13},
    "do_resize": True,
    "size": {"shortest_edge": 13},
    "resample": 3,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.25],
    "image_processor_type": "CLIPImageProcessor",
}


PATCHES = {
    "image_processor_type": "Siglip2ImageProcessor",
    "patch_size": 4,
    "max_num_patches": 11,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.25],
}


def words(folder, names):
    """A tokenizer of whole words."""
    tokenizer = Tokenizer(WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 4)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | names))


def gemma(folder, names):
    """Gemma's tokenizer: its padding (0) is not the end (1), as config.json's default says."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{n:02X}>" for n in range(256))]
    pieces = [*first, *"\u2581abcdefghilnopst.CA", "ca", "cat", "do", "dog", "\u2581a"]
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("\u2581", "a")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = Split(" ", "merged_with_previous")
    tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.add_special_tokens(first[:5])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": False,
        "add_eos_token": True,
        "do_lower_case": True,
        **{f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | names))


IDS = {"model_input_names": ["input_ids"]}
BOTH = {"model_input_names": ["input_ids", "attention_mask"]}
KINDS = {
    "clip": ("CLIPModel", words, BOTH, PROCESSOR),
    "siglip": ("SiglipModel", words, IDS, PROCESSOR),
    "siglip with Gemma's tokenizer": (
        "SiglipModel", gemma, IDS | {"padding_side": "right"}, PROCESSOR,
    ),
    "siglip2": ("Siglip2Model", gemma, IDS | {"padding_side": "right"}, PATCHES),
    "siglip2 padded on the left": ("Siglip2Model", gemma, BOTH, PATCHES),
}  # fmt: skip
"""What is tested -> its class, tokenizer, settings of the tokenizer, and image processor."""


def save_model(name, folder):
    """A random model with a processor: what a folder of the hub has."""
    kind, (architecture, write_tokenizer, names, processor) = name.split()[0], KINDS[name]
    text = {"max_position_embeddings": 64, "vocab_size": 300}
    changes = {
        "text_config": TINY[kind]["text_config"] | text,
        "vision_config": TINY[kind]["vision_config"] | {"num_channels": 3},
    }
    if write_tokenizer is gemma:  # the files of SigLIP 2 leave these out
        changes["text_config"] = {
            key: x for key, x in changes["text_config"].items() if not key.endswith("token_id")
        }
    save_random(kind, architecture, folder, **changes)
    write_tokenizer(folder, names)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return save_model(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A wide picture in colour, and a high one in grey."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    files = [folder / "wide.png", folder / "grey.png"]
    Image.fromarray(rng.integers(0, 256, (20, 31, 3), np.uint8)).save(files[0])
    Image.fromarray(rng.integers(0, 256, (40, 17), np.uint8)).save(files[1])
    return files


@pytest.mark.quick("siglip2")
def test_as_the_pipeline_of_transformers(model, images):
    from transformers import pipeline

    template = "a photo of a {}."
    theirs = pipeline("zero-shot-image-classification", model=str(model))
    expected = theirs(
        [str(file) for file in images], candidate_labels=LABELS, hypothesis_template=template
    )
    found = zero_shot(load(model), images, LABELS, template=template, batch_size=1)
    for ours, row in zip(found, expected, strict=True):
        assert [score.label for score in ours] == [score["label"] for score in row]
        theirs = [score["score"] for score in row]
        np.testing.assert_allclose([score.score for score in ours], theirs, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.quick("siglip with Gemma's tokenizer")
def test_several_images_at_a_time_give_the_same(model, images):
    one, all_ = (
        zero_shot(load(model), [*images, images[0]], LABELS, batch_size=size) for size in (1, 2)
    )
    for a, b in zip(one, all_, strict=True):
        assert [x.label for x in a] == [x.label for x in b]
        np.testing.assert_allclose([x.score for x in a], [x.score for x in b], rtol=1e-5)
    assert one[0] == one[2]


@pytest.mark.more
@pytest.mark.quick("siglip2")
def test_the_command(model, images, capsys):
    arguments = ["zero-shot", str(model), *map(str, images), "--labels", *LABELS]
    assert cli.main([*arguments, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = zero_shot(load(model), images, LABELS)
    assert [row["image"] for row in rows] == [str(file) for file in images]
    assert [row["labels"] for row in rows] == [[x._asdict() for x in row] for row in found]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert all(label in table for label in (*LABELS, "grey.png"))


@pytest.mark.slow
@pytest.mark.quick("clip")
def test_a_file_that_is_no_image_is_named(model, tmp_path, capsys):
    (tmp_path / "notes.png").write_text("no image")
    for name in ("notes.png", "missing.png"):
        arguments = [str(tmp_path / name), "--labels", "cat"]
        assert cli.main(["zero-shot", str(model), *arguments]) == 2
        message = capsys.readouterr().err
        assert name in message
        assert "Traceback" not in message


@pytest.mark.quick("siglip2")
def test_bad_arguments(model, images):
    assert ZeroShot(folder=model, images=(), labels=()).template == TEMPLATE
    pretrained = load(model)
    with pytest.raises(ArgumentError, match="labels"):
        zero_shot(pretrained, images, [])
    with pytest.raises(ArgumentError, match="template"):
        zero_shot(pretrained, images, LABELS, template="a photo")
    with pytest.raises(ArgumentError, match="images"):
        zero_shot(pretrained, [], LABELS)


@pytest.mark.quick("clip", "siglip2")
def test_a_text_beyond_the_positions(model):
    pretrained = load(model)
    text = " ".join(["cat"] * 80)
    if pretrained.checkpoint.model_format.model_type != "clip":
        ids = text_arrays(pretrained, [text])["input_ids"]
        assert ids.shape == (1, 64)
        assert ids[0, -1] == pretrained.prompt_encoder.source("a cat")[-1]
    else:
        with pytest.raises(DataError, match=r"81 tokens.*\b64\b"):
            text_arrays(pretrained, [text])


def test_another_model_is_refused(tmp_path, images):
    save_random("vit", "ViTModel", tmp_path)
    with pytest.raises(ConfigError, match="must be a model of texts and images"):
        zero_shot(load(tmp_path), images, LABELS)
