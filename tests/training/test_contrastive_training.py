"""Training of dual encoders: transformers' loss, on one device and on eight; and runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpora import write_rows
from PIL import Image
from safetensors.numpy import load_file
from saved_folders import assert_same_parameters
from tiny_run import hash_of
from train_steps import gradients, program_of, stepped

from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes
from jaxformer.data.tasks import ImageTextPairs
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import Learned
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.models import Projection
from jaxformer.models.heads.metrics import retrieval_scores
from jaxformer.optim import AdamW, Constant, Cosine
from jaxformer.parity.compare import beyond_rounding, gradient_errors
from jaxformer.parity.reference import Reference, save_random
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.zero_shot import zero_shot
from jaxformer.pretrained.writing import save
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train
from jaxformer.zoo.clip import clip, clip_text, clip_vision

pytestmark = pytest.mark.more

COLOURS = {
    "red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200), "white": (240, 240, 240),
}  # fmt: skip
SHAPES = ("square", "bar", "frame", "cross")
ROWS, LENGTH, END = 8, 9, 4
RATE = Cosine(learning_rate=1e-3, warmup_steps=20)


def a_batch(model, reads_padding):
    """Pairs whose texts end after 3 to 9 tokens, for us and for transformers."""
    rng = np.random.default_rng(0)
    ids = rng.integers(6, 130, (ROWS, LENGTH), dtype=np.int32)
    sizes = 3 + np.arange(ROWS) % (LENGTH - 2)
    places = np.arange(LENGTH)
    ids = np.where(places == sizes[:, None] - 1, END, ids)
    ids = np.where(places < sizes[:, None], ids, 5).astype(np.int32)
    segments = (places < sizes[:, None]).astype(np.int32) | int(reads_padding)
    height, width = model.config.image_size
    images = rng.standard_normal((ROWS, height, width, 2)).astype(np.float32)
    ours = {"inputs": ids, "segments": segments, "images": images}
    ours["pair_weights"] = np.ones(ROWS, np.float32)
    theirs = {"input_ids": ids.astype(np.int64), "pixel_values": images.transpose(0, 3, 1, 2)}
    theirs |= {"attention_mask": segments.astype(np.int64), "return_loss": np.array(True)}
    return ours, theirs


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 4)], ids=["one device", "eight devices"])
@pytest.mark.quick("eight devices-siglip")
def test_loss_and_gradients_are_transformers(kind, sizes, tmp_path):
    name = {"clip": "CLIPModel", "siglip": "SiglipModel"}[kind]
    text = TINY[kind]["text_config"] | {"vocab_size": 132, "num_hidden_layers": 1}
    vision = TINY[kind]["vision_config"] | {"num_hidden_layers": 1}
    save_random(kind, name, tmp_path, text_config=text, vision_config=vision)
    model, theirs = load(tmp_path), Reference(tmp_path, name)
    ours_batch, theirs_batch = a_batch(model, kind == "siglip")
    found, (sums, _) = gradients(program_of(model.config, sizes), ours_batch, model.parameters)
    (sums,) = sums.values()
    assert sums.weight == ROWS
    np.testing.assert_allclose(
        sums.loss / sums.weight, theirs.forward(theirs_batch).loss.item(), rtol=2e-5
    )
    found = dict(tensors_of(jax.tree.map(jnp.asarray, found), model.placements))
    expected, exact = theirs.gradients(theirs_batch), theirs.exact.gradients(theirs_batch)
    assert "logit_scale" in expected
    assert not beyond_rounding(gradient_errors(found, expected, exact))


def drawing(colour, shape):
    pixels = np.zeros((16, 16, 3), np.uint8)
    mask = np.zeros((16, 16), bool)
    if shape == "square":
        mask[3:13, 3:13] = True
    elif shape == "bar":
        mask[6:10] = True
    elif shape == "frame":
        mask[:] = True
        mask[3:13, 3:13] = False
    else:
        mask[7:9], mask[:, 7:9] = True, True
    pixels[mask] = COLOURS[colour]
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Drawings of sixteen kinds with their descriptions: a table for training and validation."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = []
    for colour in COLOURS:
        for shape in SHAPES:
            name = f"{colour}-{shape}.png"
            drawing(colour, shape).save(folder / name)
            rows.append({"image": name, "text": f"a {colour} {shape}"})
    write_rows(folder / "train.jsonl", rows)
    return folder


def config_for(folder, schedule=RATE, layers=1, **settings):
    table = str(folder / "train.jsonl")
    sizes = {"mlp_dim": 64, "compute_dtype": "float32", "attention": "reference"}
    sizes |= {"scan_layers": False}
    text = clip_text(layers, 32, 4, vocab_size=264, position=Learned(max_length=24), **sizes)
    image = clip_vision(
        layers, 32, 4, 4, image_size=(16, 16), position=Learned(max_length=17), **sizes
    )
    options = {"steps": 200, "eval_interval": 200, "checkpoint_interval": 200, "sample_tokens": 0}
    return Config(
        model=clip(text, image, 16),
        data=ImageTextPairs(
            train=table,
            validation=table,
            tokenizer=Bytes(),
            sequence_length=24,
            image_size=(16, 16),
            batch_size=16,
        ),
        optimizer=AdamW(schedule=schedule),
        train=TrainConfig(**(options | settings)),
    )


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(config_for(pairs, layers=2), folder)
    return folder


def metrics_of(folder):
    return read_metrics(folder, "validation")[-1]


@pytest.mark.slow
def test_a_run_learns_which_belong_together(run):
    found = metrics_of(run)
    # By chance one in sixteen is right, and the loss is log 16.
    assert min(found["text_to_image_recall"], found["image_to_text_recall"]) > 0.7
    assert found["loss"] < 0.8


@pytest.mark.slow
def test_a_run_that_stopped_ends_with_the_same_bits(pairs, tmp_path):
    for name, stops in (("whole", (8,)), ("parts", (4, 8))):
        for steps in stops:
            rate = Constant(learning_rate=1e-3, warmup_steps=2)
            config = config_for(pairs, rate, steps=steps, gradient_accumulation=2)
            train(config, tmp_path / name)
    assert hash_of(tmp_path / "whole", 8) == hash_of(tmp_path / "parts", 8)


@pytest.mark.slow
def test_a_run_goes_out_as_a_clip_of_transformers_which_tells_the_labels_of_an_image(
    run, pairs, tmp_path
):
    model = load(run)
    save(model, tmp_path / "hf")
    again = load(tmp_path / "hf")
    assert again.checkpoint.architecture.name == "CLIPModel"
    assert_same_parameters(again, model)
    assert "logit_scale" in load_file(tmp_path / "hf" / "model.safetensors")
    files = [pairs / "red-square.png", pairs / "blue-frame.png"]
    labels = ("red square", "blue frame", "white bar")
    for each in (model, again):
        found = zero_shot(each, files, labels, template="a {}")
        assert [scores[0].label for scores in found] == ["red square", "blue frame"]


@pytest.mark.slow
def test_the_scale_is_cut_off(pairs):
    config = replace(config_for(pairs).model, logit_scale=5.0)
    rng, rows = np.random.default_rng(0), 4
    batch = {
        "inputs": rng.integers(0, 256, (rows, 24), dtype=np.int32),
        "segments": np.ones((rows, 24), np.int32),
        "images": rng.standard_normal((rows, 16, 16, 3)).astype(np.float32),
        "pair_weights": np.ones(rows, np.float32),
    }
    ends = []
    for limit in (1.0, None):
        program = program_of(replace(config, max_logit_scale=limit), optimizer=AdamW())
        state, _ = stepped(program, batch)
        ends.append(float(state.params["logit_scale"]))
    assert ends[0] == 1.0
    assert ends[1] > 4.0


def test_what_is_wrong_is_said(pairs, tmp_path):
    config = config_for(pairs)
    (tmp_path / "bad.jsonl").write_text('{"image": "none.png", "text": "nothing"}\n')
    data = replace(config.data, train=str(tmp_path / "bad.jsonl"), validation=None)
    with pytest.raises(DataError, match=r"bad.jsonl:1: .*none.png does not exist"):
        train(replace(config, data=data), tmp_path / "run")
    (tmp_path / "none.png").write_text("no image")
    data = replace(data, validation=data.train)
    with pytest.raises(DataError, match=r"none.png: not an image"):
        train(replace(config, data=replace(data, batch_size=1)), tmp_path / "other")
    with pytest.raises(ConfigError, match="reads images, which CausalLM does not make"):
        train(replace(config, data=Config().data), tmp_path / "third")
    with pytest.raises(ConfigError, match=r"data.image_size = \(8, 8\) must equal"):
        train(replace(config, data=replace(config.data, image_size=(8, 8))), tmp_path / "fourth")
    with pytest.raises(ConfigError, match="cannot be compared"):
        replace(config.model, image=replace(config.model.image, heads=(Projection(8),)))


def test_recall_counts_both_directions():
    found = retrieval_scores([[0, 1], [1, 1], [0, 0]], [[0, 0], [1, 1], [2, 2]], [1, 1, 0])
    assert found == {
        "text_to_image_recall": 1.0, "image_to_text_recall": 0.5, "accuracy": 0.75,
    }  # fmt: skip
