"""Images of any shape, scaled and cut into patches as transformers does it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from saved_folders import save_tiny

from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.lab.attention.maps import image_maps
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.image_patches import sides_for_patches
from jaxformer.pretrained.prediction.image_reader import HFImageReader
from jaxformer.pretrained.prediction.image_settings import PREPROCESSOR

pytestmark = pytest.mark.torch

SETTINGS = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": 23}
FILES = {
    "bilinear": SETTINGS,
    "other numbers": SETTINGS
    | {"resample": 3, "image_mean": [0.1, 0.5, 0.4], "image_std": [0.5, 0.2, 0.3]},
    "what it does not read": SETTINGS
    | {"do_center_crop": True, "crop_size": 9, "size": {"longest_edge": 5}, "do_rescale": False},
}
sides = st.integers(1, 5000)


@given(height=sides, width=sides, patch=st.integers(1, 32), most=st.integers(1, 1200))
def test_sides_are_those_of_transformers(height, width, patch, most):
    from transformers.models.siglip2 import image_processing_pil_siglip2 as theirs

    wanted = theirs.get_image_size_for_max_num_patches(height, width, patch, most)
    found = sides_for_patches((height, width), patch, most)
    assert found == wanted
    assert (found[0] // patch) * (found[1] // patch) <= most


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Wide and in colour, high and grey, smaller than a patch, and narrow."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    shapes = {"wide": (20, 47, 3), "grey": (61, 17), "small": (3, 2, 3), "narrow": (2, 90, 3)}
    for name, shape in shapes.items():
        pixels = random.integers(0, 256, shape, np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tower = {"hidden_size": 36, "num_attention_heads": 6, "num_hidden_layers": 2}
    tower |= {"intermediate_size": 56, "patch_size": 4, "num_channels": 3, "num_patches": 9}
    save_tiny("siglip2", folder, "ForImageClassification", vision_config=tower)
    (folder / PREPROCESSOR).write_text(json.dumps(SETTINGS))
    return folder


@pytest.mark.parametrize("settings", FILES.values(), ids=FILES)
def test_arrays_are_those_of_the_processor(settings, photos, classifier):
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    (classifier / PREPROCESSOR).write_text(json.dumps(settings))
    reader = HFImageReader(load(classifier))
    found = reader.arrays(reader.encode([(str(file),) for file in photos]), 1)
    images = [Image.open(file).convert("RGB") for file in photos]
    wanted = Siglip2ImageProcessorPil(**settings)(images, return_tensors="np")
    assert set(found) == set(wanted)
    np.testing.assert_array_equal(found["spatial_shapes"], wanted["spatial_shapes"])
    np.testing.assert_array_equal(found["pixel_attention_mask"], wanted["pixel_attention_mask"])
    np.testing.assert_allclose(found["pixel_values"], wanted["pixel_values"], rtol=1e-5, atol=1e-5)


def rows_of(files):
    return [Record(str(file), {"file": str(file)}) for file in files]


def test_labels_are_those_of_the_pipeline(photos, classifier):
    from transformers import pipeline

    (classifier / PREPROCESSOR).write_text(json.dumps(SETTINGS))
    classify = pipeline("image-classification", model=str(classifier))
    rows = open_predictor(classifier, PredictionConfig(scores=True)).predict(rows_of(photos))
    for file, row in zip(photos, rows, strict=True):
        for each in classify(str(file)):
            assert row[f"score_{each['label']}"] == pytest.approx(each["score"], abs=2e-5)


def test_maps_have_the_patches_of_the_image(photos, classifier):
    (classifier / PREPROCESSOR).write_text(json.dumps(SETTINGS))
    model = load(classifier)
    maps = image_maps(model, HFImageReader(model), photos[-1])  # wide
    assert (maps.grid.rows, maps.grid.columns) == (3, 7)
    assert maps.weights.shape == (2, 6, 21, 21)
    np.testing.assert_allclose(maps.weights.sum(-1), 1.0, rtol=1e-5)


def test_a_processor_of_one_size_gives_one_grid(photos, classifier):
    """As a run writes it that was trained on images of one size; transformers has no such case."""
    fixed = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 12, "width": 20}}
    (classifier / PREPROCESSOR).write_text(json.dumps(fixed | {"max_num_patches": 3}))
    reader = HFImageReader(load(classifier))
    found = reader.arrays(reader.encode([(str(file),) for file in photos]), 1)
    assert found["pixel_values"].shape == (4, 15, 48)
    assert found["pixel_attention_mask"].all()
    assert (found["spatial_shapes"] == [3, 5]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 8}, "patch_size = 8: must be 4"),
        ({"max_num_patches": 0}, "max_num_patches = 0: must be"),
        ({"patch_size": "4"}, "patch_size = '4': must be"),
        ({"do_resize": False}, r"3 x 2 pixels .* whole number of patches of 4 x 4.*do_resize"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(changes, message, photos, classifier):
    (classifier / PREPROCESSOR).write_text(json.dumps(SETTINGS | changes))
    with pytest.raises(DataError, match=message):
        open_predictor(classifier).predict(rows_of(photos[2:3]))


def test_more_patches_than_the_processor_allows_are_refused(classifier, tmp_path):
    Image.new("RGB", (24, 16)).save(tmp_path / "large.png")
    (classifier / PREPROCESSOR).write_text(json.dumps(SETTINGS | {"do_resize": False}))
    with pytest.raises(DataError, match="24 patches, more than max_num_patches = 23"):
        open_predictor(classifier).predict(rows_of([tmp_path / "large.png"]))
