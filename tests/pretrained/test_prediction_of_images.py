"""Images are read, scaled, cut into patches and labelled as transformers does it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.cli import main as cli
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.errors import ConfigError, DataError
from jaxformer.lab.attention.maps import image_maps
from jaxformer.parity.reference import save_random
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.image_patches import sides_for_patches
from jaxformer.pretrained.prediction.image_reader import HFImageReader
from jaxformer.pretrained.prediction.image_settings import PREPROCESSOR, ImageSettings
from jaxformer.pretrained.writing import save

pillow = pytest.importorskip("PIL.Image")
SIZES = {"image_size": 32, "patch_size": 8, "num_channels": 3}
TOWER = {"vision_config": TINY["siglip2"]["vision_config"] | {"num_channels": 3}}
OLD = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.1, 0.5, 0.4],
    "image_std": [0.5] * 3,
}
PATCHES = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": 23}
FILES = {
    "beit as it was saved": (
        "Beit",
        OLD | {"crop_size": 28, "do_center_crop": False, "size": 32, "resample": 2}
        | {"feature_extractor_type": "BeitFeatureExtractor"},
    ),
    "beit, cut": (
        "Beit",
        OLD | {"crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
        | {"size": {"height": 36, "width": 40}, "image_processor_type": "BeitImageProcessor"},
    ),
    "deit as it was saved": (
        "DeiT",
        OLD | {"crop_size": 32, "size": 37, "resample": 3}
        | {"feature_extractor_type": "DeiTFeatureExtractor"},
    ),
    "deit, cut beyond the edge": (
        "DeiT",
        {"crop_size": 32, "size": 29, "image_processor_type": "DeiTImageProcessor"},
    ),
    "vit": ("ViT", {"size": 32, "feature_extractor_type": "ViTFeatureExtractor"}),
    "by the short side": (
        "Dinov2",
        {"size": 35, "crop_size": 32, "image_processor_type": "BitImageProcessor"},
    ),
    "siglip2": ("Siglip2", PATCHES),
}  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two of usual shapes, the first held upright and the other grey, and five of odd shapes."""
    home, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    shapes = {"usual/0": (24, 40, 3), "usual/1": (33, 21), "odd/wide": (20, 47, 3)}
    shapes |= {"odd/grey": (61, 17), "odd/small": (3, 2, 3), "odd/narrow": (2, 90, 3)}
    for name, shape in (shapes | {"odd/large": (16, 24, 3)}).items():
        picture = pillow.fromarray(random.integers(0, 256, shape, np.uint8))
        exif = picture.getexif()
        exif[0x0112] = 6 if name == "usual/0" else 1
        (home / name).parent.mkdir(exist_ok=True)
        picture.save(home / f"{name}.png", exif=exif)
    return home


def saved(kind, settings, folder, **changes):
    sizes = TOWER if kind == "Siglip2" else SIZES
    save_random(kind.lower(), f"{kind}ForImageClassification", folder, **(sizes | changes))
    (folder / PREPROCESSOR).write_text(json.dumps(settings))
    return folder


def rows_of(files):
    return [Record(str(file), {"file": str(file)}) for file in files]


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "settings"), FILES.values(), ids=FILES)
@pytest.mark.quick("beit as*", "deit as*", "siglip2")
def test_the_command_labels_the_images_of_a_folder_as_the_pipeline(
    kind, settings, photos, tmp_path
):
    transformers = pytest.importorskip("transformers")
    folder, output = saved(kind, settings, tmp_path / "model"), tmp_path / "out.csv"
    arguments = ["--input", str(photos), "--output", str(output), "--scores", "--batch-size", "4"]
    assert cli.main(["predict", str(folder), *arguments]) == 0
    rows = [record.values for record in read_records(output)]
    assert [row["file"] for row in rows] == sorted(map(str, photos.rglob("*.png")))
    classify = transformers.pipeline("image-classification", model=str(folder))
    for row in rows:
        scores = {each["label"]: each["score"] for each in classify(row["file"])}
        found = {label: float(row[f"score_{label}"]) for label in scores}
        assert found == pytest.approx(scores, abs=2e-5)
        assert row["label"] == max(found, key=found.get)


def test_the_file_of_a_whole_processor_comes_first(tmp_path):
    """As version 5 of transformers writes it, and reads it where there are both."""
    own = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 31}}
    whole = {"image_processor": own, "processor_class": "CLIPProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert ImageSettings.of_folder(tmp_path).values["size"] == {"shortest_edge": 31}
    (tmp_path / PREPROCESSOR).write_text(json.dumps({"size": 32}))
    assert ImageSettings.of_folder(tmp_path).values["size"] == {"shortest_edge": 31}
    # Older files of a processor have its class alone.
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "X"}))
    assert ImageSettings.of_folder(tmp_path).values["size"] == 32


@pytest.mark.torch
def test_images_of_another_size_are_read_when_asked_for(photos, tmp_path):
    folder, usual = saved("ViT", {"do_resize": False}, tmp_path / "model"), photos / "usual"
    files = sorted(usual.iterdir())
    with pytest.raises(DataError, match=r"0\.png: .* makes \(40, 24\) pixels .* --interpolate"):
        open_predictor(folder).predict(rows_of(files))
    output = tmp_path / "out.jsonl"
    arguments = ["--input", str(usual), "--output", str(output), "--batch-size", "1"]
    assert cli.main(["predict", str(folder), *arguments, "--interpolate-positions"]) == 0
    assert len(list(read_records(output))) == 2
    both = open_predictor(folder, PredictionConfig(interpolate_positions=True))
    with pytest.raises(DataError, match=r"\(33, 21\) and \(40, 24\) pixels are in one batch"):
        both.predict(rows_of(files))


