"""Texts of composite models, whose encoder of texts, images or sounds is of another system."""

import numpy as np
import pytest
from captioners import photos, save_captioner
from generate_cases import theirs
from saved_folders import save_tiny

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.prediction.image_settings import PREPROCESSOR

pytest.importorskip("PIL")
pytestmark = pytest.mark.torch

OPTIONS = {"max_new_tokens": 6, "eos_token_id": 4, "pad_token_id": 5}


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    return jaxformer.load(save_captioner(tmp_path_factory.mktemp("captioner") / "model"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("images") / "all", 3)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "kind", ["encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder"]
)
@pytest.mark.quick("vision-encoder-decoder-1")
def test_texts_are_those_of_transformers(kind, beams, tmp_path):
    folder = save_tiny(kind, tmp_path / "model")
    ours = jaxformer.load(folder)
    inputs = example_inputs(ours.checkpoint, "right", rows=2)
    for name in ("decoder_input_ids", "decoder_attention_mask", "labels"):
        del inputs[name]
    options = OPTIONS | {"num_beams": beams}
    found = jaxformer.generate(ours, inputs, **options)["sequences"]
    options["decoder_start_token_id"] = TINY[kind]["decoder_start_token_id"]
    expected = theirs(folder, ours.checkpoint.architecture.name, inputs, **options).sequences
    # Transformers ends with the longest text that it kept, and pads finished beams otherwise.
    for row, wanted in zip(found.tolist(), expected.tolist(), strict=True):
        assert cut(row) == cut(wanted)


def cut(tokens):
    """A text up to its end token."""
    ends = [place for place, token in enumerate(tokens) if token in (4, 5)]
    return tokens[: ends[0]] if ends else tokens


@pytest.mark.more
def test_files_and_arrays_give_the_same_texts(captioner, images):
    options = {"max_new_tokens": 4, "min_new_tokens": 4}
    several = jaxformer.generate(captioner, images, **options)
    assert len(several["texts"]) == len(images)
    for number, file in enumerate(images):
        alone = jaxformer.generate(captioner, str(file), **options)
        np.testing.assert_array_equal(alone["sequences"][0], several["sequences"][number])
        assert alone["texts"] == several["texts"][number : number + 1]


def test_continuations_are_scored_as_they_are_generated(captioner, images):
    found = jaxformer.generate(captioner, images, max_new_tokens=4, eos_token_id=None)
    new = found["sequences"][:, 1:]
    scores = jaxformer.score(captioner, images, [[row] for row in new])
    for row, (score,) in zip(found["log_probs"], scores, strict=True):
        np.testing.assert_allclose(score.token_log_probs, row, atol=2e-5)


def test_hooks_reach_the_encoder(captioner, images):
    zero = {"encoder.blocks.0.hook_resid_post": lambda x: 0 * x}
    options = {"max_new_tokens": 4, "eos_token_id": None}
    plain = jaxformer.generate(captioner, images, **options)
    hooked = jaxformer.generate(captioner, images, **options, hooks=zero)
    assert not np.array_equal(plain["log_probs"], hooked["log_probs"])
    np.testing.assert_allclose(hooked["log_probs"][0], hooked["log_probs"][1], atol=1e-5)


def test_what_is_no_image_is_refused(captioner, images, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(images[0].read_bytes()[:40])
    with pytest.raises(DataError, match=r"broken\.png: not an image"):
        jaxformer.generate(captioner, [images[0], broken])
    with pytest.raises(DataError, match=r"missing\.png does not exist"):
        jaxformer.generate(captioner, tmp_path / "missing.png")
    with pytest.raises(ArgumentError, match="the file of an image"):
        jaxformer.generate(captioner, [[1, 2]])
    with pytest.raises(DataError, match="pixel_values is missing"):
        jaxformer.generate(captioner, {"decoder_input_ids": [[1]]})
    with pytest.raises(ConfigError, match="draft: both models"):
        jaxformer.generate(captioner, images, draft=captioner)


def test_without_settings_of_images_it_says_so(tmp_path, images):
    folder = save_captioner(tmp_path / "model")
    (folder / PREPROCESSOR).unlink()
    with pytest.raises(DataError, match=r"preprocessor_config\.json does not exist"):
        jaxformer.generate(jaxformer.load(folder), images)