@pytest.mark.torch
def test_what_is_no_image_of_the_model_is_refused(photos, tmp_path):
    folder = saved("ViT", {"size": 32}, tmp_path / "model")
    file = tmp_path / "notes.png"
    file.write_text("no image")
    with pytest.raises(DataError, match=r"notes\.png: not an image that can be decoded"):
        open_predictor(folder).predict(rows_of([file]))
    folder = saved("ViT", {"size": 32}, tmp_path / "two", num_channels=2)
    with pytest.raises(DataError, match=r"0\.png: image files have 1 or 3 channels.* reads 2"):
        open_predictor(folder).predict(rows_of([photos / "usual/0.png"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "large"}, "size = 'large': must be a whole number"),
        ({"size": {"longest_edge": 30}}, "size = .*longest_edge.*: must be"),
        ({"crop_size": {"height": 3.5, "width": 4}}, r"crop_size = .*3\.5"),
        ({"image_mean": [0.5, 0.5]}, r"image_mean = \[0\.5, 0\.5\]: must be a number or three"),
        ({"resample": 9}, "resample = 9: must be a filter"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings, message, tmp_path):
    (tmp_path / PREPROCESSOR).write_text(json.dumps(settings))
    with pytest.raises(DataError, match=message):
        ImageSettings.of_folder(tmp_path)


@pytest.mark.torch
def test_a_model_that_resizes_is_saved_as_it_came(tmp_path):
    folder = saved("ViT", {"size": 32}, tmp_path / "model")
    save(load(folder, interpolate_positions=True), tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="interpolate_position: VisionConfig has no such field"):
        load(folder, interpolate_position=True)


# Patches of images of any shape -----------------------------------------------------------------

sides = st.integers(1, 5000)


@pytest.mark.torch
@given(height=sides, width=sides, patch=st.integers(1, 32), most=st.integers(1, 1200))
def test_sides_are_those_of_transformers(height, width, patch, most):
    from transformers.models.siglip2 import image_processing_pil_siglip2 as theirs

    wanted = theirs.get_image_size_for_max_num_patches(height, width, patch, most)
    found = sides_for_patches((height, width), patch, most)
    assert found == wanted
    assert (found[0] // patch) * (found[1] // patch) <= most


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Writes other settings into the folder of a model that reads images of any shape."""
    folder = saved("Siglip2", PATCHES, tmp_path_factory.mktemp("model"))

    def with_settings(settings=PATCHES):
        (folder / PREPROCESSOR).write_text(json.dumps(settings))
        return folder

    return with_settings


@pytest.mark.torch
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"resample": 3, "image_mean": [0.1, 0.5, 0.4], "image_std": [0.5, 0.2, 0.3]},
        # What it does not read.
        {"do_center_crop": True, "crop_size": 9, "size": {"longest_edge": 5}, "do_rescale": False},
    ],
    ids=["bilinear", "other numbers", "what it does not read"],
)
def test_arrays_are_those_of_the_processor(changes, photos, classifier):
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    settings, files = PATCHES | changes, sorted((photos / "odd").iterdir())
    reader = HFImageReader(load(classifier(settings)))
    found = reader.arrays(reader.encode([(str(file),) for file in files]), 1)
    images = [pillow.open(file).convert("RGB") for file in files]
    wanted = Siglip2ImageProcessorPil(**settings)(images, return_tensors="np")
    assert set(found) == set(wanted)
    np.testing.assert_array_equal(found["spatial_shapes"], wanted["spatial_shapes"])
    np.testing.assert_array_equal(found["pixel_attention_mask"], wanted["pixel_attention_mask"])
    np.testing.assert_allclose(found["pixel_values"], wanted["pixel_values"], rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_maps_have_the_patches_of_the_image(photos, classifier):
    model = load(classifier())
    maps = image_maps(model, HFImageReader(model), photos / "odd/wide.png")
    assert (maps.grid.rows, maps.grid.columns) == (3, 7)
    assert maps.weights.shape == (3, 6, 21, 21)
    np.testing.assert_allclose(maps.weights.sum(-1), 1.0, rtol=1e-5)


@pytest.mark.torch
def test_a_processor_of_one_size_gives_one_grid(photos, classifier):
    """As a run writes it that was trained on images of one size; transformers has no such case."""
    fixed = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 12, "width": 20}}
    reader = HFImageReader(load(classifier(fixed | {"max_num_patches": 3})))
    found = reader.arrays(reader.encode([(str(file),) for file in photos.rglob("*.png")]), 1)
    assert found["pixel_values"].shape == (7, 15, 48)
    assert found["pixel_attention_mask"].all()
    assert (found["spatial_shapes"] == [3, 5]).all()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"patch_size": 8}, "small", "patch_size = 8: must be 4"),
        ({"max_num_patches": 0}, "small", "max_num_patches = 0: must be"),
        ({"patch_size": "4"}, "small", "patch_size = '4': must be"),
        (
            {"do_resize": False},
            "small",
            r"3 x 2 pixels .* whole number of patches of 4 x 4.*do_resize",
        ),
        ({"do_resize": False}, "large", "24 patches, more than max_num_patches = 23"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(changes, name, message, photos, classifier):
    with pytest.raises(DataError, match=message):
        open_predictor(classifier(PATCHES | changes)).predict(rows_of([photos / f"odd/{name}.png"]))
